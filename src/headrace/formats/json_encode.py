"""Predictions as JSON: one object per record with its outputs by name, and perhaps the record.

`JsonLinesEncoder` writes JSON Lines. `TransformJsonEncoder` uses batch transform's names, and filters.
"""

import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

import numpy as np
import orjson
from typing_extensions import override

from headrace.core.block import Block
from headrace.core.errors import ConfigError, DataError
from headrace.core.tensor import Array, TensorSpec
from headrace.formats.contract import BlockSelection, Encoder
from headrace.formats.encode import (
    INPUT,
    Join,
    RecordJoiner,
    check_join,
    check_outputs,
    is_text,
    join_selections,
    json_text,
    number_text,
    raw_records,
    selection_text,
)
from headrace.formats.json_path import JsonPath
from headrace.formats.json_select import BLANKS, ElementSelector, MemberSelector, members

INPUT_BASE64 = "input_base64"
"""The key of a joined record in base64, because it is not UTF-8."""


SAGEMAKER_OUTPUT: Final = "SageMakerOutput"
"""The member for the prediction."""
_OUTPUT_KEY = b'"SageMakerOutput":'
_INPUT_KEY = b'"SageMakerInput":'
"""The member for a record that is not an object."""
_ESCAPED_LETTER = re.compile(rb"\\u00[4-7][0-9A-Fa-f]")
_EMPTY = re.compile(rb"^\{[ \t\r]*\}$", re.MULTILINE)
_BRACE, _BRACE_END, _QUOTE, _SPACE, _COMMA = b'{}" ,'
_LINE_ENDS = bytes.maketrans(b"\r\n", b"  ")

_T = TypeVar("_T")


class JsonLinesEncoder(Encoder):
    """An encoder of JSON lines such as ``{"y":0.5,"scores":[0.1,0.9]}``.

    A line has a key for each output, and arrays are nested by shape. Numbers have the fewest digits
    that read back to the same value of their dtype. JSON has no NaN and no infinities: they become
    null. Strings are unchanged. Bytes become strings if they are UTF-8, else ``{"base64": "..."}``.

    With ``join="input"`` a first key ``input`` holds the record as a string. If `input_is_json`
    returns True for a block, its records are spliced in byte for byte, except that line breaks
    become spaces. A record that is not UTF-8 is stored under ``input_base64`` instead, without
    loss.

    Raises ConfigError if an output has the name of the joined record. `encode` raises
    ModelContractError if outputs change their names or shapes within a part.
    """

    def __init__(
        self,
        columns: Sequence[TensorSpec],
        *,
        join: Join = "none",
        input_is_json: Callable[[Block], bool] = lambda _: False,
    ) -> None:
        check_join(join)
        self._columns = tuple(columns)
        self._joins_input = join == "input"
        self._input_is_json = input_is_json
        self._keys = output_keys(self._columns)
        conflicts = {INPUT, INPUT_BASE64} & {column.name for column in self._columns}
        if self._joins_input and conflicts:
            raise ConfigError(
                f"output {conflicts.pop()!r} has the reserved name of the joined record: "
                "rename the output in the model, omit the input, or write CSV"
            )

    @override
    def encode(self, selections: Sequence[BlockSelection], outputs: Mapping[str, Array]) -> bytes:
        rows, arrays = check_outputs(self._columns, selections, outputs)
        if not rows:
            return b""
        opening, fields, closing = encode_fields(self._keys, arrays, rows)
        closing += b"}\n"
        if not self._joins_input:
            return RecordJoiner(b"{" + opening, b"", closing).prediction_lines(fields)
        middle = b"," + opening if self._columns else b""
        json_joiner = RecordJoiner(b'{"input":', middle, closing)
        quoted_joiner = RecordJoiner(b'{"input":"', b'"' + middle, closing)
        field_joiner = RecordJoiner(b"{", middle, closing)

        def join(selection: BlockSelection, predictions: Sequence[bytes]) -> bytes:
            # The choice is made per block, because a source may mix JSON and other text.
            if self._input_is_json(selection.block):
                return _join_json(json_joiner, selection, predictions)
            return _join_text(quoted_joiner, field_joiner, selection, predictions)

        return join_selections(selections, fields, join)


def output_keys(columns: Sequence[TensorSpec]) -> list[bytes]:
    """Return the text before the value of each output in an object."""
    return [json_text(column.name) + b":" for column in columns]


