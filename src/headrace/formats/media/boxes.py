"""Incremental checks of the top-level structure of MP4 and Matroska streams.

The decoder above accepts damaged input: it ends silently where a file is cut off, and searches for
the next frame after damage. These scanners detect both cases. They hold one header at a time.
"""

from typing import Protocol

from typing_extensions import override

from headrace.core.errors import CorruptError, TruncatedError

HELD_BYTES_MAX = 64 << 20
"""Maximum size of an MP4 index and of one Matroska element. The decoder holds both in memory."""

INDEX_AFTER_MEDIA = (
    "the index (moov) follows the media (mdat), so the file cannot be decoded as a stream: rewrite it with "
    "`ffmpeg -i IN -c copy -movflags +faststart OUT`, or write it fragmented"
)


class BoxScanner(Protocol):
    """A checker of the structure of a stream."""

    def feed(self, data: bytes) -> None:
        """Check the next bytes. Raise `CorruptError` at an invalid header."""
        ...

    def check_end(self) -> None:
        """Raise `TruncatedError` if the bytes so far end inside a part."""
        ...


class _HeaderScanner(BoxScanner):
    """A scanner that alternates between collecting a header and skipping a body."""

    def __init__(self, start_byte: int) -> None:
        self._position = start_byte  # Offset of the next byte.
        self._next_header = start_byte  # Offset of the next header.
        self._header = bytearray()

    @override
    def feed(self, data: bytes) -> None:
        offset = 0
        while offset < len(data):
            step = min(len(data) - offset, self._next_header - self._position)
            if step <= 0:
                step = 1
                self._header += data[offset : offset + 1]
                self._next_header += self._read_header()
            self._position += step
            offset += step

    def _read_header(self) -> int:
        """Return the distance to add to `_next_header`.

        The distance is 1 while the header is incomplete, then 1 plus the number of bytes to skip.
        """
        raise NotImplementedError

    def _header_start(self) -> int:
        """Return the offset of the current header."""
        return self._position - len(self._header) + 1


class Mp4Boxes(_HeaderScanner):
    """A scanner of the top-level boxes of MP4 (ISO base media).

    It rejects files whose index follows the media.
    """

    def __init__(self, start_byte: int = 0) -> None:
        super().__init__(start_byte)
        self._name = b""
        self._indexed = False
        self._open_ended = False

    @override
    def check_end(self) -> None:
        if self._open_ended:
            return
        if self._header:
            raise TruncatedError("the MP4 file ends inside the header of a box", byte=self._position)
        if self._position < self._next_header:
            missing = self._next_header - self._position
            raise TruncatedError(
                f"the MP4 file ends inside the box {self._name!r}, {missing} bytes early", byte=self._position
            )
        if not self._indexed:
            raise TruncatedError("the MP4 file ends before its index (moov)", byte=self._position)

    @override
    def _read_header(self) -> int:
        header = bytes(self._header)
        if len(header) < 8:
            return 1
        size, self._name = int.from_bytes(header[:4], "big"), header[4:8]
        if size == 1:  # The size is in the next eight bytes.
            if len(header) < 16:
                return 1
            size = int.from_bytes(header[8:], "big")
        self._check(size, len(header))
        self._header.clear()
        if size == 0:  # The last box extends to the end of the file.
            self._open_ended = True
            return 1 << 62
        return 1 + size - len(header)

    def _check(self, size: int, header_bytes: int) -> None:
        if not all(0x20 <= c < 0x7F or c == 0xA9 for c in self._name) or 0 < size < header_bytes:
            raise CorruptError(
                f"{self._name!r} with {size} bytes is not an MP4 box", byte=self._header_start()
            )
        if self._name == b"mdat" and not self._indexed:
            raise CorruptError(INDEX_AFTER_MEDIA, byte=self._header_start())
        if self._name not in (b"moov", b"moof"):
            return
        self._indexed = True
        if size > HELD_BYTES_MAX:
            raise CorruptError(
                f"the index {self._name!r} has {size} bytes, more than {HELD_BYTES_MAX}: split the file",
                byte=self._header_start(),
            )


_SEGMENT, _CLUSTER = 0x18538067, 0x1F43B675


class MatroskaElements(_HeaderScanner):
    """A scanner of Matroska and WebM elements.

    It checks the elements at the top level, in the segment and in its clusters.
    """

    def __init__(self, start_byte: int = 0) -> None:
        super().__init__(start_byte)
        self._end = 0  # Highest end offset that a segment or cluster declares.
        self._clusters = 0

    @override
    def check_end(self) -> None:
        end = max(self._end, self._next_header)
        if self._header or self._position < end:
            raise TruncatedError(
                f"the Matroska file ends {end - self._position} bytes early", byte=self._position
            )
        if not self._clusters:
            raise TruncatedError("the Matroska file ends before its first cluster", byte=self._position)

    @override
    def _read_header(self) -> int:
        header = bytes(self._header)
        id_bytes = _vint_bytes(header[0])
        if id_bytes > 4:
            raise CorruptError(
                f"byte {header[0]:#04x} does not start a Matroska element", byte=self._header_start()
            )
        if len(header) <= id_bytes:
            return 1
        size_bytes = _vint_bytes(header[id_bytes])
        if size_bytes > 8:
            raise CorruptError("a Matroska element has no valid size", byte=self._header_start())
        if len(header) < id_bytes + size_bytes:
            return 1
        skipped = self._skip_length(header[:id_bytes], header[id_bytes:])
        self._header.clear()
        return 1 + skipped

    def _skip_length(self, name: bytes, size_field: bytes) -> int:
        """Return the number of body bytes to skip.

        It is zero for a segment or cluster, because their elements follow.
        """
        element = int.from_bytes(name, "big")
        unknown = (1 << 7 * len(size_field)) - 1
        size = int.from_bytes(size_field, "big") & unknown
        if element not in (_SEGMENT, _CLUSTER):
            if size > HELD_BYTES_MAX:  # This includes the unknown size: all ones in eight bytes.
                raise CorruptError(
                    f"Matroska element {element:#x} claims {size} bytes", byte=self._header_start()
                )
            return size
        self._clusters += element == _CLUSTER
        if size != unknown:
            self._end = max(self._end, self._position + 1 + size)
        return 0


def _vint_bytes(first: int) -> int:
    """Return the length of a variable-size integer in bytes; 9 for a zero byte.

    The leading zeros of the first byte encode the length.
    """
    return 9 - first.bit_length()
