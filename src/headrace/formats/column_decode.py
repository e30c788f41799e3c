"""The columns of blocks as inputs of a model: decoded media, and tables such as Parquet."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray
from typing_extensions import override

from headrace.core.block import Block, FailureKind, RecordTable
from headrace.core.errors import ModelInputError
from headrace.core.tensor import Array, TensorSpec, dtype_of
from headrace.formats.contract import DecodedBlock, Decoder, FailureReasons
from headrace.formats.json_decode import JsonDecoder, JsonField

_DTYPE: Final = "dtype"
_EXCERPT_CHARS: Final = 80


class ColumnDecoder(Decoder):
    """A decoder of column `column`, of media that their format decoded, into the input `spec`.

    Images are [n, H, W, C] uint8. They become [n, C, H, W] if the model's second axis is 1 or 3 and
    its last axis is not. They are multiplied by `scale` if the model takes floats, and are cast.
    For a model with three axes, grey images [n, H, W, 1] become [n, H, W], and mono sound [n,
    samples] becomes [n, 1, samples].

    All images of a stream have one size. So an image of another size than the model's is a
    ModelInputError with both sizes. An input that takes text is a ModelInputError too.
    """

    def __init__(self, model: str, spec: TensorSpec, column: str, *, scale: float = 1.0) -> None:
        self._model = model
        self._spec = spec
        self._column = column
        self._dtype = dtype_of(spec.datatype)
        if self._dtype.kind == "O":
            raise ModelInputError(
                model,
                f"input {spec.name!r} takes text or bytes, but the {column} column is numbers: to pass "
                "the encoded files unchanged, choose --format whole (in a transform: --split none)",
            )
        self._scale = scale if column == "image" and self._dtype.kind == "f" else 1.0
        self._is_image = column == "image"
        self._channels_first = self._is_image and _is_channels_first(spec.shape)

    @override
    def decode(self, block: Block) -> DecodedBlock:
        data = self._arrange_axes(block.columns[self._column])
        self._check_shape(data, block)
        if self._scale != 1.0:
            data = data * np.asarray(self._scale, self._dtype)
        return DecodedBlock({self._spec.name: np.ascontiguousarray(data, self._dtype)})

    def _arrange_axes(self, data: Array) -> Array:
        """Return the data with the channel axis in the model's place, without a copy."""
        axes = 0 if self._spec.shape is None else len(self._spec.shape)
        if self._channels_first:
            return np.moveaxis(data, -1, 1)
        if self._is_image and axes == 3 and data.shape[-1] == 1:
            return data[..., 0]
        if not self._is_image and axes == 3 and data.ndim == 2:
            return data[:, np.newaxis]
        return data

    def _check_shape(self, data: Array, block: Block) -> None:
        shape = self._spec.shape
        if not len(block) or shape is None or shape_fits(data.shape[1:], shape[1:]):
            return
        raise ModelInputError(
            self._model,
            f"input {self._spec.name!r} takes {list(shape)}, but the {self._column} at {block.first} is "
            f"{[-1, *data.shape[1:]]}; set the model's image size (--image-size, --image-mode) "
            "or audio window (--window-ms, --sample-rate-hz, --audio-channels)",
        )


def _is_channels_first(shape: tuple[int, ...] | None) -> bool:
    return shape is not None and len(shape) == 4 and shape[1] in (1, 3) and shape[3] not in (1, 3)


def shape_fits(actual: tuple[Any, ...], expected: tuple[int, ...]) -> bool:
    """Return True if a shape is the expected one, in which -1 stands for any size."""
    return len(actual) == len(expected) and all(
        expected_size in (-1, actual_size)
        for actual_size, expected_size in zip(actual, expected, strict=True)
    )


def nullable_array(values: Sequence[Any], dtype: np.dtype[Any]) -> Array:
    """Return an array of objects with the `values` of a dtype, or None.

    `values_dtype` recovers the dtype.
    """
    result = np.empty(len(values), np.dtype(object, metadata={_DTYPE: dtype}))
    result[:] = values
    return result


def values_dtype(column: Array) -> np.dtype[Any]:
    """Return the dtype of a column's values.

    For a column with nulls this is the dtype of the other values. The dtype object means text.
    """
    metadata = column.dtype.metadata
    return column.dtype if metadata is None else metadata.get(_DTYPE, column.dtype)


@dataclass(frozen=True, slots=True)
class ColumnsInput:
    """The source of one input: one column, or several columns side by side, as rows of `shape`.

    `dtype` None is text.
    """

    columns: tuple[str, ...]
    dtype: np.dtype[Any] | None
    shape: tuple[int, ...]


