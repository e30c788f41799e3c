"""The one door to pyarrow (extra `arrow`)."""

from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import MissingExtraError

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
