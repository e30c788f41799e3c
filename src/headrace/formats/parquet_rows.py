"""Convert Arrow columns to rows of JSON text, and flat columns to numpy arrays.

Importing this module requires pyarrow.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray

from headrace.core.errors import MissingExtraError
from headrace.core.tensor import Array, text_array
from headrace.formats import arrow
from headrace.formats.column_decode import nullable_array
from headrace.formats.encode import json_text

_pa, _ = arrow.parquet_modules()
_types: Any = _pa.types
_NULL: Final = b"null"


def rows_text(columns: Sequence[tuple[str, Any]]) -> tuple[list[bytes], dict[str, Array]]:
    """Return each row as a JSON object, and the flat columns as arrays ``[rows]``.

    `columns` are Arrow arrays of equal length.

    JSON: numbers have the fewest digits that read back the same value. NaN and infinities are null.
    Decimals have all their digits. Dates and times have ISO 8601 format (with a zone, in UTC: Z).
    Durations are integers in their own unit. Lists are arrays, structs are objects, and maps are
    arrays of pairs. Bytes are strings if they are UTF-8, else ``{"base64": "..."}``.

    Arrays: numbers and booleans have their dtype (decimals float64). Text, dates and times are
    objects of str; bytes are objects of bytes. Columns with nulls are arrays of objects with None
    (`parquet_decode.nullable_array`).

    Raises MissingExtraError for nested times of nanoseconds, which need pandas.
    """
    texts: list[Sequence[bytes]] = []
    arrays: dict[str, Array] = {}
    for name, column in columns:
        column_texts, array = _column_values(name, column)
        texts.append(column_texts)
        if array is not None:
            arrays[name] = array
    keys = (json_text(name).replace(b"%", b"%%") + b":%b" for name, _ in columns)
    template = b"{" + b",".join(keys) + b"}"
    return [template % row for row in zip(*texts, strict=True)], arrays


def _column_values(name: str, column: Any) -> tuple[Sequence[bytes], Array | None]:
    """Return a column's values as JSON, and its array if the column is flat."""
    if _types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    if isinstance(kind, _pa.BaseExtensionType):
        return _column_values(name, column.storage)
    if _types.is_boolean(kind) or _types.is_integer(kind) or _types.is_floating(kind):
        return _number_values(column)
    if _types.is_decimal(kind):
        exact = column.cast(_pa.string()).to_pylist()
        texts = [_NULL if text is None else text.encode() for text in exact]
        return texts, _number_values(column.cast(_pa.float64()))[1]
    if _types.is_duration(kind):
        return _number_values(column.cast(_pa.int64()))
    if _types.is_nested(kind):
        return [json_text(value) for value in _nested_values(name, column)], None
    if _types.is_null(kind):
        return [_NULL] * len(column), None
    values = _time_texts(column) if _types.is_temporal(kind) else _text_values(column)
    return [json_text(value) for value in values], text_array(values)


def _number_values(column: Any) -> tuple[Sequence[bytes], Array]:
    if not column.null_count:
        array: NDArray[Any] = column.to_numpy(zero_copy_only=False)
        return _number_texts(array), array
    nulls: NDArray[np.bool_] = column.is_null().to_numpy(zero_copy_only=False)
    filled: NDArray[Any] = column.fill_null(False if _types.is_boolean(column.type) else 0).to_numpy(
        zero_copy_only=False
    )
    texts, values = _number_texts(filled), filled.tolist()
    for index in np.flatnonzero(nulls).tolist():
        texts[index], values[index] = _NULL, None
    return texts, nullable_array(values, filled.dtype)


def _number_texts(array: NDArray[Any]) -> list[bytes]:
    text = orjson.dumps(np.ascontiguousarray(array), option=orjson.OPT_SERIALIZE_NUMPY)
    return text[1:-1].split(b",")


def _time_texts(column: Any) -> list[Any]:
    kind = column.type
    if not _types.is_timestamp(kind):
        return column.cast(_pa.string()).to_pylist()
    zone = "" if kind.tz is None else "Z"
    # Removing the zone yields the time in UTC.
    texts = column.cast(_pa.timestamp(kind.unit)).cast(_pa.string()).to_pylist()
    return [None if text is None else text.replace(" ", "T") + zone for text in texts]


def _text_values(column: Any) -> list[Any]:
    """Return the values as str or bytes.

    In a text column the values that are not UTF-8 become bytes.
    """
    try:
        return column.to_pylist()
    except UnicodeDecodeError:
        values = column.cast(_pa.large_binary()).to_pylist()
        return [_text_or_bytes(value) for value in values]


def _text_or_bytes(value: bytes | None) -> str | bytes | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return value


def _nested_values(name: str, column: Any) -> list[Any]:
    try:
        return column.to_pylist()
    except UnicodeDecodeError:
        raise
    except ValueError as error:
        needed_for = f"column {name!r}, whose lists or structs hold times of nanoseconds,"
        raise MissingExtraError("pandas", needed_for) from error
