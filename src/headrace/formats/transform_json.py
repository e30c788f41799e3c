"""Predictions as JSON, joined with their records under the names that batch transform has, and filtered."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar, Final, TypeVar

import numpy as np

from headrace.core.block import Block
from headrace.core.errors import ConfigError, DataError
from headrace.core.tensor import Array, TensorSpec
from headrace.formats.contract import Piece
from headrace.formats.encode import Join, check_join, checked_outputs, json_text
from headrace.formats.json_path import JsonPath
from headrace.formats.json_path_grammar import Names, Places
from headrace.formats.json_text import BLANKS, members
from headrace.formats.jsonl_encode import fields_of, keys_of, values_of
from headrace.formats.weave import Weave, one_text, raw_records, woven

INPUT: Final = "SageMakerInput"
"""The member that holds a record that is no object."""
OUTPUT: Final = "SageMakerOutput"
"""The member that holds the prediction."""

_OUTPUT_KEY = b'"SageMakerOutput":'
_INPUT_KEY = b'"SageMakerInput":'
_ESCAPED_LETTER = re.compile(rb"\\u00[4-7][0-9A-Fa-f]")
_EMPTY = re.compile(rb"^\{[ \t\r]*\}$", re.MULTILINE)
_BRACE, _BRACE_END, _QUOTE, _SPACE, _COMMA = b'{}" ,'
_LINE_ENDS = bytes.maketrans(b"\r\n", b"  ")

_T = TypeVar("_T")


class TransformJsonEncoder:
    """One JSON value a record, each followed by `separator`: a newline, or nothing.

    The prediction y of a record is an object with a key for each output, as `JsonLinesEncoder` writes it. With
    ``join="input"`` a record that is an object is written as it came, with ``"SageMakerOutput":y`` as its last
    member; members that it has of that name are left out. Any other record r is written
    ``{"SageMakerInput":r,"SageMakerOutput":y}``. Where `input_is_json` says that a block's records are not JSON they
    are strings (what is not UTF-8 is ``{"base64":"..."}``).

    Of that, or without a join of y, `output_filter` is written. What is kept of a record keeps its bytes, except that
    before a newline as separator the line ends between its tokens become spaces, and blanks around it are left out.

    Raises ConfigError when the filter asks y for an output that it has not, or counts elements where there is always
    an object; `encode` raises DataError, with the record's position, when a record has not what the filter asks for,
    and ModelContractError when outputs change their names or shapes within a part.
    """

    suffix: ClassVar[str] = ".jsonl"

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
        rest = output_filter.within(OUTPUT) if join == "input" else None
        if rest is not None:
            # The prediction alone is asked for, and every record has one: the records need no look.
            join, output_filter = "none", rest
        if output_filter.segments and isinstance(output_filter.segments[0], Places):
            raise ConfigError(
                f"the output filter {output_filter.text} counts the elements of an array, but predictions, and records "
                f"joined with them, are objects: use names, such as $['id','{OUTPUT}'] of what is joined"
            )
        self._joined = join == "input"
        self._separator = separator
        self._input_is_json = input_is_json
        self._path = output_filter
        self._columns = tuple(columns)
        self._picked = _picked(output_filter)
        self._shown = self._columns
        self._bare = False
        if not self._joined:
            self._choose_outputs()
        self._keys = keys_of(self._shown)

    def begin(self) -> bytes:
        """Nothing."""
        return b""

    def encode(self, pieces: Sequence[Piece], outputs: Mapping[str, Array]) -> bytes:
        """The records' values."""
        rows, arrays = checked_outputs(self._columns, pieces, outputs)
        if not rows:
            return b""
        if not self._joined:
            return self._predictions(pieces, arrays, rows)
        opening, fields, closing = fields_of(self._keys, arrays, rows)
        opening, closing = b"{" + opening, closing + b"}"
        return woven(pieces, fields, lambda piece, share: self._join(piece, share, opening, closing))

    def finish(self) -> bytes:
        """Nothing."""
        return b""

    # Without records

    def _choose_outputs(self) -> None:
        """Of a filter that names outputs: encode no others. What it asks of them is left in the path."""
        match self._path.segments:
            case [Names((name,)), *rest]:
                self._shown = self._outputs((name,))
                self._bare = True
                self._path = JsonPath(self._path.text, tuple(rest))
            case [Names(names)]:
                self._shown = self._outputs(tuple(dict.fromkeys(names)))
                self._path = JsonPath(self._path.text, ())
            case _:
                pass

    def _outputs(self, names: Sequence[str]) -> tuple[TensorSpec, ...]:
        known = {column.name: column for column in self._columns}
        missing = [name for name in names if name not in known]
        if missing:
            raise ConfigError(
                f'the output filter {self._path.text} asks for "{missing[0]}", which is none of the model\'s outputs: '
                f"{', '.join(known) or 'it has none'}"
            )
        return tuple(known[name] for name in names)

    def _predictions(self, pieces: Sequence[Piece], arrays: Sequence[Array], rows: int) -> bytes:
        by_name = {column.name: data for column, data in zip(self._columns, arrays, strict=True)}
        chosen = [by_name[column.name] for column in self._shown]
        if self._bare:
            opening, values, closing = values_of(chosen[0])
        else:
            opening, values, closing = fields_of(self._keys, chosen, rows)
            opening, closing = b"{" + opening, closing + b"}"
        if self._path.is_root:
            return Weave(opening, b"", closing + self._separator).lines(values)

        def select(value: bytes) -> bytes:
            return self._path.raw(opening + value + closing)

        return woven(pieces, values, lambda piece, share: self._each(piece, share, select))

    # With records

    def _join(self, piece: Piece, fields: Sequence[bytes], opening: bytes, closing: bytes) -> bytes:
        is_json = self._input_is_json(piece.block)
        if is_json and self._path.is_root:
            text = _as_one_text(piece, fields, opening, closing + b"}" + self._separator)
            if text is not None:
                return text
        write = self._written if is_json else self._written_as_text
        pairs = zip(raw_records(piece), fields, strict=True)
        return self._each(piece, pairs, lambda pair: write(pair[0], opening + pair[1] + closing))

    def _tidied(self, record: bytes) -> bytes:
        """Without blanks around it and, before a newline as separator, on one line: none is in a JSON string."""
        record = record.strip(BLANKS)
        return record.translate(_LINE_ENDS) if self._separator and b"\n" in record else record

    def _written(self, record: bytes, prediction: bytes) -> bytes:
        """What the filter keeps of a record and its prediction."""
        record = self._tidied(record)
        if self._path.is_root:
            return _joined(record, prediction)
        if not record.startswith(b"{") or self._picked is None:
            return self._path.raw(_joined(record, prediction))
        if len(self._picked) == 1:
            # Not the prediction's member, which the encoder did away with: the record alone is asked.
            return self._path.raw(record)
        texts = {member.name: record[member.key : member.end] for member in members(record)}
        texts[OUTPUT] = _OUTPUT_KEY + prediction
        try:
            return b"{" + b",".join([texts[name] for name in self._picked]) + b"}"
        except KeyError:
            return self._path.raw(_joined(record, prediction))

    def _written_as_text(self, record: bytes, prediction: bytes) -> bytes:
        """The same of a record that is no JSON."""
        return self._path.raw(_beside(json_text(record), prediction))

    def _each(self, piece: Piece, values: Iterable[_T], write: Callable[[_T], bytes]) -> bytes:
        """One by one; what is wrong with one is told with its record's position."""
        written: list[bytes] = []
        try:
            for value in values:
                written += (write(value), self._separator)
        except ValueError as error:
            row = len(written) // 2
            index = piece.start + row if piece.rows is None else int(piece.rows[row])
            raise DataError(
                f"{piece.block.position(index)}: the output filter {self._path.text} cannot be applied: {error}"
            ) from None
        return b"".join(written)


