"""The TFRecord format: length, checksum, record, checksum.

This module is the adapter for google-crc32c (extra `tfrecord`), which computes checksums by CPU
instruction.
"""

from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final, cast

from typing_extensions import override

from headrace.core.errors import MissingExtraError
from headrace.formats.frames import RECORDS_MAX, FramedFormat, FrameHeader, Framing, ScanBounds

try:
    import google_crc32c
except ImportError as error:
    raise MissingExtraError("tfrecord", "reading TFRecord files") from error

crc32c: Callable[[bytes], int] = cast("Any", google_crc32c).value  # The library has no types.
"""The CRC-32C (Castagnoli) of bytes."""


_HEADER: Final = Struct("<QI")
_LENGTH_BYTES: Final = 8
_TRAILER_BYTES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TfRecordFormat(FramedFormat):
    """A format with one record per frame.

    A frame is the length (u64), its masked CRC-32C, the record, and the record's masked CRC-32C,
    all little-endian.

    Every checksum is verified: that of the length, without which the header is invalid, and that of
    the record. The byte of a position is that of the length.

    Importing this module raises MissingExtraError without the extra `tfrecord`.
    """

    @override
    def framing(self) -> Framing:
        return _TfRecordFraming()


def masked_crc32c(data: bytes) -> int:
    """Return the masked checksum of TFRecord: CRC-32C, rotated, plus a constant.

    The mask allows checksums inside checksummed data.
    """
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


class _TfRecordFraming(Framing):
    format_name = "TFRecord"
    header_bytes = _HEADER.size
    separator = b""

    def __init__(self) -> None:
        self._last_valid_header = b""
        """Last header with a correct checksum. Consecutive headers are often equal."""

    @override
    def scan(self, data: bytes, bounds: ScanBounds) -> tuple[list[int], list[int], int]:
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
            if header != self._last_valid_header:
                if crc(header[:_LENGTH_BYTES]) != length_crc:
                    break
                self._last_valid_header = header
            if crc(data[start:end]) != int.from_bytes(data[end:stop], "little"):
                break
            starts.append(start)
            ends.append(end)
            at = stop
        return starts, ends, at

    @override
    def parse_header(self, data: bytes) -> FrameHeader | str:
        length, length_crc = _HEADER.unpack(data)
        if masked_crc32c(data[:_LENGTH_BYTES]) != length_crc:
            return f"the checksum of a record's length ({length}) is wrong"
        return FrameHeader(length, _HEADER.size + length + _TRAILER_BYTES)

    @override
    def defect(self, frame: bytes) -> str:
        if masked_crc32c(frame[_HEADER.size : -_TRAILER_BYTES]) == int.from_bytes(
            frame[-_TRAILER_BYTES:], "little"
        ):
            return ""
        return "the checksum of the record is wrong: its bytes changed after they were written"
