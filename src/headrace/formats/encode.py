"""The parts that the encoders share: columns, values as text, and records joined with predictions.

`TextEncoder` needs no more than them.

Where a block can be taken as one text, no Python object is made per record. The line ends of the
block are replaced by a template, and the predictions are filled in, in one pass.
"""

import json
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, prod
from typing import Any, Final, Literal, cast

import numpy as np
import orjson
from typing_extensions import override

from headrace.core.block import Block
from headrace.core.errors import ConfigError, ModelContractError
from headrace.core.tensor import Array, TensorSpec, datatype_of
from headrace.formats.contract import BlockSelection, Encoder

Join = Literal["none", "input"]

INPUT: Final = "input"
"""The name of the joined record in formats with names."""
_NEWLINE: Final = 0x0A
_RETURN: Final = 0x0D


def output_columns(outputs: Mapping[str, Array]) -> tuple[TensorSpec, ...]:
    """Return the specifications of the outputs: names, datatypes and row sizes.

    The outputs are the first ones of a part. Shapes are ``(-1, ...)``. Raise ConfigError for a
    dtype that cannot be written (complex, dates).
    """
    columns: list[TensorSpec] = []
    for name, data in outputs.items():
        try:
            datatype = datatype_of(data.dtype)
        except TypeError as error:
            raise ConfigError(
                f"output {name!r} cannot be written: {error}; convert it in the model's predict"
            ) from error
        columns.append(TensorSpec(name, datatype, (-1, *data.shape[1:])))
    return tuple(columns)


def row_shape(column: TensorSpec) -> tuple[int, ...]:
    """Return the shape of one row: empty for a scalar."""
    return (column.shape or (-1,))[1:]


def row_width(column: TensorSpec) -> int:
    """Return the number of values in one row: 1 for a scalar."""
    return prod(row_shape(column))


def check_join(join: str) -> None:
    """Raise ConfigError if `join` is not a supported way to join."""
    if join not in {"none", "input"}:
        raise ConfigError(f'join must be "none" or "input", not {join!r}')


def check_outputs(
    columns: Sequence[TensorSpec],
    selections: Sequence[BlockSelection],
    outputs: Mapping[str, Array],
    *,
    datatypes: bool = False,
) -> tuple[int, list[Array]]:
    """Return the number of rows, and the outputs in the order of the columns and native byte order.

    Raise ModelContractError if names, row counts or row shapes (or, with `datatypes`, datatypes)
    differ from those at the start of the part.
    """
    rows = sum(map(len, selections))
    if set(outputs) != {column.name for column in columns}:
        first_names = ", ".join(column.name for column in columns)
        raise ModelContractError(
            "?", f"the model returned outputs {', '.join(outputs)}; this part started with {first_names}"
        )
    arrays: list[Array] = []
    for column in columns:
        data = outputs[column.name]
        if data.shape != (rows, *row_shape(column)):
            raise ModelContractError(
                "?",
                f"output {column.name!r} has shape {data.shape} for {rows} records; "
                f"this part started with rows of shape {row_shape(column)}",
            )
        if datatypes and datatype_of(data.dtype) != column.datatype:
            raise ModelContractError(
                "?", f"output {column.name!r} is {data.dtype}; this part started with {column.datatype}"
            )
        arrays.append(data if data.dtype.isnative else data.astype(data.dtype.newbyteorder("=")))
    return rows, arrays


def number_text(numbers: Array, *, nonfinite_names: bool) -> bytes:
    """Return a boolean or number array of any shape as JSON text.

    Each number has the fewest digits that read back to the same value of its dtype. The array has
    native byte order. JSON has no NaN and no infinities: they become null, or with
    `nonfinite_names` ``nan``, ``inf`` and ``-inf``.
    """
    if numbers.dtype == np.float16:
        # orjson would write the shortest digits of float32, more than float16 can hold.
        numbers = numbers.astype("U").astype(np.float64)
    text = orjson.dumps(np.ascontiguousarray(numbers), option=orjson.OPT_SERIALIZE_NUMPY)
    if nonfinite_names and numbers.dtype.kind == "f" and b"null" in text:
        nonfinite = numbers[~np.isfinite(numbers)].tolist()
        return text.replace(b"null", b"%b") % tuple(b"%a" % value for value in nonfinite)
    return text


