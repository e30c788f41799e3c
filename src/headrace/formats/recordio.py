"""The MXNet RecordIO format: magic number, length, record, padding."""

from dataclasses import dataclass
from struct import Struct
from typing import Final

from typing_extensions import override

from headrace.formats.frames import RECORDS_MAX, FramedFormat, FrameHeader, Framing, ScanBounds

MAGIC: Final = 0xCED7230A
_HEADER: Final = Struct("<II")
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
    header_bytes = _HEADER.size
    separator = MAGIC.to_bytes(4, "little")

    @override
    def scan(self, data: bytes, bounds: ScanBounds) -> tuple[list[int], list[int], int]:
        starts: list[int] = []
        ends: list[int] = []
        at, unpack_from = bounds.start, _HEADER.unpack_from
        last_header = len(data) - _HEADER.size
        # The bits above the length are zero in the frame of a whole record.
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

    @override
    def parse_header(self, data: bytes) -> FrameHeader | str:
        magic, length_word = _HEADER.unpack(data)
        if magic != MAGIC:
            return f"a frame begins with 0x{magic:08x} instead of the magic number 0x{MAGIC:08x}"
        length, part = length_word & _LENGTH_MASK, length_word >> _LENGTH_BITS
        if part > _LAST:
            return f"a frame has part number {part}, but only {_WHOLE} to {_LAST} are defined"
        size = _HEADER.size + (length + 3 & ~3)
        return FrameHeader(length, size, begins=part in (_WHOLE, _FIRST), ends=part in (_WHOLE, _LAST))

    @override
    def defect(self, frame: bytes) -> str:
        del frame
        return ""
