"""Decompress one zstd frame block by block in bounded pieces. The layout is that of RFC 8878 (3.1).

The library decompresses all of its input at once, and four bytes may expand to 128 KiB. This module
therefore reads the headers of blocks, and passes the library only as many blocks as fit in a piece.
`headrace.formats.compression` imports the library.
"""

from collections.abc import Iterator
from typing import Any, Final

SKIPPABLE_MAGICS: Final = tuple(bytes([0x50 + i, 0x2A, 0x4D, 0x18]) for i in range(16))
"""First bytes of skippable frames. Such frames hold no data of the stream."""
BLOCK_BYTES_MAX: Final = 1 << 17
"""Maximum decompressed size of one block."""


class ZstdFrame:
    """An incremental decoder of one frame or skippable frame. It yields bounded pieces.

    `eof` is true after the last byte of the frame; `unused_data` then holds the bytes after it.

    Args:
        state: zstandard's ``decompressobj`` for one frame.
        error: Exception type that `state` raises for bad data.
        piece_bytes_max: Maximum size of a piece in bytes, 128 KiB or more.
    """

    def __init__(self, state: Any, error: type[Exception], piece_bytes_max: int) -> None:
        self._state = state
        self._error = error
        self._blocks_per_call = piece_bytes_max // BLOCK_BYTES_MAX
        self._partial_header: bytes = b""  # Start of an incomplete header.
        self._unit_remaining = 0  # Bytes until the next header.
        self._started = self._skippable = self._in_last_block = False
        self._checksum_bytes = 0
        self.eof = False
        self.unused_data: bytes = b""

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Yield the decompressed content of these compressed bytes. Raise OSError for bad data."""
        data = self._partial_header + data
        emitted = at = 0
        blocks = int(self._unit_remaining > 0)
        while True:
            step = min(self._unit_remaining, len(data) - at)
            self._unit_remaining -= step
            at += step
            self.eof = self._in_last_block and not self._unit_remaining
            if self._unit_remaining or self.eof:
                break
            if blocks == self._blocks_per_call:
                yield from self._decompress(data[emitted:at])
                emitted, blocks = at, 0
            self._unit_remaining = self._next_unit_bytes(data[at : at + 8])
            if not self._unit_remaining:
                break
            blocks += 1
        self._partial_header = b"" if self.eof else data[at:]
        self.unused_data = data[at:] if self.eof else b""
        yield from self._decompress(data[emitted:at])

    def _next_unit_bytes(self, head: bytes) -> int:
        """Return the length of the frame header, or of the next block with its header.

        Return 0 if `head` is too short.
        """
        if not self._started:
            return self._frame_header_bytes(head)
        if len(head) < 3:
            return 0
        header = int.from_bytes(head[:3], "little")
        self._in_last_block = bool(header & 1)
        is_rle = header >> 1 & 3 == 1
        return 3 + (1 if is_rle else header >> 3) + (self._checksum_bytes if self._in_last_block else 0)

    def _frame_header_bytes(self, head: bytes) -> int:
        self._skippable = head[:4] in SKIPPABLE_MAGICS
        if len(head) < (8 if self._skippable else 5):
            return 0
        self._started = True
        if self._skippable:
            self._in_last_block = True
            return 8 + int.from_bytes(head[4:8], "little")
        descriptor = head[4]
        single_segment = descriptor >> 5 & 1
        self._checksum_bytes = 4 * (descriptor >> 2 & 1)
        content_size_bytes = (single_segment, 2, 4, 8)[descriptor >> 6]
        return 5 + (1 - single_segment) + (0, 1, 2, 4)[descriptor & 3] + content_size_bytes

    def _decompress(self, data: bytes) -> Iterator[bytes]:
        if self._skippable or not data:
            return
        try:
            piece: bytes = self._state.decompress(data)
        except self._error as error:
            raise OSError(str(error)) from error
        if self.eof and not self._state.eof:
            raise OSError("the frame continues after its last block")
        if piece:
            yield piece
