"""Parquet files in memory, and a way to read any part of them."""

import io

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.core.block import Position
from headrace.formats.parquet_read import ParquetReader


def written(columns, *, group_rows=1000, **options) -> bytes:
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    file = io.BytesIO()
    pq.write_table(table, file, row_group_size=group_rows, **options)
    return file.getvalue()


def reader(data: bytes, **options) -> ParquetReader:
    return ParquetReader(lambda start, size: data[start : start + size], len(data), **options)


def blocks(data: bytes, **options):
    opened = reader(data, **options)
    return list(opened.blocks(0, len(opened.row_groups), Position("memory://b/a.parquet")))


def only_block(columns, **options):
    (block,) = blocks(written(columns), **options)
    return block