def encode_fields(
    keys: Sequence[bytes], arrays: Sequence[Array], rows: int
) -> tuple[bytes, Sequence[bytes], bytes]:
    """Return the common start of the rows, the rest of each row, and the common end.

    A row is the keys and values of one record, without the braces of the object.
    """
    columns = [encode_values(data) for data in arrays]
    if not columns:
        return b"", [b""] * rows, b""
    if len(columns) == 1:
        opening, values, closing = columns[0]
        return keys[0] + opening, values, closing
    template = b",".join(
        key.replace(b"%", b"%%") + opening + b"%b" + closing
        for key, (opening, _, closing) in zip(keys, columns, strict=True)
    )
    rows_of_values = zip(*(values for _, values, _ in columns), strict=True)
    return b"", [template % values for values in rows_of_values], b""


def encode_values(data: Array) -> tuple[bytes, Sequence[bytes], bytes]:
    """Return the common start of the rows, the rest of each row, and the common end, as JSON.

    The common parts are the brackets that all rows start and end with.
    """
    if is_text(data):
        return b"", [json_text(row) for row in data.tolist()], b""
    if not data.size:
        return b"", [orjson.dumps(data[0].tolist())] * len(data), b""
    text = number_text(data, nonfinite_names=False)
    depth = data.ndim - 1
    opening, closing = b"[" * depth, b"]" * depth
    # Brackets of this depth close and open again only between rows.
    values = text[depth + 1 : len(text) - depth - 1].split(closing + b"," + opening)
    return opening, values, closing


def _join_json(joiner: RecordJoiner, selection: BlockSelection, fields: Sequence[bytes]) -> bytes:
    text = selection_text(selection)
    if text is None:
        return joiner.join_records([_replace_newlines(record) for record in raw_records(selection)], fields)
    return joiner.join_text(text, fields)


def _replace_newlines(record: bytes) -> bytes:
    """Return the JSON text on one line. Line breaks in JSON stand between tokens only."""
    return record.replace(b"\n", b" ") if b"\n" in record else record


def _join_text(
    quoted_joiner: RecordJoiner,
    field_joiner: RecordJoiner,
    selection: BlockSelection,
    fields: Sequence[bytes],
) -> bytes:
    """Join records as JSON strings.

    `quoted_joiner` holds the quotes around the record in its constants; `field_joiner` does not.
    """
    text = selection_text(selection)
    if text is not None and _needs_no_escapes(text, len(selection)):
        return quoted_joiner.join_text(text, fields)
    return field_joiner.join_records([_input_field(record) for record in raw_records(selection)], fields)


def _needs_no_escapes(text: bytes, lines: int) -> bool:
    """Return True if every line can stand unchanged between the quotes of a JSON string."""
    if not text.isascii() or b'"' in text or b"\\" in text:
        return False
    controls = np.frombuffer(text, np.uint8) < 0x20
    return np.count_nonzero(controls) == lines  # The newlines.


def _input_field(record: bytes) -> bytes:
    try:
        return b'"input":' + orjson.dumps(record.decode())
    except UnicodeDecodeError:
        return b'"input_base64":"%b"' % b64encode(record)


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
        remaining = output_filter.relative_to(SAGEMAKER_OUTPUT) if join == "input" else None
        if remaining is not None:
            # The filter selects the prediction alone, and every record has one, so the records are
            # not read.
            join, output_filter = "none", remaining
        if output_filter.segments and isinstance(output_filter.segments[0], ElementSelector):
            raise ConfigError(
                f"the output filter {output_filter.text} selects elements of an array, but predictions "
                f"and joined records are objects: use names, such as $['id','{SAGEMAKER_OUTPUT}'] with a join"
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

        def write(pair: tuple[bytes, bytes]) -> bytes:
            record, prediction = pair[0], opening + pair[1] + closing
            if is_json:
                return self._encode_record(record, prediction)
            return self._path.raw(_wrap_record(json_text(record), prediction))

        return self._write_each(selection, zip(raw_records(selection), fields, strict=True), write)

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
        texts[SAGEMAKER_OUTPUT] = _OUTPUT_KEY + prediction
        try:
            return b"{" + b",".join([texts[name] for name in self._selected_members]) + b"}"
        except KeyError:
            return self._path.raw(_join_record(record, prediction))

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
        kept = [record[member.key : member.end] for member in found if member.name != SAGEMAKER_OUTPUT]
        if len(kept) < len(found):
            inside = b"{" + b",".join(kept)
    comma = b"" if inside.rstrip(BLANKS) == b"{" else b","
    return b"%b%b%b%b}" % (inside, comma, _OUTPUT_KEY, prediction)


def _wrap_record(record: bytes, prediction: bytes) -> bytes:
    return b"{%b%b,%b%b}" % (_INPUT_KEY, record, _OUTPUT_KEY, prediction)


def _may_have_output(text: bytes) -> bool:
    """Return True if a key may be SageMakerOutput: the text contains it, or escaped letters."""
    if b'SageMakerOutput"' in text:
        return True
    # The search for the backslash alone is much faster, so it comes first.
    return b"\\" in text and b"\\u00" in text and _ESCAPED_LETTER.search(text) is not None
