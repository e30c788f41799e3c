"""Read Parquet one row group at a time, as blocks of typed columns.

The metadata of a Parquet file is at its end, so the file cannot be read from a stream of chunks.
The caller supplies a function that reads any range of the file.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from headrace.core.block import Block, Position
from headrace.core.errors import ConfigError, CorruptError, MissingExtraError
from headrace.formats.arrow import parquet_modules, pyarrow
from headrace.formats.contract import BLOCK_BYTES_MAX, RECORD_BYTES_MAX
from headrace.formats.record_table import check_nested, table_blocks

ROWS_MAX: Final = 8192
"""Maximum number of rows in one block."""
_BUFFERED_ABOVE_BYTES: Final = 64 << 20
_BUFFER_BYTES: Final = 4 << 20
"""Read size for columns when a row group of the file exceeds `_BUFFERED_ABOVE_BYTES`.

Columns of smaller row groups are read in one call.
"""

ReadAt = Callable[[int, int], bytes]
"""Read bytes of the file, given the start offset and the number of bytes."""


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A part of a Parquet file that can be read independently.

    `compressed_bytes` is its approximate size in the file. `plain_bytes` is the size of its columns
    before compression.
    """

    rows: int
    compressed_bytes: int
    plain_bytes: int


class ParquetReader:
    """A reader of one Parquet file.

    `Block.table` holds the rows of a block (see `headrace.formats.record_table`), and `Block.column_names`
    lists its columns in order. Positions have the number of the row; lines and bytes stay those of `first`.

    Blocks do not depend on how the row groups are divided over calls, except for positions, which
    follow `first`. A row of more than `record_bytes_max` in memory is a failure (kind FORMAT).

    The constructor reads the end of the file. `read_at` must return all requested bytes, fewer only
    at the end of the file. It is called in the thread that reads, and its exceptions propagate.

    Raises:
        CorruptError: The file is not a Parquet file or cannot be read.
    """

    def __init__(
        self,
        read_at: ReadAt,
        size_bytes: int,
        *,
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
        self._file = _RandomAccessFile(read_at, size_bytes)
        self._source: Any = self._translate_errors(self._open)
        metadata = self._source.metadata
        self.column_names: tuple[str, ...] = tuple(
            self._translate_errors(lambda: self._source.schema_arrow.names)
        )
        """Names of the columns in file order."""
        duplicates = {name for name in self.column_names if self.column_names.count(name) > 1}
        if duplicates:
            raise self._corrupt(f"several columns have the name {duplicates.pop()!r}")
        self.row_groups: tuple[RowGroup, ...] = self._translate_errors(lambda: self._row_groups(metadata))
        """Row groups in file order."""
        if max((group.compressed_bytes for group in self.row_groups), default=0) > _BUFFERED_ABOVE_BYTES:
            self._source = self._translate_errors(
                lambda: self._open(metadata=metadata, buffer_size=_BUFFER_BYTES)
            )

    def _open(self, **options: Any) -> Any:
        return self._parquet.ParquetFile(
            self._file, pre_buffer=False, page_checksum_verification=True, **options
        )

    def _row_groups(self, metadata: Any) -> tuple[RowGroup, ...]:
        groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
        if any(g.num_rows < 0 or g.total_byte_size < 0 for g in groups):
            raise self._corrupt("a row group has a negative row count or size")
        # Each group's share of the file. Its columns have the exact sizes, but Arrow aborts the
        # process when it reads the sizes of damaged columns.
        total_bytes = max(sum(g.total_byte_size for g in groups), 1)
        return tuple(
            RowGroup(g.num_rows, g.total_byte_size * self._file.size() // total_bytes, g.total_byte_size)
            for g in groups
        )

    def head(self, first: Position) -> Block:
        """Return a block without rows, whose table has the columns of the file."""
        schema = self._translate_errors(lambda: self._source.schema_arrow)
        batch = pyarrow.RecordBatch.from_pylist([], schema=schema)
        return next(table_blocks(batch, first, record_bytes_max=self._record_bytes_max))

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
                raise self._corrupt(
                    f"row group {group} holds {rows} rows instead of {self.row_groups[group].rows}"
                )

    def _batches(self, group: int) -> Iterator[Any]:
        row_bytes = self.row_groups[group].plain_bytes // max(self.row_groups[group].rows, 1)
        rows = min(self._rows_max, max(self._block_bytes_max // max(row_bytes, 1), 1))
        batches = self._translate_errors(
            lambda: self._source.iter_batches(batch_size=rows, row_groups=[group], use_threads=False)
        )
        while (batch := self._translate_errors(lambda: next(batches, None))) is not None:
            yield batch
        # Arrow's pool would keep the memory of a large row group.
        pyarrow.default_memory_pool().release_unused()

    def _cut_batch(self, batch: Any, first: Position) -> Iterator[Block]:
        """Yield the rows of a batch as blocks."""
        if not batch.num_columns:
            raise self._corrupt("it has no columns")
        self._translate_errors(lambda: check_nested(batch))
        yield from table_blocks(batch, first, record_bytes_max=self._record_bytes_max)

    def _translate_errors(self, call: Callable[[], Any]) -> Any:
        """Return the result of `call`. Raise CorruptError if Arrow cannot read the file.

        An exception of `read_at` propagates unchanged.
        """
        try:
            return call()
        except (MissingExtraError, CorruptError):
            raise
        except Exception as error:
            if self._file.error is not None:
                raise self._file.error from None
            expected = (pyarrow.ArrowException, OSError, ValueError, OverflowError)
            if not isinstance(error, expected):
                raise
            raise self._corrupt(str(error).strip()) from error

    def _corrupt(self, why: str) -> CorruptError:
        return CorruptError(f"the Parquet file cannot be read: {why}", byte=self._file.tell())


class _RandomAccessFile:
    """A file object for Arrow. It keeps the first error of `read_at`, which Arrow may reword."""

    closed = False

    def __init__(self, read_at: ReadAt, size_bytes: int) -> None:
        self._read_at = read_at
        self._size_bytes = size_bytes
        self._position = 0
        self.error: Exception | None = None

    def read(self, size: int = -1) -> bytes:
        remaining = max(self._size_bytes - self._position, 0)
        requested = remaining if size < 0 else min(size, remaining)
        if not requested:
            return b""
        try:
            data = self._read_at(self._position, requested)
        except Exception as error:
            self.error = self.error or error
            raise
        self._position += len(data)
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = offset + (0, self._position, self._size_bytes)[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def size(self) -> int:
        return self._size_bytes

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def flush(self) -> None:
        """Do nothing: the file is not written."""

    def close(self) -> None:
        """Do nothing: the owner of `read_at` closes the file."""
