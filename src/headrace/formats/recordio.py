"""RecordIO, as MXNet writes it: magic number, length, record, padding."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Final

from headrace.core.block import Block, Position
from headrace.formats.contract import BLOCK_BYTES_MAX, RECORD_BYTES_MAX, Buffer
from headrace.formats.frames import RECORDS_MAX, Bounds, Head, cut_frames

MAGIC: Final = 0xCED7230A
_HEADER: Final = Struct("<II")
_LENGTH_BITS: Final = 29
_LENGTH_MASK: Final = (1 << _LENGTH_BITS) - 1
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)
"""What the bits above the length say of the frame: it holds all of a record, or its first, a middle or its last part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordIOFormat:
    """One record a frame: the magic number, u32 with the length in its lower 29 bits, the record, zeros up to a multiple of 4.

    A record in which the magic number stood at a multiple of 4 was written in several frames, without it; here it
    is one again. One that is longer than `record_bytes_max` is a failure (kind FORMAT), and the next is read. A
    position's byte is that of the (first) magic number. `block_bytes_max` bounds a block, unless one record is longer.

    `blocks` raises, after all whole records before, CorruptError where a frame does not begin with the magic number
    or is out of its order, and TruncatedError when the bytes end within a record.
    """

    record_bytes_max: int = RECORD_BYTES_MAX
    block_bytes_max: int = BLOCK_BYTES_MAX

    def blocks(self, chunks: Iterable[Buffer], first: Position) -> Iterator[Block]:
        """Blocks of the records that each chunk completes."""
        return cut_frames(
            chunks,
            first,
            _Framing(),
            record_bytes_max=self.record_bytes_max,
            block_bytes_max=self.block_bytes_max,
        )


class _Framing:
    what = "RecordIO"
    header_bytes = _HEADER.size
    joint = MAGIC.to_bytes(4, "little")

    def scan(self, data: bytes, bounds: Bounds) -> tuple[list[int], list[int], int]:
        starts: list[int] = []
        ends: list[int] = []
        at, unpack_from = bounds.start, _HEADER.unpack_from
        last_header = len(data) - _HEADER.size
        # Of a whole record's frame the bits above the length are zero.
        longest = min(bounds.record_bytes_max, _LENGTH_MASK)
        while at <= last_header and len(starts) < RECORDS_MAX:
            magic, length = unpack_from(data, at)
            start = at + _HEADER.size
            stop = start + (length + 3 & ~3)
            if magic != MAGIC or length > longest or stop > len(data) or (stop > bounds.stop and starts):
                break
            starts.append(start)
            ends.append(start + length)
            at = stop
        return starts, ends, at

    def head(self, header: bytes) -> Head | str:
        magic, told = _HEADER.unpack(header)
        if magic != MAGIC:
            return f"a frame begins with 0x{magic:08x} instead of the magic number 0x{MAGIC:08x}"
        length, part = told & _LENGTH_MASK, told >> _LENGTH_BITS
        if part > _LAST:
            return f"a frame says that it is part {part} of a record, but there are only {_WHOLE} to {_LAST}"
        size = _HEADER.size + (length + 3 & ~3)
        return Head(length, size, begins=part in (_WHOLE, _FIRST), ends=part in (_WHOLE, _LAST))

    def flaw(self, frame: bytes) -> str:
        del frame
        return ""
