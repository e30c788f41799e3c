"""Read Parquet one row group at a time, as blocks of typed columns.

The metadata of a Parquet file is at its end, so the file cannot be read from a stream of chunks.
The caller supplies a function that reads any range of the file.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from headrace.core.block import Block, Position
from headrace.core.errors import ConfigError
from headrace.formats.arrow import parquet_modules, pyarrow
from headrace.formats.contract import BLOCK_BYTES_MAX, RECORD_BYTES_MAX, ReadAt
from headrace.formats.record_table import ROWS_MAX, check_nested, empty_block, table_blocks
from headrace.formats.table_files import (
    RandomAccessFile,
    check_names,
    present_columns,
    table_errors,
    unreadable,
)

_KIND: Final = "Parquet"
_BUFFERED_ABOVE_BYTES: Final = 64 << 20
_BUFFER_BYTES: Final = 4 << 20
"""Read size for columns when a row group of the file exceeds `_BUFFERED_ABOVE_BYTES`.

Columns of smaller row groups are read together, in a few calls for neighbouring columns.
"""


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A part of a Parquet file that can be read independently.

    `first_row` is the number of its first row. `start_byte` and `compressed_bytes` are its approximate
    place and size in the file: every byte before the footer belongs to one row group. `plain_bytes` is
    the size of its columns before compression.
    """

    first_row: int
    rows: int
    start_byte: int
    compressed_bytes: int
    plain_bytes: int


class ParquetReader:
    """A reader of one Parquet file.

    `Block.table` holds the rows of a block (see `headrace.formats.record_table`), and `Block.column_names`
    lists its columns in order. Positions have the number of the row; lines and bytes stay those of `first`.

    Blocks do not depend on how the row groups are divided over calls, except for positions, which
    follow `first`. A row of more than `record_bytes_max` in memory is a failure (kind FORMAT). `columns`
    are the names of the columns to read, or None for all.

    The constructor reads the end of the file. `read_at` must return all requested bytes, fewer only
    at the end of the file. It is called in one thread at a time, and its exceptions propagate.

    Raises:
        CorruptError: The file is not a Parquet file or cannot be read.
    """

    def __init__(
        self,
        read_at: ReadAt,
        size_bytes: int,
        *,
        columns: Sequence[str] | None = None,
        rows_max: int = ROWS_MAX,
        block_bytes_max: int = BLOCK_BYTES_MAX,
        record_bytes_max: int = RECORD_BYTES_MAX,
    ) -> None:
        if min(rows_max, block_bytes_max, record_bytes_max) < 1:
            raise ConfigError(
                "rows_max, block_bytes_max and record_bytes_max must be at least 1, "
                f"not {rows_max}, {block_bytes_max} and {record_bytes_max}"
            )
        _, self._parquet = parquet_modules()
        self._rows_max = rows_max
        self._block_bytes_max = block_bytes_max
        self._record_bytes_max = record_bytes_max
        self._file = RandomAccessFile(read_at, size_bytes)
        with table_errors(_KIND, self._file):
            self._source: Any = self._open()
            metadata = self._source.metadata
            self.column_names: tuple[str, ...] = tuple(self._source.schema_arrow.names)
            """Names of all columns in file order."""
            check_names(_KIND, self.column_names, self._file)
            self._columns = present_columns(self.column_names, columns)
            self.row_groups: tuple[RowGroup, ...] = tuple(self._row_groups(metadata))
            """Row groups in file order."""
            if max((group.compressed_bytes for group in self.row_groups), default=0) > _BUFFERED_ABOVE_BYTES:
                self._source = self._open(metadata=metadata, pre_buffer=False, buffer_size=_BUFFER_BYTES)

    def _open(self, *, pre_buffer: bool = True, **options: Any) -> Any:
        return self._parquet.ParquetFile(
            self._file, pre_buffer=pre_buffer, page_checksum_verification=True, **options
        )

    def _row_groups(self, metadata: Any) -> Iterator[RowGroup]:
        groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
        if any(g.num_rows < 0 or g.total_byte_size < 0 for g in groups):
            raise unreadable(_KIND, "a row group has a negative row count or size", self._file)
        # Each group's share of the file. Its columns have the exact places and sizes, but Arrow aborts the
        # process when it reads those of damaged columns.
        size_bytes, total_bytes = self._file.size(), max(sum(g.total_byte_size for g in groups), 1)
        rows = plain_bytes = 0
        for group in groups:
            start = plain_bytes * size_bytes // total_bytes
            compressed_bytes = group.total_byte_size * size_bytes // total_bytes
            yield RowGroup(rows, group.num_rows, start, compressed_bytes, group.total_byte_size)
            rows += group.num_rows
            plain_bytes += group.total_byte_size

    def head(self, first: Position) -> Block:
        """Return a block without rows, whose table has the columns of the file."""
        with table_errors(_KIND, self._file):
            return empty_block(self._source.schema_arrow, first)

    def blocks(self, first_group: int, stop_group: int, first: Position) -> Iterator[Block]:
        """Yield blocks of the rows of these row groups in order.

        `first` is the position of the first row.

        Raises CorruptError, after the rows before, if a row group cannot be read.
        """
        position = first
        for group in range(first_group, stop_group):
            rows = 0
            for batch in self._batches(group):
                rows += batch.num_rows
                for block in self._cut_batch(batch, position) if batch.num_rows else ():
                    yield block
                    position = replace(position, record=position.record + block.records)
            if rows != self.row_groups[group].rows:
                why = f"row group {group} holds {rows} rows instead of {self.row_groups[group].rows}"
                raise unreadable(_KIND, why, self._file)

    def _batches(self, group: int) -> Iterator[Any]:
        row_bytes = self.row_groups[group].plain_bytes // max(self.row_groups[group].rows, 1)
        rows = min(self._rows_max, max(self._block_bytes_max // max(row_bytes, 1), 1))
        with table_errors(_KIND, self._file):
            batches = self._source.iter_batches(
                batch_size=rows, row_groups=[group], columns=self._columns, use_threads=False
            )
        while (batch := self._next_batch(batches)) is not None:
            yield batch
        # Arrow's pool would keep the memory of a large row group.
        pyarrow.default_memory_pool().release_unused()

    def _next_batch(self, batches: Iterator[Any]) -> Any:
        with table_errors(_KIND, self._file):
            batch = next(batches, None)
            if batch is None or self._columns is None:
                return batch
            # A name may also have selected the fields of a struct.
            return batch.select(self._columns)

    def _cut_batch(self, batch: Any, first: Position) -> Iterator[Block]:
        """Yield the rows of a batch as blocks."""
        with table_errors(_KIND, self._file):
            check_nested(batch)
        yield from table_blocks(batch, first, record_bytes_max=self._record_bytes_max)
