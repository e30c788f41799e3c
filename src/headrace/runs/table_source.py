"""Read objects that are tables with random access, Parquet and ORC, from their stores."""

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headrace.core.block import Block, Position
from headrace.core.errors import CorruptError
from headrace.formats.contract import BLOCK_BYTES_MAX, ReadAt
from headrace.formats.read import format_name, is_random_access, is_zip, read_object, read_zip
from headrace.formats.read_options import ReadOptions
from headrace.storage.contract import ObjectInfo, TableFile
from headrace.storage.resolve import Stores

if TYPE_CHECKING:
    from headrace.formats.orc_read import OrcReader
    from headrace.formats.parquet_read import ParquetReader


def object_blocks(
    info: ObjectInfo,
    stores: Stores,
    read: ReadOptions,
    chunks: Iterable[bytes],
    *,
    columns: Sequence[str] | None = None,
) -> Iterator[Block]:
    """Yield the blocks of a whole object of any format.

    `chunks` are its bytes. They are not used for tables of random access and zip, which are read by ranges.
    `columns` are the columns of a table to read, or None for all. Raises the errors of `read_object` and of
    the store.
    """
    if is_random_access(info.uri, read):
        yield from table_blocks(info, stores, read, columns=columns)
    elif is_zip(info.uri, read):
        yield from read_zip(info.uri, ranges_of(info, stores), info.size_bytes, read)
    else:
        yield from read_object(info.uri, chunks, read, columns=columns)


def ranges_of(info: ObjectInfo, stores: Stores) -> ReadAt:
    """Return a function that reads ranges of an object. Its errors are those of the store."""
    store = stores.for_uri(info.uri)

    def read_at(start: int, length: int) -> bytes:
        return store.get_range(info.uri, start, length, etag=info.etag)

    return read_at


def table_blocks(
    info: ObjectInfo,
    stores: Stores,
    read: ReadOptions,
    *,
    columns: Sequence[str] | None = None,
    start: int = 0,
    stop: int | None = None,
    first_record: int = 0,
) -> Iterator[Block]:
    """Yield the blocks of an object of random access, from the record `first_record` on.

    Of Parquet, only the row groups are read that begin in the bytes from `start` to `stop`, or to the end.
    The numbers of records are those in the object. `columns` are the columns to read, or None for all.

    Raises CorruptError for an invalid file, MissingExtraError without pyarrow, and the store's errors.
    """
    with _location(info.uri):
        if format_name(info.uri, read) == "orc":
            blocks = _open_orc(info, stores, read, columns).blocks(Position(info.uri))
            yield from _of_table(blocks, info.table, columns)
            return
        reader = _open_parquet(info, stores, read, columns)
        for number, group in enumerate(reader.row_groups):
            is_inside = start <= group.start_byte and (stop is None or group.start_byte < stop)
            if is_inside and group.first_row + group.rows > first_record:
                blocks = reader.blocks(number, number + 1, Position(info.uri, record=group.first_row))
                yield from _of_table(blocks, info.table, columns)


def table_head(info: ObjectInfo, stores: Stores, read: ReadOptions) -> Block:
    """Return a block without rows, whose table has the columns of an object of random access.

    Raises as `table_blocks` does.
    """
    with _location(info.uri):
        open_reader = _open_orc if format_name(info.uri, read) == "orc" else _open_parquet
        head = open_reader(info, stores, read, None).head(Position(info.uri))
        return next(_of_table(iter([head]), info.table, None))


def _open_parquet(
    info: ObjectInfo, stores: Stores, read: ReadOptions, columns: Sequence[str] | None
) -> "ParquetReader":
    from headrace.formats.parquet_read import ParquetReader  # noqa: PLC0415 - an extra

    limit = read.record_bytes_max
    return ParquetReader(ranges_of(info, stores), _size(info), columns=columns, record_bytes_max=limit)


def _open_orc(
    info: ObjectInfo, stores: Stores, read: ReadOptions, columns: Sequence[str] | None
) -> "OrcReader":
    from headrace.formats.orc_read import OrcReader  # noqa: PLC0415 - an extra

    limit = read.record_bytes_max
    return OrcReader(ranges_of(info, stores), _size(info), columns=columns, record_bytes_max=limit)


def _size(info: ObjectInfo) -> int:
    """Return the size of an object in bytes. Raise CorruptError if it is unknown."""
    if info.size_bytes is None:
        raise CorruptError("its size is unknown, but tables of its format are read from their end", byte=0)
    return info.size_bytes


def _of_table(
    blocks: Iterator[Block], table: TableFile | None, columns: Sequence[str] | None
) -> Iterator[Block]:
    """Yield the blocks of a file with the columns of the table to which it belongs, if any."""
    if table is None:
        return blocks
    from headrace.formats.record_table import conform  # noqa: PLC0415 - an extra

    return (conform(block, table.schema, table.values, columns) for block in blocks)


@contextmanager
def _location(uri: str) -> Generator[None]:
    """Name the object in a CorruptError."""
    try:
        yield
    except CorruptError as error:
        raise error.with_location(uri, None) from error


def read_ahead(blocks: Iterator[Block], bytes_max: int) -> Iterator[Block]:
    """Yield blocks that a thread reads ahead of their use, up to about `bytes_max` bytes of them.

    So the next row group or stripe arrives while the last one is scored. The order does not change, and an
    exception is raised in its place.
    """
    window: deque[Future[Block | None]] = deque()
    threads = ThreadPoolExecutor(1, "headrace-table")
    try:
        while True:
            while len(window) <= bytes_max // BLOCK_BYTES_MAX:
                window.append(threads.submit(next, blocks, None))
            block = window.popleft().result()
            if block is None:
                return
            yield block
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
