"""Tests of `ZstdFrame`. Streams of frames are tested in test_compression.py."""

import pytest
import zstandard

from cases import for_each
from headrace.formats.compression import BLOCK_BYTES_MAX, SKIPPABLE_MAGICS, ZstdFrame

TEXT = bytes(range(256)) * 8000


def new_frame(piece_bytes_max=BLOCK_BYTES_MAX):
    state = zstandard.ZstdDecompressor().decompressobj()
    return ZstdFrame(state, zstandard.ZstdError, piece_bytes_max)


@for_each("checksum", [False, True])
@for_each("with_size", [False, True])
def test_frame_ends_at_its_last_byte_and_returns_the_rest(checksum, with_size):
    compressor = zstandard.ZstdCompressor(write_checksum=checksum, write_content_size=with_size)
    data = compressor.compress(TEXT)
    frame = new_frame()
    text = b"".join(frame.pieces(data[:-1]))
    assert len(text) > len(TEXT) - BLOCK_BYTES_MAX
    assert not frame.eof
    assert text + b"".join(frame.pieces(data[-1:] + b"next")) == TEXT
    assert (frame.eof, frame.unused_data) == (True, b"next")


@for_each("pieces_blocks", [1, 3])
def test_pieces_are_bounded(pieces_blocks):
    """Each four-byte block expands to 128 KiB."""
    frame = new_frame(pieces_blocks * BLOCK_BYTES_MAX)
    data = zstandard.ZstdCompressor().compress(bytes(5_000_000))
    assert len(data) < 1000
    sizes = [len(piece) for piece in frame.pieces(data)]
    assert sum(sizes) == 5_000_000
    assert BLOCK_BYTES_MAX < 2 * max(sizes) <= 2 * pieces_blocks * BLOCK_BYTES_MAX


@for_each("size", [1, 2, 1000])
def test_skippable_frame_yields_nothing(size):
    data = SKIPPABLE_MAGICS[9] + (50).to_bytes(4, "little") + bytes(50) + b"\x28"
    frame = new_frame()
    for at in range(0, len(data) - 1, size):
        assert list(frame.pieces(data[at : at + size])) == []
    assert (frame.eof, frame.unused_data) == (True, b"\x28" if size == 1000 else b"")


def test_corrupt_data_is_an_os_error():
    data = bytearray(zstandard.ZstdCompressor().compress(TEXT))
    data[6] |= 0x06  # A block of the reserved type.
    frame = new_frame()
    with pytest.raises(OSError, match=r"block|[Cc]orrupt"):
        list(frame.pieces(bytes(data)))
