"""Parquet, read a row group at a time: rows as blocks of JSON objects, with their columns beside them.

A Parquet file says at its end what is in it, so it is not read as chunks come: whoever has it gives a way to read any
part of it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from headrace.core.block import RAW_BYTES_KEPT_MAX, Block, Failure, FailureKind, Position
from headrace.core.errors import ConfigError, CorruptError, MissingExtraError
from headrace.core.tensor import Array
from headrace.formats.contract import BLOCK_BYTES_MAX, RECORD_BYTES_MAX

ROWS_MAX: Final = 8192
"""In one block."""
_BUFFERED_ABOVE_BYTES: Final = 64 << 20
_BUFFER_BYTES: Final = 4 << 20
"""Columns of a file with larger row groups are read in pieces of so many bytes, instead of whole."""

ReadAt = Callable[[int, int], bytes]
"""Bytes of the file: where they start and how many."""


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A part of a Parquet file that can be read by itself.

    `compressed_bytes` is about what it takes in the file, `plain_bytes` what its columns are before compression.
    """

    rows: int
    compressed_bytes: int
    plain_bytes: int


class ParquetReader:
    """One Parquet file.

    Rows are JSON objects, a line each, so that whatever takes JSON Lines takes them; beside them, in `Block.columns`,
    are the flat columns as arrays (`parquet_rows.rows_text` says how both look). `Block.column_names` names all columns
    in order. Lines and bytes of positions are those of the rows as such text.

    Blocks are the same however the row groups are divided over calls, but for what `first` says. A row whose text is
    longer than `record_bytes_max` is a failure (kind FORMAT).

    Making one reads the end of the file. Raises MissingExtraError without the extra `arrow`, and CorruptError for what
    is no Parquet file, or one that cannot be read; what `read_at` raises goes through. `read_at` must give all bytes that
    it is asked for, fewer only at the file's end; it is called from the thread that reads.
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
        self._pa, self._parquet = _arrow_modules()
        self._rows_max = rows_max
        self._block_bytes_max = block_bytes_max
        self._record_bytes_max = record_bytes_max
        self._file = _RandomFile(read_at, size_bytes)
        self._source: Any = self._guarded(self._open)
        metadata = self._source.metadata
        self.column_names: tuple[str, ...] = tuple(self._guarded(lambda: self._source.schema_arrow.names))
        """The file's columns, in order."""
        twice = {name for name in self.column_names if self.column_names.count(name) > 1}
        if twice:
            raise self._corrupt(f"several columns are called {twice.pop()!r}")
        self.row_groups: tuple[RowGroup, ...] = self._guarded(lambda: self._groups(metadata))
        """What the file is made of, in order."""
        if max((group.compressed_bytes for group in self.row_groups), default=0) > _BUFFERED_ABOVE_BYTES:
            self._source = self._guarded(lambda: self._open(metadata=metadata, buffer_size=_BUFFER_BYTES))

    def _open(self, **options: Any) -> Any:
        return self._parquet.ParquetFile(
            self._file, pre_buffer=False, page_checksum_verification=True, **options
        )

    def _groups(self, metadata: Any) -> tuple[RowGroup, ...]:
        groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
        if any(g.num_rows < 0 or g.total_byte_size < 0 for g in groups):
            raise self._corrupt("a row group has less than no rows")
        # Each group's share. Its columns would tell exactly, but of a damaged file Arrow ends the process that asks them.
        in_all = max(sum(g.total_byte_size for g in groups), 1)
        return tuple(
            RowGroup(g.num_rows, g.total_byte_size * self._file.size() // in_all, g.total_byte_size)
            for g in groups
        )

    def blocks(self, first_group: int, stop_group: int, first: Position) -> Iterator[Block]:
        """Blocks of the rows of these row groups, in order; `first` is the position of the first of them.

        Raises, after the rows before, CorruptError where a row group cannot be read.
        """
        at = first
        for group in range(first_group, stop_group):
            rows = 0
            for batch in self._batches(group):
                rows += batch.num_rows
                for block in self._cut(batch, at) if batch.num_rows else ():
                    yield block
                    at = _behind(block)
            if rows != self.row_groups[group].rows:
                raise self._corrupt(
                    f"row group {group} holds {rows} rows instead of {self.row_groups[group].rows}"
                )

    def _batches(self, group: int) -> Iterator[Any]:
        row_bytes = self.row_groups[group].plain_bytes // max(self.row_groups[group].rows, 1)
        rows = min(self._rows_max, max(self._block_bytes_max // max(row_bytes, 1), 1))
        batches = self._guarded(
            lambda: self._source.iter_batches(batch_size=rows, row_groups=[group], use_threads=False)
        )
        while (batch := self._guarded(lambda: next(batches, None))) is not None:
            yield batch
        # Arrow's pool would keep for itself what a large row group took.
        self._pa.default_memory_pool().release_unused()

    def _cut(self, batch: Any, first: Position) -> Iterator[Block]:
        """A batch's rows as blocks."""
        from headrace.formats.parquet_rows import rows_text  # noqa: PLC0415 - an extra

        columns = list(zip(self.column_names, batch.columns, strict=True))
        if not columns:
            raise self._corrupt("it has no columns")
        texts, arrays = self._guarded(lambda: rows_text(columns))
        lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        ends = np.cumsum(lengths + 1)
        start, at = 0, first
        while start < len(texts):
            before = int(ends[start - 1]) if start else 0
            stop = max(int(np.searchsorted(ends, before + self._block_bytes_max, "right")), start + 1)
            long = np.flatnonzero(lengths[start:stop] > self._record_bytes_max)
            stop = start + int(long[0]) if len(long) else stop
            block = self._block(at, texts[start:stop], {n: a[start:stop] for n, a in arrays.items()})
            start = stop
            if len(long):
                here = _behind(block) if len(block) else at
                why = f"longer than record_bytes_max={self._record_bytes_max}, as JSON text"
                raw = texts[start][: min(self._record_bytes_max, RAW_BYTES_KEPT_MAX)]
                block = replace(block, failures=(Failure(here, FailureKind.FORMAT, why, raw),))
                start += 1
            yield block
            at = _behind(block)

    def _block(self, first: Position, texts: list[bytes], columns: dict[str, Array]) -> Block:
        if not texts:
            return Block(first)
        ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)) + 1)
        starts = np.zeros_like(ends)
        starts[1:] = ends[:-1]
        data = b"\n".join(texts) + b"\n"
        return Block(first, data, starts, ends - 1, columns, column_names=self.column_names, line_end=b"\n")

    def _guarded(self, step: Callable[[], Any]) -> Any:
        """What a step gives; CorruptError where Arrow cannot read the file, and what reading it raised."""
        try:
            return step()
        except (MissingExtraError, CorruptError):
            raise
        except Exception as error:
            if self._file.error is not None:
                raise self._file.error from None
            known = (self._pa.ArrowException, OSError, ValueError, OverflowError)
            if not isinstance(error, known):
                raise
            raise self._corrupt(str(error).strip()) from error

    def _corrupt(self, why: str) -> CorruptError:
        return CorruptError(f"the Parquet file cannot be read: {why}", byte=self._file.tell())


