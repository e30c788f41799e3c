"""The pyarrow adapter (extra `arrow`)."""

from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import DataError, MissingExtraError
from headrace.formats.csv_dialect import CsvDialect

try:
    import pyarrow as pa
    from pyarrow import csv as pa_csv
except ImportError as error:
    raise MissingExtraError("arrow", "reading and writing Arrow data") from error

# pyarrow has no types; Any is confined to these names.
pyarrow: Any = pa
_csv: Any = pa_csv


def delimited_numbers(text: bytes, rows: int, width: int, dialect: CsvDialect) -> NDArray[np.float64] | None:
    """Parse delimited numbers into a flat float64 array of ``rows * width`` values.

    Return None if the text does not have exactly `rows` rows of `width` numbers. The accepted
    syntax is wider than JSON's: quoted numbers, ``nan``, ``inf``, ``.5``, ``1.``. Every accepted
    number has the value that `float` returns for it. A null word without space around it is NaN.
    """
    if dialect.escape and dialect.escape in text:
        return None
    # Arrow accepts a lone carriage return as a line end, and `nan(1)` as a number.
    if b"(" in text or (b"\r" in text and text.count(b"\r") != text.count(b"\r\n")):
        return None
    names = [str(i) for i in range(width)]
    try:
        table: Any = _csv.read_csv(
            BytesIO(text),
            read_options=_csv.ReadOptions(use_threads=False, column_names=names, block_size=len(text) + 1),
            parse_options=_csv.ParseOptions(
                delimiter=dialect.delimiter.decode(),
                quote_char=dialect.quote.decode() or False,
                newlines_in_values=bool(dialect.quote) and dialect.quote in text,
            ),
            convert_options=_csv.ConvertOptions(
                column_types=dict.fromkeys(names, pyarrow.float64()),
                null_values=list(dialect.null_words),
                decimal_point=dialect.decimal,
            ),
            # Arrow's own pool kept hundreds of megabytes after thousands of small texts.
            memory_pool=pyarrow.system_memory_pool(),
        )
    except pyarrow.ArrowInvalid:
        return None
    if table.num_rows != rows:
        return None
    if not dialect.null_words and any(column.null_count for column in table.columns):
        return None
    matrix = np.empty((rows, width))
    for index, column in enumerate(table.columns):
        matrix[:, index] = column.to_numpy()
    return matrix.ravel()


def parquet_modules() -> tuple[Any, Any]:
    """Return the modules `pyarrow` and `pyarrow.parquet`."""
    from pyarrow import parquet  # noqa: PLC0415 - reading CSV does not need it

    return pa, parquet


def orc_module() -> Any:
    """Return the module `pyarrow.orc`."""
    from pyarrow import orc  # noqa: PLC0415 - reading CSV does not need it

    return orc


def decompressed(data: bytes, codec: str, size: int | None) -> bytes:
    """Return the content of data compressed by a codec of Arrow. `size` is that of the content, if known.

    Raises OSError or ValueError for damaged data.
    """
    if size is not None:
        return pyarrow.decompress(data, decompressed_size=size, codec=codec, asbytes=True)
    with pyarrow.CompressedInputStream(pyarrow.BufferReader(data), codec) as stream:
        return stream.read()


def compute_functions() -> Any:
    """Return the module `pyarrow.compute`."""
    from pyarrow import compute  # noqa: PLC0415 - reading CSV does not need it

    return compute


def table_columns(table: Any) -> dict[str, Any]:
    """Return the columns of a table by name. Raise DataError if two columns have the same name."""
    names: list[str] = table.column_names
    if len(set(names)) < len(names):
        raise DataError(f"a table has two columns with the same name ({', '.join(names)}): rename one")
    return dict(zip(names, table.columns, strict=True))


def column_array(column: Any) -> NDArray[Any]:
    """Return a column of a table as a numpy array.

    A column with nulls (None) or lists becomes an array of objects. Tensors of an extension type
    become one array. Such an extension type creates that array itself (``to_numpy_ndarray``), as
    Ray's types do.
    """
    arrays = [_chunk_array(chunk) for chunk in column.chunks]
    if not arrays:
        return np.empty(0)
    if len(arrays) == 1 or not any(array.dtype == object for array in arrays):
        return np.concatenate(arrays) if len(arrays) > 1 else arrays[0]
    objects = np.empty(len(column), object)
    objects[:] = [value for array in arrays for value in array]
    return objects


def _chunk_array(chunk: Any) -> NDArray[Any]:
    if is_tensor_column(chunk):
        return chunk.to_numpy_ndarray()
    if not chunk.null_count:
        return chunk.to_numpy(zero_copy_only=False)
    objects = np.empty(len(chunk), object)
    objects[:] = chunk.to_pylist()
    return objects


def is_tensor_column(column: Any) -> bool:
    """Return True if a column, or a chunk of a column, has an extension type of tensors."""
    chunks = getattr(column, "chunks", [column])
    return bool(chunks) and hasattr(chunks[0], "to_numpy_ndarray")


def array_with_nulls(values: NDArray[Any], missing: NDArray[np.bool_]) -> Any:
    """Convert a flat array to an Arrow array of the same type with nulls where `missing` is true.

    The type is kept even if all values are missing. Objects are text: strings, or bytes if one of
    them is not a str.
    """
    if values.dtype != object:
        return pyarrow.array(values, mask=missing)
    texts = all(isinstance(value, str) for value in values[~missing])
    return pyarrow.array(values, type=pyarrow.string() if texts else pyarrow.binary(), mask=missing)


def null_array(rows: int) -> Any:
    """Return an Arrow array of nulls without a known type."""
    return pyarrow.nulls(rows)
