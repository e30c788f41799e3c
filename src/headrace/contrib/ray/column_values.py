"""Conversion of a column's values for one input.

The result is an array of one type, and the reasons of rows that do not fit.

A value that does not fit fails only its own row, in any batch: Ray chooses which rows
share a batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import isnan
from typing import Any, Literal, cast

import numpy as np

from headrace.core.tensor import Array, ModelMetadata, TensorSpec, dtype_of, text_array

TextType = Literal["str", "bytes", "sent"]
_NUMBERS = "biuf"


class _UnsuitableValueError(Exception):
    """A value that the input does not accept.

    The message describes it, to follow the name of its column.
    """


@dataclass(frozen=True, slots=True)
class ColumnValues:
    """The values of one input.

    Either `dense`, with an entry per row, or `ragged`, an array per row (None for a failed row).
    `reasons` says why rows failed. The entry of a failed row has no meaning.
    """

    reasons: dict[int, str]
    dense: Array | None = None
    ragged: Sequence[Array | None] = field(default=())

    def shape(self, row: int) -> tuple[int, ...]:
        """Return the shape of a row that did not fail."""
        if self.dense is not None:
            return self.dense.shape[1:]
        value_array = self.ragged[row]
        assert value_array is not None
        return value_array.shape

    def take(self, rows: Array) -> Array:
        """Return the values of rows that did not fail and have one shape."""
        if self.dense is not None:
            return self.dense if len(rows) == len(self.dense) else self.dense[rows]
        chosen = [cast("Array", self.ragged[row]) for row in rows.tolist()]
        if not chosen:
            return np.empty(0)
        if chosen[0].dtype == object and chosen[0].ndim == 0:
            return text_array([value_array.item() for value_array in chosen])
        return np.stack(chosen)


def text_type_for(metadata: ModelMetadata, *, at_endpoint: bool) -> TextType:
    """Return the type of the elements of text inputs. Bytes are sent to an endpoint unchanged."""
    return "sent" if at_endpoint else metadata.bytes_as


def convert_column(column: Array, spec: TensorSpec, text: TextType) -> ColumnValues:
    """Return a column's values for an input of a declared type.

    An undeclared type accepts any values.
    """
    guessed = spec.shape is None and spec.datatype == "FP32"
    if spec.datatype == "BYTES" or (guessed and _holds_text(column)):
        return _convert_each(column, lambda value: _match_axes(_text_array(value, text), spec))
    # numpy has no BF16: such models take the same values as float32.
    dtype = np.dtype(np.float32) if spec.datatype == "BF16" else dtype_of(spec.datatype)
    if column.dtype.kind not in _NUMBERS:
        return _convert_each(column, lambda value: _match_axes(_number_array(value, dtype), spec))
    fits = _fits(column, dtype)
    reasons: dict[int, str] = {}
    if not fits.all():
        by_row = fits.reshape(len(fits), -1)
        for row in np.flatnonzero(~by_row.all(axis=1)).tolist():
            value = column[row].reshape(-1)[int(np.argmin(by_row[row]))] if column.ndim > 1 else column[row]
            reasons[row] = _describe_unsuitable(value, dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        return ColumnValues(reasons, dense=column.astype(dtype, copy=False))


def _holds_text(column: Array) -> bool:
    if column.dtype.kind != "O":
        return column.dtype.kind in "US"
    return isinstance(_first(column), str | bytes)


def _first(value: Any) -> Any:
    """Return the first value in nested lists, None if there is none."""
    if not isinstance(value, list | np.ndarray):
        return value
    found = (_first(part) for part in cast("list[Any]", value))
    return next((one for one in found if one is not None), None)


def _match_axes(value_array: Array, spec: TensorSpec) -> Array:
    """Return a single value as a vector of one, or the reverse, if the model declares that shape."""
    axes = value_array.ndim if spec.shape is None else len(spec.shape) - 1
    return (
        value_array.reshape((1,) * axes)
        if {axes, value_array.ndim} == {0, 1} and value_array.size == 1
        else value_array
    )


def _convert_each(column: Array, convert: Callable[[Any], Array]) -> ColumnValues:
    """Convert value by value."""
    made: list[Array | None] = []
    reasons: dict[int, str] = {}
    for row, value in enumerate(column):
        try:
            made.append(convert(value))
        except _UnsuitableValueError as error:
            made.append(None)
            reasons[row] = str(error)
    return ColumnValues(reasons, ragged=made)


def _is_null(value: Any) -> bool:
    """Return True for None and for NaN among objects.

    Ray makes NaN of a null in a column of unknown type.
    """
    return value is None or (isinstance(value, float | np.floating) and isnan(float(cast("Any", value))))


def _text_array(value: Any, text: TextType) -> Array:
    if isinstance(value, (list, np.ndarray)):
        parts = [_text_array(part, text) for part in cast("list[Any]", value)]
        if len({part.shape for part in parts}) > 1:
            raise _UnsuitableValueError("has lists of different lengths")
        made = np.empty((len(parts), *(parts[0].shape if parts else ())), object)
        for index, part in enumerate(parts):
            made[index] = part.item() if part.ndim == 0 else part
        return made
    one = np.empty((), object)
    one[()] = _text_value(value, text)
    return one


def _text_value(value: Any, text: TextType) -> str | bytes:
    if _is_null(value):
        raise _UnsuitableValueError("is null")
    if isinstance(value, str):
        return value.encode() if text == "bytes" else str(value)
    if not isinstance(value, bytes):
        raise _UnsuitableValueError(f"has type {_type_name(value)}, but the model takes text")
    if text != "str":
        return bytes(value)
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise _UnsuitableValueError(f"is not UTF-8: {error}") from None


def _number_array(value: Any, dtype: np.dtype[Any]) -> Array:
    array = _array_of(value)
    fits = _fits(array, dtype)
    if not fits.all():
        raise _UnsuitableValueError(
            _describe_unsuitable(array.reshape(-1)[int(np.argmin(fits.reshape(-1)))], dtype)
        )
    with np.errstate(over="ignore", invalid="ignore"):
        return array.astype(dtype)


def _array_of(value: Any) -> Array:
    """Return numbers, or lists of them, as one array.

    Ray passes lists of lists as arrays of arrays.
    """
    if value is None:
        raise _UnsuitableValueError("is null")
    if isinstance(value, list) or (isinstance(value, np.ndarray) and cast("Array", value).dtype == object):
        parts = [_array_of(part) for part in cast("list[Any]", value)]
        if len({part.shape for part in parts}) > 1:
            raise _UnsuitableValueError("has lists of different lengths")
        return np.stack(parts) if parts else np.empty(0)
    if isinstance(value, (str, bytes)):
        raise _UnsuitableValueError("is text, but the model takes numbers")
    one = cast("Any", value)
    array: Array = np.asarray(one)
    if array.dtype.kind not in _NUMBERS:
        raise _UnsuitableValueError(f"has type {_type_name(one)}, but the model takes numbers")
    return array


def _fits(values: Array, dtype: np.dtype[Any]) -> Array:
    """Return a mask of the numbers that convert to the dtype.

    Every number converts to a float. Whole numbers in range, and booleans, convert to an integer.
    Only booleans convert to a boolean.
    """
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
    # Ray makes floats of a column of integers with a null. The upper bound as a float may be one
    # too large.
    wide = values.astype(np.float64)
    return (wide == np.floor(wide)) & (wide >= float(bounds.min)) & (wide < float(bounds.max) + 1)


def _describe_unsuitable(value: Any, dtype: np.dtype[Any]) -> str:
    if _is_null(value):
        return f"is null or NaN, but the model takes {dtype}"
    return f"has the value {value}, which is not a valid {dtype}"


def _type_name(value: object) -> str:
    return type(value).__name__
