"""Predictions as JSON, joined with their records under batch transform's names, and filtered."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

import numpy as np
from typing_extensions import override

from headrace.core.block import Block
from headrace.core.errors import ConfigError, DataError
from headrace.core.tensor import Array, TensorSpec
from headrace.formats.contract import BlockSelection, Encoder
from headrace.formats.encode import (
    Join,
    RecordJoiner,
    check_join,
    check_outputs,
    join_selections,
    json_text,
    raw_records,
    selection_text,
)
from headrace.formats.json_path import JsonPath
from headrace.formats.json_path_grammar import ElementSelector, MemberSelector
from headrace.formats.json_text import BLANKS, members
from headrace.formats.jsonl_encode import encode_fields, encode_values, output_keys

INPUT: Final = "SageMakerInput"
"""The member for a record that is not an object."""
OUTPUT: Final = "SageMakerOutput"
"""The member for the prediction."""

_OUTPUT_KEY = b'"SageMakerOutput":'
_INPUT_KEY = b'"SageMakerInput":'
_ESCAPED_LETTER = re.compile(rb"\\u00[4-7][0-9A-Fa-f]")
_EMPTY = re.compile(rb"^\{[ \t\r]*\}$", re.MULTILINE)
_BRACE, _BRACE_END, _QUOTE, _SPACE, _COMMA = b'{}" ,'
_LINE_ENDS = bytes.maketrans(b"\r\n", b"  ")

_T = TypeVar("_T")


class TransformJsonEncoder(Encoder):
    """An encoder of one JSON value per record, each followed by `separator`: a newline or nothing.

    The prediction y of a record is an object with a key for each output, as in `JsonLinesEncoder`.
    With ``join="input"`` a record that is an object is written unchanged with
    ``"SageMakerOutput":y`` as its last member; existing members of that name are dropped. Any other
    record r is written as ``{"SageMakerInput":r,"SageMakerOutput":y}``. If `input_is_json` returns
    False for a block, its records are written as strings (``{"base64":"..."}`` if not UTF-8).

    `output_filter` is applied to this value, or without a join to y. The selected parts of a record
    keep their bytes with two exceptions. Surrounding white space is dropped, and before a newline
    separator the line ends between tokens become spaces.

    Raises ConfigError if the filter selects an unknown output of y, or array elements of a value
    that is always an object. `encode` raises DataError with the position of the record if a record
    lacks a selected part, and ModelContractError if outputs change their names or shapes within a
    part.
    """

    def __init__(
        self,
        columns: Sequence[TensorSpec],
        *,
        join: Join = "none",
        output_filter: JsonPath,
        separator: bytes = b"\n",
        input_is_json: Callable[[Block], bool] = lambda _: True,
    ) -> None:
        check_join(join)
        if separator not in {b"\n", b""}:
            raise ConfigError(f"separator must be a newline or nothing, not {separator!r}")
        remaining = output_filter.relative_to(OUTPUT) if join == "input" else None
        if remaining is not None:
            # The filter selects the prediction alone, and every record has one, so the records are
            # not read.
            join, output_filter = "none", remaining
        if output_filter.segments and isinstance(output_filter.segments[0], ElementSelector):
            raise ConfigError(
                f"the output filter {output_filter.text} selects elements of an array, but predictions "
                f"and joined records are objects: use names, such as $['id','{OUTPUT}'] with a join"
            )
        self._joins_input = join == "input"
        self._separator = separator
        self._input_is_json = input_is_json
        self._path = output_filter
        self._columns = tuple(columns)
        self._selected_members = _selected_members(output_filter)
        self._encoded_columns = self._columns
        self._writes_bare_value = False
        if not self._joins_input:
            self._restrict_outputs()
        self._keys = output_keys(self._encoded_columns)

    @override
    def encode(self, selections: Sequence[BlockSelection], outputs: Mapping[str, Array]) -> bytes:
        rows, arrays = check_outputs(self._columns, selections, outputs)
        if not rows:
            return b""
        if not self._joins_input:
            return self._encode_predictions(selections, arrays, rows)
        opening, fields, closing = encode_fields(self._keys, arrays, rows)
        opening, closing = b"{" + opening, closing + b"}"
        return join_selections(
            selections,
            fields,
            lambda selection, predictions: self._join_selection(selection, predictions, opening, closing),
        )

    # Predictions without records.

    def _restrict_outputs(self) -> None:
        """Encode only the outputs that the filter names, and keep the rest of the path."""
        match self._path.segments:
            case [MemberSelector((name,)), *remaining]:
                self._encoded_columns = self._outputs((name,))
                self._writes_bare_value = True
                self._path = JsonPath(self._path.text, tuple(remaining))
            case [MemberSelector(names)]:
                self._encoded_columns = self._outputs(tuple(dict.fromkeys(names)))
                self._path = JsonPath(self._path.text, ())
            case _:
                pass

    def _outputs(self, names: Sequence[str]) -> tuple[TensorSpec, ...]:
        by_column_name = {column.name: column for column in self._columns}
        missing = [name for name in names if name not in by_column_name]
        if missing:
            raise ConfigError(
                f'the output filter {self._path.text} selects "{missing[0]}"; the outputs of the model are: '
                f"{', '.join(by_column_name) or 'none'}"
            )
        return tuple(by_column_name[name] for name in names)

    def _encode_predictions(
        self, selections: Sequence[BlockSelection], arrays: Sequence[Array], rows: int
    ) -> bytes:
        by_name = {column.name: data for column, data in zip(self._columns, arrays, strict=True)}
        chosen = [by_name[column.name] for column in self._encoded_columns]
        if self._writes_bare_value:
            opening, values, closing = encode_values(chosen[0])
        else:
            opening, values, closing = encode_fields(self._keys, chosen, rows)
            opening, closing = b"{" + opening, closing + b"}"
        if self._path.is_root:
            return RecordJoiner(opening, b"", closing + self._separator).prediction_lines(values)

        def select(value: bytes) -> bytes:
            return self._path.raw(opening + value + closing)

        return join_selections(
            selections,
            values,
            lambda selection, predictions: self._write_each(selection, predictions, select),
        )

    # Records joined with predictions.

    def _join_selection(
        self, selection: BlockSelection, fields: Sequence[bytes], opening: bytes, closing: bytes
    ) -> bytes:
        is_json = self._input_is_json(selection.block)
        if is_json and self._path.is_root:
            text = _join_as_text(selection, fields, opening, closing + b"}" + self._separator)
            if text is not None:
                return text
        write = self._encode_record if is_json else self._encode_text_record
        pairs = zip(raw_records(selection), fields, strict=True)
        return self._write_each(selection, pairs, lambda pair: write(pair[0], opening + pair[1] + closing))

    def _normalized(self, record: bytes) -> bytes:
        """Return the record without surrounding white space.

        Before a newline separator it is on one line: line ends never stand within a JSON string.
        """
        record = record.strip(BLANKS)
        return record.translate(_LINE_ENDS) if self._separator and b"\n" in record else record

    def _encode_record(self, record: bytes, prediction: bytes) -> bytes:
        """Return the part of a record and its prediction that the filter selects."""
        record = self._normalized(record)
        if self._path.is_root:
            return _join_record(record, prediction)
        if not record.startswith(b"{") or self._selected_members is None:
            return self._path.raw(_join_record(record, prediction))
        if len(self._selected_members) == 1:
            # The selected member is not the prediction: such a filter is handled in the
            # constructor.
            return self._path.raw(record)
        texts = {member.name: record[member.key : member.end] for member in members(record)}
        texts[OUTPUT] = _OUTPUT_KEY + prediction
        try:
            return b"{" + b",".join([texts[name] for name in self._selected_members]) + b"}"
        except KeyError:
            return self._path.raw(_join_record(record, prediction))

    def _encode_text_record(self, record: bytes, prediction: bytes) -> bytes:
        """Return the same for a record that is not JSON."""
        return self._path.raw(_wrap_record(json_text(record), prediction))

    def _write_each(
        self, selection: BlockSelection, values: Iterable[_T], write: Callable[[_T], bytes]
    ) -> bytes:
        """Write the values one by one. Raise DataError with the record's position if one fails."""
        written: list[bytes] = []
        try:
            for value in values:
                written += (write(value), self._separator)
        except ValueError as error:
            row = len(written) // 2
            index = selection.start + row if selection.rows is None else int(selection.rows[row])
            raise DataError(
                f"{selection.block.position(index)}: the output filter {self._path.text} cannot be applied: "
                f"{error}"
            ) from None
        return b"".join(written)


