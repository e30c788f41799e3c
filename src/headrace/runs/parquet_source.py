"""Read Parquet objects into blocks, by row groups, from any store."""

from collections.abc import Iterator

from headrace.core.block import Block, Position
from headrace.core.errors import CorruptError
from headrace.formats.parquet_read import ParquetReader
from headrace.formats.read import ReadOptions
from headrace.storage.contract import ObjectInfo
from headrace.storage.resolve import Stores


def parquet_blocks(info: ObjectInfo, stores: Stores, read: ReadOptions) -> Iterator[Block]:
    """Yield the blocks of an object.

    Raises CorruptError for an invalid file, and the store's errors.
    """
    if info.size_bytes is None:
        raise CorruptError(
            "its size is unknown, but a Parquet file is read from its end", byte=0
        ).with_location(info.uri, None)
    store = stores.for_uri(info.uri)

    def read_at(start: int, length: int) -> bytes:
        return store.get_range(info.uri, start, length, etag=info.etag)

    try:
        reader = ParquetReader(read_at, info.size_bytes, record_bytes_max=read.record_bytes_max)
        yield from reader.blocks(0, len(reader.row_groups), Position(info.uri))
    except CorruptError as error:
        raise error.with_location(info.uri, None) from error
