"""Columns by name as a pandas DataFrame, and back. The only module that imports pandas."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from headrace.core.errors import MissingExtraError
from headrace.core.tensor import Array

try:
    import pandas as _pandas  # noqa: ICN001 - `pd` is what is told to have no types
except ImportError as _error:
    raise MissingExtraError("pandas", "a model of named columns") from _error

pd: Any = _pandas  # The type stubs of pandas are a separate package.


def frame_from_columns(columns: Mapping[str, Array]) -> Any:
    """Return a DataFrame of columns of shape ``[n]`` or ``[n, 1]``.

    Text stays objects of str. Numbers are not copied if pandas allows it.
    """
    flat = {name: data.reshape(len(data)) for name, data in columns.items()}
    return pd.DataFrame(
        {n: pd.Series(d, dtype=object) if d.dtype == object else d for n, d in flat.items()}, copy=False
    )


def is_frame(value: object) -> bool:
    """Return True for a DataFrame or a Series."""
    return isinstance(value, (pd.DataFrame, pd.Series))


def columns_from_frame(frame: Any) -> dict[str, Array]:
    """Return a DataFrame's columns as arrays ``[n]``.

    A Series is one column of its name (else ``output``).

    Numbers keep their type. Columns without a numpy type stay objects. Missing values of pandas'
    own number types become NaN. Dates become numpy dates in UTC.
    """
    if isinstance(frame, pd.Series):
        return {str(frame.name) if frame.name is not None else "output": _array(frame)}
    return {str(name): _array(frame[name]) for name in frame.columns}


def _array(series: Any) -> Array:
    if pd.api.types.is_bool_dtype(series.dtype) and not series.hasnans:
        return series.to_numpy(dtype=bool)
    if pd.api.types.is_numeric_dtype(series.dtype):
        if isinstance(series.dtype, np.dtype):
            return series.to_numpy()
        whole = pd.api.types.is_integer_dtype(series.dtype) and not series.hasnans
        return series.to_numpy(dtype=np.int64 if whole else np.float64, na_value=np.nan)
    if pd.api.types.is_datetime64_any_dtype(series.dtype):
        return (series if series.dt.tz is None else series.dt.tz_convert(None)).to_numpy()
    return series.astype(object).to_numpy()
