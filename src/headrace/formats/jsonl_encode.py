"""Predictions as JSON Lines: one object per record with its outputs by name.

The object may also hold the input record.
"""

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import orjson
from typing_extensions import override

from headrace.core.block import Block
from headrace.core.errors import ConfigError
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

INPUT_BASE64 = "input_base64"
"""The key of a joined record in base64, because it is not UTF-8."""


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
