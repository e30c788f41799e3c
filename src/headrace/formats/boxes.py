"""Where the parts of an MP4 or Matroska stream start and end, told from their headers as bytes pass by.

The decoder above forgives much: it ends quietly where a file is cut off, and searches for the next frame where
it is damaged. These scanners hold nothing but a header, and notice.
"""

from typing import Protocol

from headrace.core.errors import CorruptError, TruncatedError

HELD_BYTES_MAX = 64 << 20
"""The largest index of an MP4 file, and the largest single element of a Matroska file: the decoder holds them."""

FASTSTART = (
    "its index (moov) stands behind the video (mdat), so it cannot be decoded as a stream: rewrite it with "
    "`ffmpeg -i IN -c copy -movflags +faststart OUT`, or write it fragmented"
)


class Scanner(Protocol):
    """Watches a stream's structure."""

    def feed(self, data: bytes) -> None:
        """The next bytes. Raises `CorruptError` at a header that cannot be."""
        ...

    def check_end(self) -> None:
        """Raise `TruncatedError` when the bytes so far end inside a part."""
        ...


class _Headers:
    """Walks headers: bytes to pass over, then a header collected until it is whole."""

    def __init__(self, start_byte: int) -> None:
        self._at = start_byte  # offset of the next byte to be fed
        self._next = start_byte  # offset of the next header
        self._header = bytearray()

    def feed(self, data: bytes) -> None:
        """The next bytes."""
        offset = 0
        while offset < len(data):
            passed = min(len(data) - offset, self._next - self._at)
            if passed <= 0:
                passed = 1
                self._header += data[offset : offset + 1]
                self._next += self._read_header()
            self._at += passed
            offset += passed

    def _read_header(self) -> int:
        """How far `_next` moves: 1 while the header is not whole, then 1 and the bytes to pass over."""
        raise NotImplementedError

    def _start(self) -> int:
        """Where the header being read starts."""
        return self._at - len(self._header) + 1


class Mp4Boxes(_Headers):
    """Top-level boxes of MP4 (ISO base media). Refuses an index that comes after the media."""

    def __init__(self, start_byte: int = 0) -> None:
        super().__init__(start_byte)
        self._name = b""
        self._indexed = False
        self._endless = False

    def check_end(self) -> None:
        """Raise `TruncatedError` when the bytes so far end inside a box, or before any index."""
        if self._endless:
            return
        if self._header:
            raise TruncatedError("the MP4 file ends inside the header of a box", byte=self._at)
        if self._at < self._next:
            missing = self._next - self._at
            raise TruncatedError(
                f"the MP4 file ends inside the box {self._name!r}, {missing} bytes early", byte=self._at
            )
        if not self._indexed:
            raise TruncatedError("the MP4 file ends before its index (moov)", byte=self._at)

    def _read_header(self) -> int:
        header = bytes(self._header)
        if len(header) < 8:
            return 1
        size, self._name = int.from_bytes(header[:4], "big"), header[4:8]
        if size == 1:  # the size is in the next eight bytes
            if len(header) < 16:
                return 1
            size = int.from_bytes(header[8:], "big")
        self._check(size, len(header))
        self._header.clear()
        if size == 0:  # the last box: until the end
            self._endless = True
            return 1 << 62
        return 1 + size - len(header)

    def _check(self, size: int, header_bytes: int) -> None:
        if not all(0x20 <= c < 0x7F or c == 0xA9 for c in self._name) or 0 < size < header_bytes:
            raise CorruptError(f"{self._name!r} with {size} bytes is not an MP4 box", byte=self._start())
        if self._name == b"mdat" and not self._indexed:
            raise CorruptError(FASTSTART, byte=self._start())
        if self._name not in (b"moov", b"moof"):
            return
        self._indexed = True
        if size > HELD_BYTES_MAX:
            raise CorruptError(
                f"the index {self._name!r} has {size} bytes, more than {HELD_BYTES_MAX}: split the file",
                byte=self._start(),
            )


_SEGMENT, _CLUSTER = 0x18538067, 0x1F43B675


class MatroskaElements(_Headers):
    """Elements of Matroska and WebM: top level, in the segment, in its clusters."""

    def __init__(self, start_byte: int = 0) -> None:
        super().__init__(start_byte)
        self._end = 0  # the furthest end that a segment or cluster claims
        self._clusters = 0

    def check_end(self) -> None:
        """Raise `TruncatedError` when the bytes so far end inside an element, or before any cluster."""
        end = max(self._end, self._next)
        if self._header or self._at < end:
            raise TruncatedError(f"the Matroska file ends {end - self._at} bytes early", byte=self._at)
        if not self._clusters:
            raise TruncatedError("the Matroska file ends before its first cluster", byte=self._at)

    def _read_header(self) -> int:
        header = bytes(self._header)
        id_bytes = _vint_bytes(header[0])
        if id_bytes > 4:
            raise CorruptError(f"byte {header[0]:#04x} starts no Matroska element", byte=self._start())
        if len(header) <= id_bytes:
            return 1
        size_bytes = _vint_bytes(header[id_bytes])
        if size_bytes > 8:
            raise CorruptError("a Matroska element has no valid size", byte=self._start())
        if len(header) < id_bytes + size_bytes:
            return 1
        passed = self._passed(header[:id_bytes], header[id_bytes:])
        self._header.clear()
        return 1 + passed

    def _passed(self, name: bytes, size_field: bytes) -> int:
        """Bytes of an element's body to pass over: none of a segment or cluster, whose elements follow."""
        element = int.from_bytes(name, "big")
        unknown = (1 << 7 * len(size_field)) - 1
        size = int.from_bytes(size_field, "big") & unknown
        if element not in (_SEGMENT, _CLUSTER):
            if size > HELD_BYTES_MAX:  # also the unknown size, all ones, in eight bytes
                raise CorruptError(f"Matroska element {element:#x} claims {size} bytes", byte=self._start())
            return size
        self._clusters += element == _CLUSTER
        if size != unknown:
            self._end = max(self._end, self._at + 1 + size)
        return 0


def _vint_bytes(first: int) -> int:
    """The length of a variable-size integer, told by its first byte's leading zeros; 9 for a zero byte."""
    return 9 - first.bit_length()
