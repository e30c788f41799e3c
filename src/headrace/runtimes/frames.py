"""Columns by name as a pandas DataFrame, and back. The one door to pandas."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from headrace.core.errors import MissingExtraError
from headrace.core.tensor import Array

try:
    import pandas as _pandas  # noqa: ICN001 - `pd` is what is told to have no types
except ImportError as _error:
    raise MissingExtraError("pandas", "a model of named columns") from _error

pd: Any = _pandas  # its stubs are a package of their own


def frame_of(columns: Mapping[str, Array]) -> Any:
    """A DataFrame of columns, each ``[n]`` or ``[n, 1]``; text stays objects of str. Numbers are not copied where pandas allows it."""
    flat = {name: data.reshape(len(data)) for name, data in columns.items()}
    return pd.DataFrame(
        {n: pd.Series(d, dtype=object) if d.dtype == object else d for n, d in flat.items()}, copy=False
    )


def is_frame(value: object) -> bool:
    """Whether this is a DataFrame or a Series."""
    return isinstance(value, (pd.DataFrame, pd.Series))


def columns_of(frame: Any) -> dict[str, Array]:
    """A DataFrame's columns as arrays ``[n]``, a Series as the one column of its name (or ``output``).

    Numbers keep their type. What numpy knows only as objects stays so; missing values of pandas' own number types
    are NaN. Dates are numpy's, in UTC.
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
