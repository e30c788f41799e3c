"""Arrow columns as rows of JSON text, and as numpy arrays where they are flat. Importing this needs pyarrow."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray

from headrace.core.errors import MissingExtraError
from headrace.core.tensor import Array, text_array
from headrace.formats import arrow
from headrace.formats.encode import json_text
from headrace.formats.parquet_decode import nullable

_pa, _ = arrow.parquet_modules()
_types: Any = _pa.types
_NULL: Final = b"null"


def rows_text(columns: Sequence[tuple[str, Any]]) -> tuple[list[bytes], dict[str, Array]]:
    """Each row as a JSON object, and the flat columns as arrays ``[rows]``. The columns are Arrow arrays of one length.

    JSON: numbers in the fewest digits that read back the same; NaN and infinities null; decimals with all their
    digits; dates and times as ISO 8601 has them (with a zone, in UTC: Z); durations as integers in their own unit; bytes
    as strings where they are UTF-8, else ``{"base64": "..."}``; lists as arrays, structs as objects, maps as arrays of
    pairs.

    Arrays: numbers and booleans with their dtype (decimals as float64), text, dates and times as objects str, bytes as
    objects bytes. Where there are nulls they are None in an array of objects (`parquet_decode.nullable`).

    Raises MissingExtraError for nested times of nanoseconds, which need pandas.
    """
    texts: list[Sequence[bytes]] = []
    arrays: dict[str, Array] = {}
    for name, column in columns:
        written, array = _column(name, column)
        texts.append(written)
        if array is not None:
            arrays[name] = array
    keys = (json_text(name).replace(b"%", b"%%") + b":%b" for name, _ in columns)
    template = b"{" + b",".join(keys) + b"}"
    return [template % row for row in zip(*texts, strict=True)], arrays


def _column(name: str, column: Any) -> tuple[Sequence[bytes], Array | None]:
    """A column's values as JSON, and its array when it is flat."""
    if _types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    if isinstance(kind, _pa.BaseExtensionType):
        return _column(name, column.storage)
    if _types.is_boolean(kind) or _types.is_integer(kind) or _types.is_floating(kind):
        return _numbers(column)
    if _types.is_decimal(kind):
        exact = column.cast(_pa.string()).to_pylist()
        texts = [_NULL if text is None else text.encode() for text in exact]
        return texts, _numbers(column.cast(_pa.float64()))[1]
    if _types.is_duration(kind):
        return _numbers(column.cast(_pa.int64()))
    if _types.is_nested(kind):
        return [json_text(value) for value in _nested(name, column)], None
    if _types.is_null(kind):
        return [_NULL] * len(column), None
    values = _times(column) if _types.is_temporal(kind) else _texts(column)
    return [json_text(value) for value in values], text_array(values)


def _numbers(column: Any) -> tuple[Sequence[bytes], Array]:
    if not column.null_count:
        array: NDArray[Any] = column.to_numpy(zero_copy_only=False)
        return _written(array), array
    nulls: NDArray[np.bool_] = column.is_null().to_numpy(zero_copy_only=False)
    filled: NDArray[Any] = column.fill_null(False if _types.is_boolean(column.type) else 0).to_numpy(
        zero_copy_only=False
    )
    texts, values = _written(filled), filled.tolist()
    for index in np.flatnonzero(nulls).tolist():
        texts[index], values[index] = _NULL, None
    return texts, nullable(values, filled.dtype)


def _written(array: NDArray[Any]) -> list[bytes]:
    text = orjson.dumps(np.ascontiguousarray(array), option=orjson.OPT_SERIALIZE_NUMPY)
    return text[1:-1].split(b",")


def _times(column: Any) -> list[Any]:
    kind = column.type
    if not _types.is_timestamp(kind):
        return column.cast(_pa.string()).to_pylist()
    zone = "" if kind.tz is None else "Z"
    # Without its zone it is what it is in UTC.
    texts = column.cast(_pa.timestamp(kind.unit)).cast(_pa.string()).to_pylist()
    return [None if text is None else text.replace(" ", "T") + zone for text in texts]


def _texts(column: Any) -> list[Any]:
    """Text, or bytes; of a column that says it is text, bytes where a value is not UTF-8."""
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


def _nested(name: str, column: Any) -> list[Any]:
    try:
        return column.to_pylist()
    except UnicodeDecodeError:
        raise
    except ValueError as error:
        needed_for = f"column {name!r}, whose lists or structs hold times of nanoseconds,"
        raise MissingExtraError("pandas", needed_for) from error
