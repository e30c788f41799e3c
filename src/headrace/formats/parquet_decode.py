"""Convert rows of Parquet to model inputs.

Flat columns are converted as arrays, without an object per value. Other columns are decoded from
the JSON of the rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray
from typing_extensions import override

from headrace.core.block import Block, Failure, FailureKind
from headrace.core.tensor import Array
from headrace.formats.contract import DecodedBlock, Decoder
from headrace.formats.json_decode import JsonDecoder, JsonField

_DTYPE: Final = "dtype"
_EXCERPT_CHARS: Final = 80


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


class ParquetDecoder(Decoder):
    """A decoder of columns to tensors ``[n, *shape]``, one per input.

    Text becomes object arrays of str or bytes.

    Numbers are cast to floating types as numpy casts them; NaN stays NaN. Only integers in range
    are cast to integer types, and true and false become 1 and 0. A row in which a required column
    is null or does not fit becomes a failure (kind DECODE) and is in no input. Columns that hold
    lists are decoded from the row's JSON by `JsonDecoder`, for inputs of one column.
    """

    def __init__(self, inputs: Mapping[str, ColumnsInput]) -> None:
        self._inputs = dict(inputs)

    @override
    def decode(self, block: Block) -> DecodedBlock:
        failures: dict[int, Failure] = {}
        tensors = {name: _input_tensor(block, spec, failures) for name, spec in self._inputs.items()}
        if not failures:
            return DecodedBlock(tensors)
        rows = np.setdiff1d(np.arange(len(block)), list(failures), assume_unique=True)
        decoded_tensors = {name: data[rows] for name, data in tensors.items()}
        return DecodedBlock(decoded_tensors, rows, tuple(failures[index] for index in sorted(failures)))


def _input_tensor(block: Block, spec: ColumnsInput, failures: dict[int, Failure]) -> Array:
    """Return the tensor of one input over all rows. Its values in failed rows are undefined."""
    single = spec.columns[0] if len(spec.columns) == 1 else None
    if single is not None and (single not in block.columns or prod(spec.shape) != 1):
        # The column is missing, or it holds lists or another shape; the row's JSON yields the
        # reason.
        return _from_json(block, single, spec.dtype, spec.shape, failures)
    parts = [_column_tensor(block, column, spec.dtype, failures) for column in spec.columns]
    stacked = parts[0] if single is not None else np.stack(parts, axis=1)
    return stacked.reshape(len(block), *spec.shape)


def _column_tensor(
    block: Block, column: str, dtype: np.dtype[Any] | None, failures: dict[int, Failure]
) -> Array:
    values = block.columns.get(column)
    if values is None:
        return _from_json(block, column, dtype, (), failures)
    result, bad = _cast(values, dtype)
    for index in bad:
        if index not in failures:
            type_name = "text" if dtype is None else str(dtype)
            why = f'column "{column}" is not {type_name}, but {_excerpt(values[index])}'
            failures[index] = block.failure(index, FailureKind.DECODE, why)
    return result


def _from_json(
    block: Block,
    column: str,
    dtype: np.dtype[Any] | None,
    shape: tuple[int, ...],
    failures: dict[int, Failure],
) -> Array:
    reader = JsonDecoder({column: JsonField(column, "text" if dtype is None else dtype, shape)})
    decoded = reader.decode(block)
    for failure in decoded.failures:
        failures.setdefault(failure.position.record - block.first.record, failure)
    result = np.zeros((len(block), *shape), object if dtype is None else dtype)
    if len(decoded.tensors[column]):
        result[slice(None) if decoded.rows is None else decoded.rows] = decoded.tensors[column]
    return result


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
