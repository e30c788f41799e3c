"""The one door to pyarrow (extra `arrow`)."""

from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import DataError, MissingExtraError

try:
    import pyarrow as pa
    from pyarrow import csv as pa_csv
except ImportError as error:
    raise MissingExtraError("arrow", "reading and writing Arrow data") from error

# Untyped: what comes from there is Any, said once.
_pa: Any = pa
_csv: Any = pa_csv


def delimited_numbers(
    text: bytes, rows: int, width: int, delimiter: bytes, quote: bytes
) -> NDArray[np.float64] | None:
    """Delimited numbers as a flat float64 array of ``rows * width``; None when any row is not as it should be.

    Takes more than JSON does: quoted numbers, ``nan``, ``inf``, ``.5``, ``1.``. What it takes has the value that
    `float` gives.
    """
    # Arrow takes a lone carriage return for a line end, and `nan(1)` for a number.
    if b"(" in text or (b"\r" in text and text.count(b"\r") != text.count(b"\r\n")):
        return None
    names = [str(i) for i in range(width)]
    try:
        table: Any = _csv.read_csv(
            BytesIO(text),
            read_options=_csv.ReadOptions(use_threads=False, column_names=names, block_size=len(text) + 1),
            parse_options=_csv.ParseOptions(
                delimiter=delimiter.decode(),
                quote_char=quote.decode() or False,
                newlines_in_values=bool(quote) and quote in text,
            ),
            convert_options=_csv.ConvertOptions(
                column_types=dict.fromkeys(names, _pa.float64()), null_values=[]
            ),
            # Arrow's own pool was seen to keep hundreds of megabytes after thousands of small texts.
            memory_pool=_pa.system_memory_pool(),
        )
    except _pa.ArrowInvalid:
        return None
    if table.num_rows != rows or any(column.null_count for column in table.columns):
        return None
    matrix = np.empty((rows, width))
    for index, column in enumerate(table.columns):
        matrix[:, index] = column.to_numpy()
    return matrix.ravel()


def parquet_modules() -> tuple[Any, Any]:
    """`pyarrow` and `pyarrow.parquet`. Not at the top: reading CSV has no use for the second."""
    from pyarrow import parquet  # noqa: PLC0415

    return pa, parquet


def table_columns(table: Any) -> dict[str, Any]:
    """The columns of a table by name. Of two columns of one name the second would be lost: that is a DataError."""
    names: list[str] = table.column_names
    if len(set(names)) < len(names):
        raise DataError(f"a table has two columns of one name ({', '.join(names)}): rename one")
    return dict(zip(names, table.columns, strict=True))


def column_array(column: Any) -> NDArray[Any]:
    """A column of a table as an array: of objects, where it has nulls (None) or lists; tensors of extension types as one array.

    An extension type of tensors is one that makes such an array by itself (``to_numpy_ndarray``), as Ray's do.
    """
    arrays = [_chunk_array(chunk) for chunk in column.chunks]
    if not arrays:
        return np.empty(0)
    if len(arrays) == 1 or not any(array.dtype == object for array in arrays):
        return np.concatenate(arrays) if len(arrays) > 1 else arrays[0]
    made = np.empty(len(column), object)
    made[:] = [value for array in arrays for value in array]
    return made


def _chunk_array(chunk: Any) -> NDArray[Any]:
    if is_tensors(chunk):
        return chunk.to_numpy_ndarray()
    if not chunk.null_count:
        return chunk.to_numpy(zero_copy_only=False)
    made = np.empty(len(chunk), object)
    made[:] = chunk.to_pylist()
    return made


def is_tensors(column: Any) -> bool:
    """Whether a column, or a chunk of one, is of an extension type of tensors."""
    chunks = getattr(column, "chunks", [column])
    return bool(chunks) and hasattr(chunks[0], "to_numpy_ndarray")


def array_with_nulls(values: NDArray[Any], missing: NDArray[np.bool_]) -> Any:
    """A flat array as an Arrow array of its own type, null where `missing`, also where that is everywhere.

    Objects are text: str, or bytes where one of them is no str.
    """
    if values.dtype != object:
        return _pa.array(values, mask=missing)
    texts = all(isinstance(value, str) for value in values[~missing])
    return _pa.array(values, type=_pa.string() if texts else _pa.binary(), mask=missing)


def nulls(rows: int) -> Any:
    """Nulls of no known type."""
    return _pa.nulls(rows)
