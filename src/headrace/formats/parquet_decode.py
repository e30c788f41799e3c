"""Rows of Parquet to a model's inputs: flat columns as arrays, without an object for each value; others from their JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray

from headrace.core.block import Block, Failure, FailureKind
from headrace.core.tensor import Array
from headrace.formats.contract import Decoded
from headrace.formats.json_decode import JsonDecoder, JsonField

_DTYPE: Final = "dtype"
_EXCERPT_CHARS: Final = 80


def nullable(values: Sequence[Any], dtype: np.dtype[Any]) -> Array:
    """Values of a dtype, or None, as an array of objects that knows the dtype; `values_dtype` tells it."""
    made = np.empty(len(values), np.dtype(object, metadata={_DTYPE: dtype}))
    made[:] = values
    return made


def values_dtype(column: Array) -> np.dtype[Any]:
    """The dtype of a column's values: of one with nulls, that of the others; object is text."""
    metadata = column.dtype.metadata
    return column.dtype if metadata is None else metadata.get(_DTYPE, column.dtype)


@dataclass(frozen=True, slots=True)
class ColumnsInput:
    """What one input is made of: one column, or several side by side, as rows of `shape`. `dtype` None is text."""

    columns: tuple[str, ...]
    dtype: np.dtype[Any] | None
    shape: tuple[int, ...]


class ParquetDecoder:
    """Columns to tensors ``[n, *shape]``, one for each input; of text, object arrays of str or bytes.

    Numbers are cast to floating types as numpy does, NaN stays NaN; to integers only integers that are in range, and
    true and false, as 1 and 0. A row in which a wanted column is null or does not fit is a failure (kind DECODE), and is
    in no input. Columns that hold lists are read from the row's JSON, as `JsonDecoder` does, for inputs of one column.
    """

    def __init__(self, inputs: Mapping[str, ColumnsInput]) -> None:
        self._inputs = dict(inputs)

    def decode(self, block: Block) -> Decoded:
        """Every wanted column of every row."""
        whys: dict[int, Failure] = {}
        found = {name: _input(block, made_of, whys) for name, made_of in self._inputs.items()}
        if not whys:
            return Decoded(found)
        rows = np.setdiff1d(np.arange(len(block)), list(whys), assume_unique=True)
        kept = {name: data[rows] for name, data in found.items()}
        return Decoded(kept, rows, tuple(whys[index] for index in sorted(whys)))


def _input(block: Block, made_of: ColumnsInput, whys: dict[int, Failure]) -> Array:
    """One input's tensor over all rows; what it is where a row fails says nothing."""
    alone = made_of.columns[0] if len(made_of.columns) == 1 else None
    if alone is not None and (alone not in block.columns or prod(made_of.shape) != 1):
        # It holds lists, or is not there, or not what is wanted: its JSON says so.
        return _from_json(block, alone, made_of.dtype, made_of.shape, whys)
    parts = [_column(block, column, made_of.dtype, whys) for column in made_of.columns]
    stacked = parts[0] if alone is not None else np.stack(parts, axis=1)
    return stacked.reshape(len(block), *made_of.shape)


def _column(block: Block, column: str, dtype: np.dtype[Any] | None, whys: dict[int, Failure]) -> Array:
    values = block.columns.get(column)
    if values is None:
        return _from_json(block, column, dtype, (), whys)
    made, bad = _cast(values, dtype)
    for index in bad:
        if index not in whys:
            wanted = "text" if dtype is None else str(dtype)
            why = f'column "{column}" is not {wanted}, but {_excerpt(values[index])}'
            whys[index] = block.failure(index, FailureKind.DECODE, why)
    return made


def _from_json(
    block: Block, column: str, dtype: np.dtype[Any] | None, shape: tuple[int, ...], whys: dict[int, Failure]
) -> Array:
    reader = JsonDecoder({column: JsonField(column, "text" if dtype is None else dtype, shape)})
    decoded = reader.decode(block)
    for failure in decoded.failures:
        whys.setdefault(failure.position.record - block.first.record, failure)
    made = np.zeros((len(block), *shape), object if dtype is None else dtype)
    if len(decoded.tensors[column]):
        made[slice(None) if decoded.rows is None else decoded.rows] = decoded.tensors[column]
    return made


def _cast(values: Array, dtype: np.dtype[Any] | None) -> tuple[Array, list[int]]:
    """A column as a dtype, or as text, and the rows that cannot be."""
    if dtype is None:
        return _as_text(values)
    have, nulls = values_dtype(values), np.zeros(len(values), bool)
    if have.kind == "O":
        return np.zeros(len(values), dtype), list(range(len(values)))
    if values.dtype.kind == "O":
        nulls = values == None  # noqa: E711 - element by element
        values = np.where(nulls, 0, values).astype(have)
    bad = nulls | ~_fits(values, dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        # By way of float64, as every other way has it.
        made = (values.astype(np.float64) if dtype.kind == "f" else values).astype(dtype)
    return made, np.flatnonzero(bad).tolist()


def _as_text(values: Array) -> tuple[Array, list[int]]:
    if values_dtype(values).kind != "O":
        return np.empty(len(values), object), list(range(len(values)))
    return values, np.flatnonzero(values == None).tolist()  # noqa: E711 - element by element


def _fits(values: Array, dtype: np.dtype[Any]) -> NDArray[np.bool_]:
    """Which numbers may become the dtype; what JSON may, for the same reasons."""
    have, want = values.dtype.kind, dtype.kind
    if want == "f" or have == want == "b":
        return np.ones(len(values), bool)
    if want == "b" or have == "f":
        return np.zeros(len(values), bool)
    if have == "b":
        return np.ones(len(values), bool)
    bounds = np.iinfo(dtype)
    fits: NDArray[np.bool_] = (values >= bounds.min) & (values <= bounds.max)
    return fits


def _excerpt(value: Any) -> str:
    text = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY, default=repr).decode()
    return text if len(text) <= _EXCERPT_CHARS else text[:_EXCERPT_CHARS] + "…"
