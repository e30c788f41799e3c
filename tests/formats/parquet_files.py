"""Parquet files in memory and readers of them."""

import io

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.core.block import Position
from headrace.formats.parquet_read import ParquetReader


def write_parquet(columns, *, group_rows=1000, **options) -> bytes:
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    file = io.BytesIO()
    pq.write_table(table, file, row_group_size=group_rows, **options)
    return file.getvalue()


def open_parquet(data: bytes, **options) -> ParquetReader:
    """Return a `ParquetReader` of a file in memory."""
    return ParquetReader(lambda start, size: data[start : start + size], len(data), **options)


def read_blocks(data: bytes, **options):
    reader = open_parquet(data, **options)
    return list(reader.blocks(0, len(reader.row_groups), Position("memory://b/a.parquet")))


def read_single_block(columns, **options):
    (block,) = read_blocks(write_parquet(columns), **options)
    return block