def _selected_members(path: JsonPath) -> tuple[str, ...] | None:
    """Return the members that the path selects of the record, or None for any other kind of path.

    A path that selects several members must end there.
    """
    match path.segments:
        case [MemberSelector((name,)), *_]:
            return (name,)
        case [MemberSelector(names)]:
            return tuple(dict.fromkeys(names))
        case _:
            return None


def _join_as_text(
    selection: BlockSelection, fields: Sequence[bytes], opening: bytes, tail: bytes
) -> bytes | None:
    """Join all records at once, or return None.

    All records must be plain objects, or none of them an object.
    """
    text = selection_text(selection)
    if text is None:
        return None
    values = np.frombuffer(selection.block.data, np.uint8)
    starts, stops = (
        selection.block.starts[selection.start : selection.stop],
        selection.block.ends[selection.start : selection.stop] - 1,
    )
    firsts, lasts = values[starts], values[stops]
    if (firsts <= _SPACE).any() or (lasts <= _SPACE).any():
        return None
    objects = firsts == _BRACE
    if not objects.any():
        return RecordJoiner(b"{" + _INPUT_KEY, b"," + _OUTPUT_KEY + opening, tail).join_text(text, fields)
    if not (objects & (lasts == _BRACE_END)).all() or _may_have_output(text):
        return None
    if not (values[starts + 1] == _QUOTE).all() and _EMPTY.search(text):
        return None
    # The comma replaces the closing brace of each record. The tail restores the brace.
    commas = np.cumsum(stops - starts + 2) - 2
    with_commas = np.frombuffer(text, np.uint8).copy()
    with_commas[commas] = _COMMA
    return RecordJoiner(b"", _OUTPUT_KEY + opening, tail).join_text(with_commas.tobytes(), fields)


def _join_record(record: bytes, prediction: bytes) -> bytes:
    """Return one record joined with its prediction."""
    if not record.startswith(b"{"):
        return _wrap_record(record, prediction)
    inside = record[:-1]
    if _may_have_output(record):
        found = members(record)
        kept = [record[member.key : member.end] for member in found if member.name != OUTPUT]
        if len(kept) < len(found):
            inside = b"{" + b",".join(kept)
    comma = b"" if inside.rstrip(BLANKS) == b"{" else b","
    return b"".join((inside, comma, _OUTPUT_KEY, prediction, b"}"))


def _wrap_record(record: bytes, prediction: bytes) -> bytes:
    return b"".join((b"{", _INPUT_KEY, record, b",", _OUTPUT_KEY, prediction, b"}"))


def _may_have_output(text: bytes) -> bool:
    """Return True if a key may be SageMakerOutput: the text contains it, or escaped letters."""
    if b'SageMakerOutput"' in text:
        return True
    # The search for the backslash alone is much faster, so it comes first.
    return b"\\" in text and b"\\u00" in text and _ESCAPED_LETTER.search(text) is not None
