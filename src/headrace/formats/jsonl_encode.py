"""Predictions as JSON Lines: one object a record, its outputs by name, and its input where asked for."""

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import numpy as np
import orjson

from headrace.core.block import Block
from headrace.core.errors import ConfigError
from headrace.core.tensor import Array, TensorSpec
from headrace.formats.contract import Piece
from headrace.formats.encode import INPUT, Join, check_join, checked_outputs, is_text, json_text, number_text
from headrace.formats.weave import Weave, one_text, raw_records, woven

INPUT_BASE64 = "input_base64"
"""What a joined record is called that is not UTF-8, and so stands in base64."""


class JsonLinesEncoder:
    r"""``{"y":0.5,"scores":[0.1,0.9]}``: a key for each output, arrays nested as their shape is.

    Numbers are in the fewest digits that read back to the same value of their dtype. JSON has no NaN and no
    infinities: they are null. Strings stand as such; bytes as strings where they are UTF-8, else as
    ``{"base64": "..."}``.

    With ``join="input"`` a first key ``input`` holds the record: as a string, or, where `input_is_json` says that
    a block's records are JSON, spliced in byte for byte (but for line breaks in it, which become spaces). One that is not UTF-8 is ``input_base64`` instead, and loses
    nothing.

    Raises ConfigError when an output has the name of the joined record; `encode` raises ModelContractError when
    outputs change their names or shapes within a part.
    """

    suffix: ClassVar[str] = ".jsonl"

    def __init__(
        self,
        columns: Sequence[TensorSpec],
        *,
        join: Join = "none",
        input_is_json: Callable[[Block], bool] = lambda _: False,
    ) -> None:
        check_join(join)
        self._columns = tuple(columns)
        self._joined = join == "input"
        self._input_is_json = input_is_json
        self._keys = keys_of(self._columns)
        taken = {INPUT, INPUT_BASE64} & {column.name for column in self._columns}
        if self._joined and taken:
            raise ConfigError(
                f"output {taken.pop()!r} has the name of the joined record: rename it in the model, "
                "leave the input out, or write CSV"
            )

    def begin(self) -> bytes:
        """Nothing."""
        return b""

    def encode(self, pieces: Sequence[Piece], outputs: Mapping[str, Array]) -> bytes:
        """The records' lines."""
        rows, arrays = checked_outputs(self._columns, pieces, outputs)
        if not rows:
            return b""
        opening, fields, closing = fields_of(self._keys, arrays, rows)
        closing += b"}\n"
        if not self._joined:
            return Weave(b"{" + opening, b"", closing).lines(fields)
        middle = b"," + opening if self._columns else b""
        spliced = Weave(b'{"input":', middle, closing)
        inside = Weave(b'{"input":"', b'"' + middle, closing)
        outside = Weave(b"{", middle, closing)

        def joined(piece: Piece, share: Sequence[bytes]) -> bytes:
            # Each piece by its own block: a source may hold JSON and other text in turns.
            if self._input_is_json(piece.block):
                return _join_json(spliced, piece, share)
            return _join_text(inside, outside, piece, share)

        return woven(pieces, fields, joined)

    def finish(self) -> bytes:
        """Nothing."""
        return b""


def keys_of(columns: Sequence[TensorSpec]) -> list[bytes]:
    """What stands before each output's value in an object."""
    return [json_text(column.name) + b":" for column in columns]


def fields_of(
    keys: Sequence[bytes], arrays: Sequence[Array], rows: int
) -> tuple[bytes, Sequence[bytes], bytes]:
    """Each row's keys and values, with no braces around them, less what all rows start and end with."""
    columns = [values_of(data) for data in arrays]
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


def values_of(data: Array) -> tuple[bytes, Sequence[bytes], bytes]:
    """Every row as JSON, less the brackets that all of them start and end with."""
    if is_text(data):
        return b"", [json_text(row) for row in data.tolist()], b""
    if not data.size:
        return b"", [orjson.dumps(data[0].tolist())] * len(data), b""
    text = number_text(data, nonfinite_names=False)
    depth = data.ndim - 1
    opening, closing = b"[" * depth, b"]" * depth
    # Brackets as deep as this close and open again between rows only.
    values = text[depth + 1 : len(text) - depth - 1].split(closing + b"," + opening)
    return opening, values, closing


def _join_json(weave: Weave, piece: Piece, fields: Sequence[bytes]) -> bytes:
    text = one_text(piece)
    if text is None:
        return weave.into_records([_on_one_line(record) for record in raw_records(piece)], fields)
    return weave.into_text(text, fields)


def _on_one_line(record: bytes) -> bytes:
    """JSON that was written over several lines; in JSON, line breaks stand between tokens alone."""
    return record.replace(b"\n", b" ") if b"\n" in record else record


def _join_text(inside: Weave, outside: Weave, piece: Piece, fields: Sequence[bytes]) -> bytes:
    """With `inside` the quotes around the record belong to the constants; with `outside` there are none."""
    text = one_text(piece)
    if text is not None and _needs_no_escapes(text, len(piece)):
        return inside.into_text(text, fields)
    return outside.into_records([_input_field(record) for record in raw_records(piece)], fields)


def _needs_no_escapes(text: bytes, lines: int) -> bool:
    """Whether every line can stand between the quotes of a JSON string as it is."""
    if not text.isascii() or b'"' in text or b"\\" in text:
        return False
    controls = np.frombuffer(text, np.uint8) < 0x20
    return np.count_nonzero(controls) == lines  # the newlines


def _input_field(record: bytes) -> bytes:
    try:
        return b'"input":' + orjson.dumps(record.decode())
    except UnicodeDecodeError:
        return b'"input_base64":"%b"' % b64encode(record)
