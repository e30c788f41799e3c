"""TFRecord: length, checksum, record, checksum."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Final

from headrace.core.block import Block, Position
from headrace.formats.contract import BLOCK_BYTES_MAX, RECORD_BYTES_MAX, Buffer
from headrace.formats.crc32c import crc32c
from headrace.formats.frames import RECORDS_MAX, Bounds, Head, cut_frames

_HEADER: Final = Struct("<QI")
_LENGTH_BYTES: Final = 8
_TRAILER_BYTES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TfRecordFormat:
    """One record a frame: u64 length, its masked CRC-32C, the record, the record's masked CRC-32C; little-endian.

    Every checksum is checked. A record whose own is wrong, or that is longer than `record_bytes_max`, is a failure
    (kind FORMAT), and the next is read. A position's byte is that of the length. `block_bytes_max` bounds a block,
    unless one record is longer.

    `blocks` raises, after all whole records before, CorruptError where a length's checksum is wrong and
    TruncatedError when the bytes end within a record. Importing this module raises MissingExtraError without the extra
    `tfrecord`.
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


def masked_crc32c(data: bytes) -> int:
    """The checksum as TFRecord writes it: rotated, and with a constant added, so that checksums can be in checked data."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


class _Framing:
    what = "TFRecord"
    header_bytes = _HEADER.size
    joint = b""

    def __init__(self) -> None:
        self._checked = b""
        """The last header that was found right: most are the same again."""

    def scan(self, data: bytes, bounds: Bounds) -> tuple[list[int], list[int], int]:
        starts: list[int] = []
        ends: list[int] = []
        at, unpack, crc = bounds.start, _HEADER.unpack, masked_crc32c
        last_header = len(data) - _HEADER.size
        while at <= last_header and len(starts) < RECORDS_MAX:
            start = at + _HEADER.size
            header = data[at:start]
            length, length_crc = unpack(header)
            end = start + length
            stop = end + _TRAILER_BYTES
            if stop > len(data) or (stop > bounds.stop and starts) or length > bounds.record_bytes_max:
                break
            if header != self._checked:
                if crc(header[:_LENGTH_BYTES]) != length_crc:
                    break
                self._checked = header
            if crc(data[start:end]) != int.from_bytes(data[end:stop], "little"):
                break
            starts.append(start)
            ends.append(end)
            at = stop
        return starts, ends, at

    def head(self, header: bytes) -> Head | str:
        length, length_crc = _HEADER.unpack(header)
        if masked_crc32c(header[:_LENGTH_BYTES]) != length_crc:
            return f"the checksum of a record's length ({length}) is wrong"
        return Head(length, _HEADER.size + length + _TRAILER_BYTES)

    def flaw(self, frame: bytes) -> str:
        if masked_crc32c(frame[_HEADER.size : -_TRAILER_BYTES]) == int.from_bytes(
            frame[-_TRAILER_BYTES:], "little"
        ):
            return ""
        return "the checksum of the record is wrong: its bytes are not those that were written"