def is_text(data: Array) -> bool:
    """Return True if the elements are strings, bytes or objects rather than numbers."""
    return data.dtype.kind in "OSU"


def text_bytes(value: Any) -> bytes:
    r"""Return an element of a text output as UTF-8.

    Bytes are unchanged, None is empty, numbers that are not finite are ``nan``, ``inf`` and ``-inf``, and
    other objects become JSON. A lone surrogate, which has no UTF-8 encoding, becomes its ``\uXXXX``.
    """
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode(errors="backslashreplace")
    if value is None:
        return b""
    if isinstance(value, float) and not isfinite(value):
        return b"%a" % value
    return json_text(value)


def json_text(value: Any) -> bytes:
    """Return any value as valid JSON.

    Arrays become lists, and numbers that are not finite become null. Bytes become strings if they
    are UTF-8, else ``{"base64": "..."}``. Keys that are not strings become their JSON text. Objects
    that JSON cannot express become their `str`.
    """
    try:
        return orjson.dumps(value, default=_json_fallback, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:
        # json handles what orjson refuses: lone surrogates, integers beyond 64 bits, keys that are
        # not strings.
        return json.dumps(_to_json_value(value), separators=(",", ":")).encode()


def _json_fallback(value: Any) -> Any:
    """Return a replacement for a value that JSON cannot express."""
    as_list: Any = getattr(value, "tolist", None)
    if as_list is not None:
        return as_list()
    if not isinstance(value, bytes):
        return str(value)
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(value).decode()}


def _to_json_value(value: Any) -> Any:
    """Return a value that consists of JSON types at every level."""
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {
            key if isinstance(key, str) else json_text(key).decode(): _to_json_value(v) for key, v in items
        }
    if isinstance(value, list | tuple):
        return [_to_json_value(inner) for inner in cast("Sequence[Any]", value)]
    return _to_json_value(_json_fallback(value))


@dataclass(frozen=True, slots=True)
class RecordJoiner:
    """The constants of an output line: ``head + record + middle + prediction + tail``.

    Without records the line is ``head + prediction + tail``.
    """

    head: bytes
    middle: bytes
    tail: bytes

    def prediction_lines(self, predictions: Sequence[bytes]) -> bytes:
        """Return lines without records."""
        if not predictions:
            return b""
        return b"".join((self.head, (self.tail + self.head).join(predictions), self.tail))

    def join_text(self, text: bytes, predictions: Sequence[bytes]) -> bytes:
        """Return lines of the records in one text, each ended by a newline, with no other newlines."""
        head, middle, tail = (part.replace(b"%", b"%%") for part in (self.head, self.middle, self.tail))
        if b"%" in text:
            text = text.replace(b"%", b"%%")
        template = text.replace(b"\n", b"".join((middle, b"%b", tail, head)))
        joined = template % tuple(predictions)
        if not head:
            return joined
        # The last newline was replaced with one head too many, and the first line has none.
        return b"".join((self.head, memoryview(joined)[: -len(self.head)]))

    def join_records(self, records: Sequence[bytes], predictions: Sequence[bytes]) -> bytes:
        """Return lines of the given records."""
        if not records:
            return b""
        parts = [self.middle] * (4 * len(records) + 1)
        parts[0] = self.head
        parts[1::4] = records
        parts[3::4] = predictions
        parts[4::4] = [self.tail + self.head] * len(records)
        parts[-1] = self.tail
        return b"".join(parts)


def join_selections(
    selections: Sequence[BlockSelection],
    predictions: Sequence[bytes],
    join: Callable[[BlockSelection, Sequence[bytes]], bytes],
) -> bytes:
    """Return the lines of all selections.

    `join` receives a selection and its share of the predictions.
    """
    if len(selections) == 1:
        return join(selections[0], predictions)
    parts: list[bytes] = []
    at = 0
    for selection in selections:
        parts.append(join(selection, predictions[at : at + len(selection)]))
        at += len(selection)
    return b"".join(parts)


def selections_text(selections: Sequence[BlockSelection]) -> bytes | None:
    """Return the records of all selections as one text, as `selection_text` does, in one copy.

    Return None if the lines of a block do not end in LF.
    """
    parts: list[bytes | memoryview] = []
    for selection in selections:
        block = selection.block
        if selection.rows is not None or block.line_end != b"\n":
            return None
        if len(selection):
            start, end = int(block.starts[selection.start]), int(block.ends[selection.stop - 1])
            parts += (memoryview(block.data)[start:end], b"\n")
    return b"".join(parts)


