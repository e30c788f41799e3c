"""Cut framed binary records (header with the length, record, trailer), such as those of MXNet RecordIO.

A `Framing` describes the frame layout. `FramedFormat` implements the rest for all framings: buffering
between chunks of any size, records split over several frames, size limits, positions, skipping, and
truncated input.

Each byte is copied once, or twice if it arrives before its record is complete. A record is examined
once it is complete, so its cost does not depend on the chunk size.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from struct import Struct
from typing import ClassVar, Final, Protocol

import numpy as np
from typing_extensions import override

from headrace.core.block import RAW_BYTES_KEPT_MAX, Block, Failure, FailureKind, Position
from headrace.core.errors import ConfigError, CorruptError, TruncatedError
from headrace.formats.contract import BLOCK_BYTES_MAX, RECORD_BYTES_MAX, Buffer, Format

RECORDS_MAX: Final = 1 << 16
"""Maximum number of records in one block."""


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """The parsed header of a frame.

    `frame_bytes` is the length of the whole frame; `record_bytes` is the length of the record, or
    part of a record, in it. `begins` is true if the record begins in this frame, `ends` if it ends
    there. Both are true for a frame with a whole record.
    """

    record_bytes: int
    frame_bytes: int
    begins: bool = True
    ends: bool = True


class Framing(Protocol):
    """The layout of the frames of one file format."""

    format_name: ClassVar[str]
    """Name of the format in error messages."""
    header_bytes: ClassVar[int]
    """Length of every frame header in bytes."""
    separator: ClassVar[bytes]
    """Bytes that stood between the parts of a record that was split over several frames."""

    def scan(self, data: bytes, bounds: "ScanBounds") -> tuple[list[int], list[int], int]:
        """Find the records of consecutive valid frames within `bounds`.

        Return their start offsets, their end offsets, and the end offset of the last valid frame.
        The scan stops before a frame that is incomplete, invalid or too long, or that holds only
        part of a record.
        """
        ...

    def parse_header(self, data: bytes) -> FrameHeader | str:
        """Parse a header of `header_bytes` bytes. Return the reason as a string if it is invalid."""
        ...

    def defect(self, frame: bytes) -> str:
        """Return the defect of a complete frame whose header is valid, or an empty string."""
        ...


@dataclass(frozen=True, slots=True)
class ScanBounds:
    """The limits of one scan.

    The scan begins at `start`. Frames must end by `stop`, except for the first. Records have at
    most `record_bytes_max` bytes.
    """

    start: int
    stop: int
    record_bytes_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FramedFormat(Format):
    """A format with one record per frame.

    A record that is longer than `record_bytes_max`, or whose frame has a defect, becomes a failure
    (kind FORMAT), and reading continues after it. `block_bytes_max` limits a block, unless one record
    is longer.

    Raises:
        CorruptError: Raised by `blocks` if a header is invalid, so that the offset of the next one is
            unknown, after all complete records before it.
        TruncatedError: Raised by `blocks` if the bytes end within a record, after all complete
            records.
    """

    record_bytes_max: int = RECORD_BYTES_MAX
    block_bytes_max: int = BLOCK_BYTES_MAX

    def framing(self) -> Framing:
        """Return the layout of the frames, for one member."""
        raise NotImplementedError

    @override
    def blocks(self, chunks: Iterable[Buffer], first: Position) -> Iterator[Block]:
        cutter = FrameCutter(
            self.framing(),
            first,
            record_bytes_max=self.record_bytes_max,
            block_bytes_max=self.block_bytes_max,
        )
        for chunk in chunks:
            yield from cutter.feed(chunk)
        cutter.finish()


class FrameCutter:
    """An incremental cutter of one member's bytes into blocks.

    Pass chunks to `feed`, then call `finish`.

    It holds at most `record_bytes_max` bytes of an unfinished record, besides one block.
    """

    def __init__(
        self, framing: Framing, first: Position, *, record_bytes_max: int, block_bytes_max: int
    ) -> None:
        if record_bytes_max < 1 or block_bytes_max < 1:
            raise ConfigError(
                "record_bytes_max and block_bytes_max must be at least 1, "
                f"not {record_bytes_max} and {block_bytes_max}"
            )
        self._framing = framing
        self._record_bytes_max = record_bytes_max
        self._block_bytes_max = block_bytes_max
        # `_next` is the position of the next record's header. `_frame_offset` is the distance from
        # there to the next frame of a record in several frames.
        self._next = first
        self._frame_offset = 0
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._bytes_needed = framing.header_bytes
        self._skip_bytes = 0
        self._parts: list[bytes] = []
        self._parts_bytes = 0
        self._dropping_record = False

    def feed(self, chunk: Buffer) -> Iterator[Block]:
        """Yield blocks of the records, and of the failures, that end in this chunk."""
        view = memoryview(chunk)
        at = 0
        while at < len(view):
            if self._skip_bytes:
                skipped = min(self._skip_bytes, len(view) - at)
                self._skip_bytes -= skipped
                at += skipped
                continue
            # A bytes chunk that is taken as a whole is not copied.
            whole = not at and len(view) <= self._block_bytes_max
            piece = bytes(chunk if whole else view[at : at + self._block_bytes_max])
            at += len(piece)
            self._held.append(piece)
            self._held_bytes += len(piece)
            if self._held_bytes >= self._bytes_needed:
                yield from self._cut_held()

    def finish(self) -> None:
        """Raise TruncatedError unless the bytes end at the end of a record."""
        if not (self._held_bytes or self._frame_offset or self._skip_bytes):
            return
        end = self._next.byte + self._frame_offset + self._held_bytes - self._skip_bytes
        raise TruncatedError(
            f"the {self._framing.format_name} file ends early, at byte {end}, within a record: the upload or "
            "the program that wrote it was cut short; fetch or write it again",
            byte=end,
        )

    def _cut_held(self) -> Iterator[Block]:
        """Yield all blocks that the held bytes complete, and keep the rest."""
        data = self._held[0] if len(self._held) == 1 else b"".join(self._held)
        self._held, self._held_bytes, self._bytes_needed = [], 0, 0
        at = 0
        while at < len(data):
            consumed = 0
            if not self._frame_offset:
                consumed, block = self._take_valid_frames(data, at)
                if block is not None:
                    yield block
            if not consumed:
                consumed, block = self._take_frame(data, at)
                if block is not None:
                    yield block
            if not consumed:
                break
            at += consumed
        if at > len(data):
            self._skip_bytes, at = at - len(data), len(data)
        if at < len(data):
            self._held.append(data[at:])
            self._held_bytes = len(data) - at

    def _take_valid_frames(self, data: bytes, at: int) -> tuple[int, Block | None]:
        """Take consecutive valid frames that hold one record each.

        Return their length in bytes and their block.
        """
        bounds = ScanBounds(at, at + self._block_bytes_max, self._record_bytes_max)
        starts, ends, stop = self._framing.scan(data, bounds)
        if not starts:
            return 0, None
        first = self._next
        self._next = replace(first, byte=first.byte + stop - at, record=first.record + len(starts))
        block = Block(
            first,
            data[at:stop],
            np.array(starts, np.int64) - at,
            np.array(ends, np.int64) - at,
            header_bytes=self._framing.header_bytes,
        )
        return stop - at, block

    def _take_frame(self, data: bytes, at: int) -> tuple[int, Block | None]:
        """Process the frame at `at`.

        Return its length in bytes (0 if it is incomplete) and a block, if any.

        The length may exceed the available bytes; the excess is to be skipped.
        """
        framing = self._framing
        if not self._require_bytes(data, at, framing.header_bytes):
            return 0, None
        header = self._parse_header(data[at : at + framing.header_bytes])
        if self._dropping_record:
            return self._advance(header), None
        start = at + framing.header_bytes
        separator = framing.separator if self._parts else b""
        size = self._parts_bytes + len(separator) + header.record_bytes
        if size > self._record_bytes_max:
            keep = min(header.record_bytes, RAW_BYTES_KEPT_MAX, self._record_bytes_max)
            if not self._require_bytes(data, at, framing.header_bytes + keep):
                return 0, None
            raw = b"".join((*self._parts, separator, data[start : start + keep]))[: self._record_bytes_max]
            block = self._failure_block(f"longer than record_bytes_max={self._record_bytes_max}", raw)
            self._parts, self._parts_bytes, self._dropping_record = [], 0, True
            return self._advance(header), block
        if not self._require_bytes(data, at, header.frame_bytes):
            return 0, None
        self._parts += [separator, data[start : start + header.record_bytes]]
        self._parts_bytes = size
        block = self._finish_record(data[at : at + header.frame_bytes]) if header.ends else None
        return self._advance(header), block

    def _require_bytes(self, data: bytes, at: int, size: int) -> bool:
        """Return True if `size` bytes are available at `at`; otherwise record them as needed."""
        if len(data) - at >= size:
            return True
        self._bytes_needed = size
        return False

    def _parse_header(self, data: bytes) -> FrameHeader:
        header = self._framing.parse_header(data)
        if isinstance(header, FrameHeader) and header.begins == bool(self._frame_offset):
            if header.begins:
                header = "a record begins within another"
            else:
                header = "a record continues without a first frame"
        if isinstance(header, FrameHeader):
            return header
        byte = self._next.byte + self._frame_offset
        raise CorruptError(
            f"invalid {self._framing.format_name} at byte {byte}: {header}; the rest is not read", byte=byte
        )

    def _finish_record(self, frame: bytes) -> Block:
        """Return a block with the record that ends in this frame."""
        record = b"".join(self._parts)
        self._parts, self._parts_bytes = [], 0
        defect = self._framing.defect(frame)
        return (
            self._failure_block(defect, record)
            if defect
            else self._multi_frame_block(record, self._frame_offset + len(frame))
        )

    def _advance(self, header: FrameHeader) -> int:
        """Move the position past a frame and return the frame's length."""
        self._frame_offset += header.frame_bytes
        if header.ends:
            here = self._next
            self._next = replace(here, byte=here.byte + self._frame_offset, record=here.record + 1)
            self._frame_offset = 0
            self._dropping_record = False
        return header.frame_bytes

    def _failure_block(self, why: str, raw: bytes) -> Block:
        failure = Failure(self._next, FailureKind.FORMAT, why, raw[:RAW_BYTES_KEPT_MAX])
        return Block(self._next, failures=(failure,))

    def _multi_frame_block(self, record: bytes, frames_bytes: int) -> Block:
        """Return a block with one record that was split over several frames.

        The block's data is as long as these frames, so that the byte offset of the next record is
        right.
        """
        header = self._framing.header_bytes
        data = bytes(header) + record
        return Block(
            self._next,
            data.ljust(frames_bytes, b"\0"),
            np.array([header], np.int64),
            np.array([len(data)], np.int64),
            header_bytes=header,
        )


