"""One zstd frame, walked block by block so that what it gives is bounded. Laid out as RFC 8878 (3.1) has it.

The library gives all that its input holds at once, and four bytes may stand for 128 KiB: so the headers of blocks are
read here, and no more blocks are handed over than fill a piece. `headrace.formats.compression` is the door to the
library itself.
"""

from collections.abc import Iterator
from typing import Any, Final

SKIPPABLE_MAGICS: Final = tuple(bytes([0x50 + i, 0x2A, 0x4D, 0x18]) for i in range(16))
"""How frames begin that hold no data of the stream's."""
BLOCK_BYTES_MAX: Final = 1 << 17
"""The most that one block gives."""


class ZstdFrame:
    """One frame, or skippable frame, on its way: compressed bytes in, bounded pieces out.

    `eof` is true once its last byte came; `unused_data` is then what came behind it.

    Args:
        state: zstandard's ``decompressobj`` for one frame.
        error: What `state` raises for bad data.
        piece_bytes_max: The most bytes of a piece; 128 KiB at least.
    """

    def __init__(self, state: Any, error: type[Exception], piece_bytes_max: int) -> None:
        self._state = state
        self._error = error
        self._blocks_a_call = piece_bytes_max // BLOCK_BYTES_MAX
        self._held: bytes = b""  # the start of a header that is not all there
        self._left = 0  # bytes until the next header
        self._begun = self._skippable = self._last = False
        self._checksum_bytes = 0
        self.eof = False
        self.unused_data: bytes = b""

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """What these compressed bytes give. Raises OSError for bad data."""
        data = self._held + data
        given = at = 0
        blocks = int(self._left > 0)
        while True:
            step = min(self._left, len(data) - at)
            self._left -= step
            at += step
            self.eof = self._last and not self._left
            if self._left or self.eof:
                break
            if blocks == self._blocks_a_call:
                yield from self._give(data[given:at])
                given, blocks = at, 0
            self._left = self._length(data[at : at + 8])
            if not self._left:
                break
            blocks += 1
        self._held = b"" if self.eof else data[at:]
        self.unused_data = data[at:] if self.eof else b""
        yield from self._give(data[given:at])

    def _length(self, head: bytes) -> int:
        """Bytes of the frame's header, or of the next block with its header; 0 when `head` is too short to tell."""
        if not self._begun:
            return self._header_length(head)
        if len(head) < 3:
            return 0
        header = int.from_bytes(head[:3], "little")
        self._last = bool(header & 1)
        repeats_one_byte = header >> 1 & 3 == 1
        return 3 + (1 if repeats_one_byte else header >> 3) + (self._checksum_bytes if self._last else 0)

    def _header_length(self, head: bytes) -> int:
        self._skippable = head[:4] in SKIPPABLE_MAGICS
        if len(head) < (8 if self._skippable else 5):
            return 0
        self._begun = True
        if self._skippable:
            self._last = True
            return 8 + int.from_bytes(head[4:8], "little")
        descriptor = head[4]
        one_segment = descriptor >> 5 & 1
        self._checksum_bytes = 4 * (descriptor >> 2 & 1)
        content_size_bytes = (one_segment, 2, 4, 8)[descriptor >> 6]
        return 5 + (1 - one_segment) + (0, 1, 2, 4)[descriptor & 3] + content_size_bytes

    def _give(self, data: bytes) -> Iterator[bytes]:
        if self._skippable or not data:
            return
        try:
            piece: bytes = self._state.decompress(data)
        except self._error as error:
            raise OSError(str(error)) from error
        if self.eof and not self._state.eof:
            raise OSError("the frame goes on behind its last block")
        if piece:
            yield piece