def selection_text(selection: BlockSelection) -> bytes | None:
    """Return the records of the selection as one text of lines that end in a newline.

    Return None if the block does not hold them as such lines: records are left out, line ends
    differ, lines are blank, or a record holds a newline.
    """
    block, start, stop = selection.block, selection.start, selection.stop
    if selection.rows is not None or start == stop or not block.data:
        return None
    if block.line_end == b"\n":
        return _text_with_line_end(block.data, int(block.starts[start]), int(block.ends[stop - 1]), b"\n")
    starts, ends = block.starts[start:stop], block.ends[start:stop]
    gap = int(starts[1]) - int(ends[0]) if len(starts) > 1 else 1
    if gap not in (1, 2) or not (starts[1:] - ends[:-1] == gap).all():
        return None
    values = np.frombuffer(block.data, np.uint8)
    if not (values[starts[1:] - 1] == _NEWLINE).all():
        return None
    if gap == 2 and not (values[ends[:-1]] == _RETURN).all():
        return None
    line_end = b"\n" if gap == 1 else b"\r\n"
    text = _text_with_line_end(block.data, int(starts[0]), int(ends[-1]), line_end)
    # The number of line ends equals the number of records, so no record contains one.
    if any(_count_byte(text, value) != len(starts) for value in line_end):
        return None
    return text.replace(b"\r", b"") if gap == 2 else text


def _text_with_line_end(data: bytes, start: int, end: int, line_end: bytes) -> bytes:
    """Return the text from `start` to `end` with a final line end, even if the input lacks it."""
    if data.startswith(line_end, end):
        return data[start : end + len(line_end)]
    return data[start:end] + line_end


def _count_byte(text: bytes, value: int) -> int:
    """Return the number of occurrences of a byte. `bytes.count` takes five times as long."""
    return int(np.count_nonzero(np.frombuffer(text, np.uint8) == value))


def raw_records(selection: BlockSelection) -> list[bytes]:
    """Return copies of the records of the selection; for media without kept bytes, their sources."""
    block = selection.block
    indices: Any = slice(selection.start, selection.stop) if selection.rows is None else selection.rows
    if block.table is not None:
        return block.table.texts(np.arange(len(block))[indices])
    if block.columns and not block.data:
        return source_names(block, np.arange(len(block))[indices].tolist())
    data = block.data
    bounds = zip(block.starts[indices].tolist(), block.ends[indices].tolist(), strict=True)
    return [data[start:end] for start, end in bounds]


def source_names(block: Block, indices: Sequence[int]) -> list[bytes]:
    """Return source names such as ``photos.tar!cat.png``.

    Windows and frames have their start time in seconds, as in ``speech.wav#t=0.5``.
    """
    at, times_ms = block.first, block.columns.get("time_ms")
    name = f"{at.object}!{at.member}" if at.member else at.object
    if times_ms is None:
        return [name.encode(errors="surrogateescape")] * len(indices)
    return [f"{name}#t={round(times_ms[i] / 1000, 6)}".encode(errors="surrogateescape") for i in indices]


class TextEncoder(Encoder):
    """An encoder of the model's one output, byte for byte (strings as UTF-8).

    For models that format their own lines.

    Each text is followed by `separator`. Nothing is quoted or escaped, so the model must not write
    the separator within a text. Raises ConfigError for a model with several outputs, an output that
    is not text, or several texts per record. `encode` raises ModelContractError if outputs change
    their names or shapes.
    """

    def __init__(self, columns: Sequence[TensorSpec], *, separator: bytes = b"\n") -> None:
        if len(columns) != 1 or columns[0].datatype != "BYTES" or row_width(columns[0]) != 1:
            outputs = ", ".join(f"{c.name} ({c.datatype})" for c in columns) or "none"
            raise ConfigError(
                "accept text needs a model with one text output per record, "
                f"but the model's outputs are {outputs}: choose csv or jsonl"
            )
        self._columns = tuple(columns)
        self._separator = separator

    @override
    def encode(self, selections: Sequence[BlockSelection], outputs: Mapping[str, Array]) -> bytes:
        rows, (data,) = check_outputs(self._columns, selections, outputs)
        texts = [text_bytes(value) for value in data.reshape(rows).tolist()]
        return self._separator.join([*texts, b""]) if texts else b""