RECORDIO_MAGIC: Final = 0xCED7230A
_RECORDIO_HEADER: Final = Struct("<II")
_LENGTH_BITS: Final = 29
_LENGTH_MASK: Final = (1 << _LENGTH_BITS) - 1
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)
"""Part numbers in the bits above the length: a whole record, or its first, a middle or its last part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordIOFormat(FramedFormat):
    """A format with one record per frame.

    A frame is the magic number, a u32 with the length in its lower 29 bits, the record, and zeros
    up to a multiple of 4.

    A record that contains the magic number at a multiple of 4 was written in several frames without
    it; the parts are joined again. A frame that does not begin with the magic number or is out of
    order has an invalid header. The byte of a position is that of the (first) magic number.
    """

    @override
    def framing(self) -> Framing:
        return _RecordIOFraming()


class _RecordIOFraming(Framing):
    format_name = "RecordIO"
    header_bytes = _RECORDIO_HEADER.size
    separator = RECORDIO_MAGIC.to_bytes(4, "little")

    @override
    def scan(self, data: bytes, bounds: ScanBounds) -> tuple[list[int], list[int], int]:
        starts: list[int] = []
        ends: list[int] = []
        at, unpack_from = bounds.start, _RECORDIO_HEADER.unpack_from
        last_header = len(data) - _RECORDIO_HEADER.size
        # The bits above the length are zero in the frame of a whole record.
        longest = min(bounds.record_bytes_max, _LENGTH_MASK)
        while at <= last_header and len(starts) < RECORDS_MAX:
            magic, length = unpack_from(data, at)
            start = at + _RECORDIO_HEADER.size
            stop = start + (length + 3 & ~3)
            if (
                magic != RECORDIO_MAGIC
                or length > longest
                or stop > len(data)
                or (stop > bounds.stop and starts)
            ):
                break
            starts.append(start)
            ends.append(start + length)
            at = stop
        return starts, ends, at

    @override
    def parse_header(self, data: bytes) -> FrameHeader | str:
        magic, length_word = _RECORDIO_HEADER.unpack(data)
        if magic != RECORDIO_MAGIC:
            return f"a frame begins with 0x{magic:08x} instead of the magic number 0x{RECORDIO_MAGIC:08x}"
        length, part = length_word & _LENGTH_MASK, length_word >> _LENGTH_BITS
        if part > _LAST:
            return f"a frame has part number {part}, but only {_WHOLE} to {_LAST} are defined"
        size = _RECORDIO_HEADER.size + (length + 3 & ~3)
        return FrameHeader(length, size, begins=part in (_WHOLE, _FIRST), ends=part in (_WHOLE, _LAST))

    @override
    def defect(self, frame: bytes) -> str:
        del frame
        return ""