def _behind(block: Block) -> Position:
    """Where the row after a block is."""
    at = block.first
    line, byte = at.line + block.records, at.byte + len(block.data)
    # Of a row that was too long, how long it was no longer matters: the next one's line is what finds it.
    byte += sum(len(failure.raw) + 1 for failure in block.failures)
    return replace(at, record=at.record + block.records, line=line, byte=byte)


class _RandomFile:
    """A file as Arrow reads it. Keeps the first error of its source, which Arrow may reword."""

    closed = False

    def __init__(self, read_at: ReadAt, size_bytes: int) -> None:
        self._read_at = read_at
        self._size_bytes = size_bytes
        self._at = 0
        self.error: Exception | None = None

    def read(self, size: int = -1) -> bytes:
        left = max(self._size_bytes - self._at, 0)
        wanted = left if size < 0 else min(size, left)
        if not wanted:
            return b""
        try:
            data = self._read_at(self._at, wanted)
        except Exception as error:
            self.error = self.error or error
            raise
        self._at += len(data)
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._size_bytes)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def size(self) -> int:
        return self._size_bytes

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def flush(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        """Whoever gave the way to read closes it."""


def _arrow_modules() -> tuple[Any, Any]:
    try:
        from headrace.formats import arrow  # noqa: PLC0415  optional: only its door imports it
    except MissingExtraError as error:
        raise MissingExtraError("arrow", "reading Parquet") from error
    return arrow.parquet_modules()