def _picked(path: JsonPath) -> tuple[str, ...] | None:
    """The members that the path asks a record for, where it asks no more of several; None where it asks otherwise."""
    match path.segments:
        case [Names((name,)), *_]:
            return (name,)
        case [Names(names)]:
            return tuple(dict.fromkeys(names))
        case _:
            return None


def _as_one_text(piece: Piece, fields: Sequence[bytes], opening: bytes, tail: bytes) -> bytes | None:
    """All records joined at once, where all of them are plain objects, or none is one; else None."""
    text = one_text(piece)
    if text is None:
        return None
    values = np.frombuffer(piece.block.data, np.uint8)
    starts, stops = (
        piece.block.starts[piece.start : piece.stop],
        piece.block.ends[piece.start : piece.stop] - 1,
    )
    firsts, lasts = values[starts], values[stops]
    if (firsts <= _SPACE).any() or (lasts <= _SPACE).any():
        return None
    objects = firsts == _BRACE
    if not objects.any():
        return Weave(b"{" + _INPUT_KEY, b"," + _OUTPUT_KEY + opening, tail).into_text(text, fields)
    if not (objects & (lasts == _BRACE_END)).all() or _may_have_output(text):
        return None
    if not (values[starts + 1] == _QUOTE).all() and _EMPTY.search(text):
        return None
    # The comma takes the place of each record's closing brace, which comes back with the tail.
    commas = np.cumsum(stops - starts + 2) - 2
    opened = np.frombuffer(text, np.uint8).copy()
    opened[commas] = _COMMA
    return Weave(b"", _OUTPUT_KEY + opening, tail).into_text(opened.tobytes(), fields)


def _joined(record: bytes, prediction: bytes) -> bytes:
    """One record with its prediction."""
    if not record.startswith(b"{"):
        return _beside(record, prediction)
    inside = record[:-1]
    if _may_have_output(record):
        found = members(record)
        kept = [record[member.key : member.end] for member in found if member.name != OUTPUT]
        if len(kept) < len(found):
            inside = b"{" + b",".join(kept)
    comma = b"" if inside.rstrip(BLANKS) == b"{" else b","
    return b"".join((inside, comma, _OUTPUT_KEY, prediction, b"}"))


def _beside(record: bytes, prediction: bytes) -> bytes:
    return b"".join((b"{", _INPUT_KEY, record, b",", _OUTPUT_KEY, prediction, b"}"))


def _may_have_output(text: bytes) -> bool:
    """Whether a key may be SageMakerOutput: that is in the text, or letters written as escapes are."""
    if b'SageMakerOutput"' in text:
        return True
    # The backslash alone first: that is found far more quickly.
    return b"\\" in text and b"\\u00" in text and _ESCAPED_LETTER.search(text) is not None