class TableDecoder(Decoder):
    """A decoder of columns of tables to tensors ``[n, *shape]``, one per input.

    Flat columns are converted as arrays, without an object per value. Text becomes object arrays of
    str or bytes.

    Numbers are cast to floating types as numpy casts them; NaN stays NaN. Only integers in range
    are cast to integer types, and true and false become 1 and 0. A row in which a required column
    is null or does not fit becomes a failure (kind DECODE) and is in no input. Columns that hold
    lists are decoded from the row's JSON by `JsonDecoder`, for inputs of one column.
    """

    def __init__(self, inputs: Mapping[str, ColumnsInput]) -> None:
        self._inputs = dict(inputs)

    @override
    def decode(self, block: Block) -> DecodedBlock:
        reasons: FailureReasons = {}
        tensors = {name: _input_tensor(block, spec, reasons) for name, spec in self._inputs.items()}
        return DecodedBlock.with_failures(tensors, block, reasons, all_rows=True)


def _input_tensor(block: Block, spec: ColumnsInput, reasons: FailureReasons) -> Array:
    """Return the tensor of one input over all rows. Its values in failed rows are undefined."""
    single = spec.columns[0] if len(spec.columns) == 1 else None
    if single is not None and (_flat_column(block, single) is None or prod(spec.shape) != 1):
        # The column is missing, or it holds lists or another shape; the row's JSON yields the
        # reason.
        return _from_json(block, single, spec.dtype, spec.shape, reasons)
    parts = [_column_tensor(block, column, spec.dtype, reasons) for column in spec.columns]
    stacked = parts[0] if single is not None else np.stack(parts, axis=1)
    return stacked.reshape(len(block), *spec.shape)


def _column_tensor(block: Block, column: str, dtype: np.dtype[Any] | None, reasons: FailureReasons) -> Array:
    values = _flat_column(block, column)
    if values is None:
        return _from_json(block, column, dtype, (), reasons)
    result, bad = _cast(values, dtype)
    for index in bad:
        if index not in reasons:
            type_name = "text" if dtype is None else str(dtype)
            why = f'column "{column}" is not {type_name}, but {_excerpt(values[index])}'
            reasons[index] = (FailureKind.DECODE, why)
    return result


def _flat_column(block: Block, column: str) -> Array | None:
    """Return a flat column of the block's table. Failed records that are tried again are only text."""
    return None if block.table is None else block.table.array(column)


def _from_json(
    block: Block,
    column: str,
    dtype: np.dtype[Any] | None,
    shape: tuple[int, ...],
    reasons: FailureReasons,
) -> Array:
    reader = JsonDecoder({column: JsonField(column, "text" if dtype is None else dtype, shape)})
    decoded = reader.decode(block if block.table is None else _as_lines(block, block.table, column))
    for failure in decoded.failures:
        reasons.setdefault(block.index_of(failure.position.record), (failure.kind, failure.why))
    result = np.zeros((len(block), *shape), object if dtype is None else dtype)
    if len(decoded.tensors[column]):
        result[slice(None) if decoded.rows is None else decoded.rows] = decoded.tensors[column]
    return result


def _as_lines(block: Block, table: RecordTable, column: str) -> Block:
    """Return the records as JSON lines, which have only the column (its name may go on with fields)."""
    name = column if column in table.names else column.partition(".")[0]
    texts = (table.select([name]) if name in table.names else table).texts()
    ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)) + 1)
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])[: len(texts)]
    return Block(block.first, b"\n".join(texts) + b"\n", starts, ends - 1, places=block.places)


def _cast(values: Array, dtype: np.dtype[Any] | None) -> tuple[Array, list[int]]:
    """Convert a column to a dtype or to text.

    Return it with the indices of the rows that do not fit.
    """
    if dtype is None:
        return _as_text(values)
    source, nulls = values_dtype(values), np.zeros(len(values), bool)
    if source.kind == "O":
        return np.zeros(len(values), dtype), list(range(len(values)))
    if values.dtype.kind == "O":
        nulls = values == None  # noqa: E711 - element by element
        values = np.where(nulls, 0, values).astype(source)
    bad = nulls | ~_fits_dtype(values, dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        # Convert through float64, as the other decoders do.
        result = (values.astype(np.float64) if dtype.kind == "f" else values).astype(dtype)
    return result, np.flatnonzero(bad).tolist()


def _as_text(values: Array) -> tuple[Array, list[int]]:
    if values_dtype(values).kind != "O":
        return np.empty(len(values), object), list(range(len(values)))
    return values, np.flatnonzero(values == None).tolist()  # noqa: E711 - element by element


def _fits_dtype(values: Array, dtype: np.dtype[Any]) -> NDArray[np.bool_]:
    """Return a mask of the numbers that may be cast to `dtype`. The rules are those of JSON input."""
    source, target = values.dtype.kind, dtype.kind
    if target == "f" or source == target == "b":
        return np.ones(len(values), bool)
    if target == "b" or source == "f":
        return np.zeros(len(values), bool)
    if source == "b":
        return np.ones(len(values), bool)
    bounds = np.iinfo(dtype)
    fits: NDArray[np.bool_] = (values >= bounds.min) & (values <= bounds.max)
    return fits


def _excerpt(value: Any) -> str:
    text = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY, default=repr).decode()
    return text if len(text) <= _EXCERPT_CHARS else text[:_EXCERPT_CHARS] + "…"
