"""A column's values as what one input takes: an array of one type, and why a row's value is none.

A value that does not fit costs its row, whatever else is in the batch, since Ray cuts batches as it likes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import isnan
from typing import Any, Literal, cast

import numpy as np

from headrace.core.tensor import Array, ModelMetadata, TensorSpec, dtype_of, text_array

Text = Literal["str", "bytes", "sent"]
_NUMBERS = "biuf"


class _UnfitError(Exception):
    """A value is not what the input takes; the message says what it is, behind the name of its column."""


@dataclass(frozen=True, slots=True)
class Cells:
    """One input's values: `dense` with a row for each row, or `ragged`, an array a row (None where it failed).

    What a failed row holds says nothing; `whys` says why it failed.
    """

    whys: dict[int, str]
    dense: Array | None = None
    ragged: Sequence[Array | None] = field(default=())

    def shape(self, row: int) -> tuple[int, ...]:
        """The shape of a row that did not fail."""
        if self.dense is not None:
            return self.dense.shape[1:]
        cell = self.ragged[row]
        assert cell is not None
        return cell.shape

    def of(self, rows: Array) -> Array:
        """The values of rows that did not fail and have one shape."""
        if self.dense is not None:
            return self.dense if len(rows) == len(self.dense) else self.dense[rows]
        chosen = [cast("Array", self.ragged[row]) for row in rows.tolist()]
        if not chosen:
            return np.empty(0)
        if chosen[0].dtype == object and chosen[0].ndim == 0:
            return text_array([cell.item() for cell in chosen])
        return np.stack(chosen)


def text_of(metadata: ModelMetadata, *, at_endpoint: bool) -> Text:
    """What the elements of text inputs are to be; an endpoint is sent bytes as they are."""
    return "sent" if at_endpoint else metadata.bytes_as


def cells_of(column: Array, spec: TensorSpec, text: Text) -> Cells:
    """A column's values for an input of a declared type; of a type that is only guessed, whatever they are."""
    guessed = spec.shape is None and spec.datatype == "FP32"
    if spec.datatype == "BYTES" or (guessed and _holds_text(column)):
        return _each(column, lambda value: _shaped(_text(value, text), spec))
    # numpy has no BF16: models of it take the same values widened.
    dtype = np.dtype(np.float32) if spec.datatype == "BF16" else dtype_of(spec.datatype)
    if column.dtype.kind not in _NUMBERS:
        return _each(column, lambda value: _shaped(_number(value, dtype), spec))
    fits = _fits(column, dtype)
    whys: dict[int, str] = {}
    if not fits.all():
        by_row = fits.reshape(len(fits), -1)
        for row in np.flatnonzero(~by_row.all(axis=1)).tolist():
            value = column[row].reshape(-1)[int(np.argmin(by_row[row]))] if column.ndim > 1 else column[row]
            whys[row] = _unfit(value, dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        return Cells(whys, dense=column.astype(dtype, copy=False))


def _holds_text(column: Array) -> bool:
    if column.dtype.kind != "O":
        return column.dtype.kind in "US"
    return isinstance(_first(column), str | bytes)


def _first(value: Any) -> Any:
    """The first value that there is, however deep in lists; None where there is none."""
    if not isinstance(value, list | np.ndarray):
        return value
    found = (_first(part) for part in cast("list[Any]", value))
    return next((one for one in found if one is not None), None)


def _shaped(cell: Array, spec: TensorSpec) -> Array:
    """A single value as a vector of one, or the other way round, where the model has it so."""
    axes = cell.ndim if spec.shape is None else len(spec.shape) - 1
    return cell.reshape((1,) * axes) if {axes, cell.ndim} == {0, 1} and cell.size == 1 else cell


def _each(column: Array, convert: Callable[[Any], Array]) -> Cells:
    """Value by value."""
    made: list[Array | None] = []
    whys: dict[int, str] = {}
    for row, value in enumerate(column):
        try:
            made.append(convert(value))
        except _UnfitError as error:
            made.append(None)
            whys[row] = str(error)
    return Cells(whys, ragged=made)


def _is_null(value: Any) -> bool:
    """None, and NaN in the place of an object: that is what Ray makes of a null in a column that it knows no type of."""
    return value is None or (isinstance(value, float | np.floating) and isnan(float(cast("Any", value))))


def _text(value: Any, text: Text) -> Array:
    if isinstance(value, (list, np.ndarray)):
        parts = [_text(part, text) for part in cast("list[Any]", value)]
        if len({part.shape for part in parts}) > 1:
            raise _UnfitError("holds lists of different lengths")
        made = np.empty((len(parts), *(parts[0].shape if parts else ())), object)
        for index, part in enumerate(parts):
            made[index] = part.item() if part.ndim == 0 else part
        return made
    one = np.empty((), object)
    one[()] = _one_text(value, text)
    return one


def _one_text(value: Any, text: Text) -> str | bytes:
    if _is_null(value):
        raise _UnfitError("is null")
    if isinstance(value, str):
        return value.encode() if text == "bytes" else str(value)
    if not isinstance(value, bytes):
        raise _UnfitError(f"is {_type_name(value)}, where the model takes text")
    if text != "str":
        return bytes(value)
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise _UnfitError(f"is no UTF-8: {error}") from None


def _number(value: Any, dtype: np.dtype[Any]) -> Array:
    array = _array_of(value)
    fits = _fits(array, dtype)
    if not fits.all():
        raise _UnfitError(_unfit(array.reshape(-1)[int(np.argmin(fits.reshape(-1)))], dtype))
    with np.errstate(over="ignore", invalid="ignore"):
        return array.astype(dtype)


def _array_of(value: Any) -> Array:
    """Numbers, or lists of them, in one array: Ray gives lists of lists as arrays of arrays."""
    if value is None:
        raise _UnfitError("is null")
    if isinstance(value, list) or (isinstance(value, np.ndarray) and cast("Array", value).dtype == object):
        parts = [_array_of(part) for part in cast("list[Any]", value)]
        if len({part.shape for part in parts}) > 1:
            raise _UnfitError("holds lists of different lengths")
        return np.stack(parts) if parts else np.empty(0)
    if isinstance(value, (str, bytes)):
        raise _UnfitError("is text, where the model takes numbers")
    one = cast("Any", value)
    array: Array = np.asarray(one)
    if array.dtype.kind not in _NUMBERS:
        raise _UnfitError(f"is {_type_name(one)}, where the model takes numbers")
    return array


def _fits(values: Array, dtype: np.dtype[Any]) -> Array:
    """Which numbers may become the dtype: all may become floats; whole ones in range integers, true and false too; those alone bools."""
    have, want = values.dtype.kind, dtype.kind
    if want == "f" or have == want == "b":
        return np.ones(values.shape, bool)
    if want == "b":
        return np.zeros(values.shape, bool)
    if have == "b":
        return np.ones(values.shape, bool)
    bounds = np.iinfo(dtype)
    if have != "f":
        return (values >= bounds.min) & (values <= bounds.max)
    # A column of integers with a null is one of floats to Ray. The upper bound as a float may be one too many.
    wide = values.astype(np.float64)
    return (wide == np.floor(wide)) & (wide >= float(bounds.min)) & (wide < float(bounds.max) + 1)


def _unfit(value: Any, dtype: np.dtype[Any]) -> str:
    if _is_null(value):
        return f"is null or NaN, where the model takes {dtype}"
    return f"holds {value}, which is no {dtype}"


def _type_name(value: object) -> str:
    return type(value).__name__
