"""Failed records to blocks, to be tried once more: from the bytes that were kept of them, or from their objects.

Arrives: an object's failed records. Leaves: blocks whose record i is the i-th of those that are tried; the others stay
failed as they are.
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace.core.block import RAW_BYTES_KEPT_MAX, Block, FailureKind, Position
from headrace.formats.failures import FailedRecord
from headrace.formats.read import ReadOptions, by_row_groups, format_name, read_object
from headrace.pipeline.items import ReadBlock
from headrace.storage.contract import ObjectInfo
from headrace.storage.resolve import Stores
from headrace.transforms.parquet_source import parquet_blocks

_TEXTS: Final = frozenset({"csv", "jsonl", "line"})
"""The formats whose records are nothing but their bytes."""
_RECORDS_MAX: Final = 4096
"""In one block."""


@dataclass(frozen=True, slots=True)
class Retried:
    """An object's failed records, in its order; those that are `tried` again are some of them."""

    index: int
    info: ObjectInfo
    all: tuple[FailedRecord, ...]
    tried: tuple[FailedRecord, ...]


def chosen(index: int, info: ObjectInfo, failed: Sequence[FailedRecord]) -> Retried:
    """Which of an object's failed records could come out otherwise: not those that are no records of their format."""
    tried = tuple(f for f in failed if f.failure.kind in (FailureKind.DECODE, FailureKind.MODEL))
    return Retried(index, info, tuple(failed), tried)


def reads_object(retried: Retried, read: ReadOptions) -> bool:
    """Whether the bytes that were kept are not enough: records that are no text or too long, or an archive's."""
    return not _are_kept(retried, read) or _has_names(retried.info, read)


def _are_kept(retried: Retried, read: ReadOptions) -> bool:
    if format_name(retried.info.uri, read) not in _TEXTS:
        return False
    failures = [f.failure for f in retried.tried]
    return all(f.position.member is None and 0 < len(f.raw) < RAW_BYTES_KEPT_MAX for f in failures)


def _has_names(info: ObjectInfo, read: ReadOptions) -> bool:
    """Whether the object's first bytes name the columns, which the model may be asked by."""
    return read.header == "names" and format_name(info.uri, read) == "csv"


class RetrySource:
    """Blocks of the records that are tried, object by object. See `BlockSource`.

    A block's positions are not the records' own: record i of object `index` is ``objects[index].tried[i]``.
    """

    def __init__(self, objects: Sequence[Retried], stores: Stores, read: ReadOptions) -> None:
        self._objects = objects
        self._stores = stores
        self._read = read
        self.bytes_read = 0
        self.objects_read = 0

    def close(self) -> None:
        """Nothing is read ahead."""

    def blocks(self) -> Iterator[ReadBlock]:
        """All of them. Raises what reading an object raises: it must be there as it was."""
        for index, retried in enumerate(self._objects):
            for block in self._of(retried):
                yield ReadBlock(block, index)
            self.objects_read += 1

    def _of(self, retried: Retried) -> Iterator[Block]:
        uri = retried.info.uri
        if not _are_kept(retried, self._read):
            yield from self._from_object(retried)
            return
        raws = [f.failure.raw for f in retried.tried]
        names = self._column_names(retried.info) if _has_names(retried.info, self._read) else None
        for start in range(0, len(raws), _RECORDS_MAX):
            yield _block_of(uri, start, raws[start : start + _RECORDS_MAX], names)

    def _column_names(self, info: ObjectInfo) -> tuple[str, ...] | None:
        with closing(self._all_blocks(info)) as blocks:
            head = next(blocks, None)
        return None if head is None else head.column_names

    def _from_object(self, retried: Retried) -> Iterator[Block]:
        """Read the object again, and of it no more than the records that are tried."""
        wanted = {_place(f.failure.position): number for number, f in enumerate(retried.tried)}
        left = len(wanted)
        with closing(self._all_blocks(retried.info)) as blocks:
            while left and (block := next(blocks, None)) is not None:
                first = block.first
                at = (first.member, first.member_byte)
                rows = [i for i in range(len(block)) if (*at, first.record + i) in wanted]
                if rows:
                    # In order, as the failed records are: their numbers follow each other.
                    number = wanted[(*at, first.record + rows[0])]
                    yield only(block, rows, replace(first, record=number))
                left -= len(rows)

    def _all_blocks(self, info: ObjectInfo) -> Generator[Block]:
        if by_row_groups(info.uri, self._read):
            yield from parquet_blocks(info, self._stores, self._read)
            return
        chunks = self._stores.for_uri(info.uri).stream(info.uri, etag=info.etag)
        yield from read_object(info.uri, self._counted(chunks), self._read)

    def _counted(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            self.bytes_read += len(chunk)
            yield chunk


def _place(position: Position) -> tuple[str | None, int, int]:
    return position.member, position.member_byte, position.record


def _block_of(uri: str, number: int, raws: Sequence[bytes], names: tuple[str, ...] | None) -> Block:
    data, starts, ends = _behind_each_other(raws)
    return Block(Position(uri, record=number), data, starts, ends, column_names=names)


def _behind_each_other(raws: Sequence[bytes]) -> tuple[bytes, NDArray[np.int64], NDArray[np.int64]]:
    """Records as lines, and where each starts and ends."""
    ends = np.cumsum([len(raw) + 1 for raw in raws]) - 1
    starts = np.concatenate(([0], ends[:-1] + 1))
    return b"\n".join(raws) + b"\n", starts, ends


def only(block: Block, rows: Sequence[int], first: Position) -> Block:
    """Some records of a block by themselves, as if the first of them stood at `first`."""
    kept = np.array(rows, np.int64)
    data, starts, ends = block.data, block.starts[kept], block.ends[kept]
    if data and block.header_bytes is None:
        # Between the records of a text is nothing but line ends: decoders rely on it.
        data, starts, ends = _behind_each_other([block.record(row) for row in rows])
    return replace(
        block,
        first=first,
        data=data,
        starts=starts,
        ends=ends,
        columns={name: values[kept] for name, values in block.columns.items()},
        failures=(),
        line_end=b"",
    )
