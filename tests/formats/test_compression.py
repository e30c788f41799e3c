"""Tests of streaming decompression: chunk edges, truncation and damage, bounded pieces."""

import bz2
import gzip
import struct
import sys
import zlib
from itertools import pairwise

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import for_each
from formats.chunks import cut, reuse_buffer
from headrace.core.errors import CorruptError, MissingExtraError, TruncatedError
from headrace.formats.compression import MAGIC, PIECE_BYTES_MAX, WINDOW_BYTES, decompress
from levels import examples

KINDS = ("gzip", "bzip2", "zstd")
READERS = [("gzip", True), ("gzip", False), ("bzip2", True), ("zstd", True)]
each_reader = pytest.mark.parametrize(
    ("kind", "fast"), READERS, ids=["gzip by isal", "gzip by zlib", "bzip2", "zstd"]
)
each_kind = pytest.mark.parametrize("kind", KINDS)


def compress(kind, data):
    if kind == "gzip":
        return gzip.compress(data, 6, mtime=0)
    if kind == "bzip2":
        return bz2.compress(data, 1)
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


def numbers(count, seed=3):
    """Return text that compresses about as well as numbers do."""
    values = np.random.default_rng(seed).normal(size=count)
    return "".join(f"{v:.5f}\n" for v in values.tolist()).encode()


def decompress_until_error(kind, chunks, *, fast=True):
    """Return the decompressed bytes, and the error or None."""
    pieces, error = [], None
    try:
        for piece in decompress(kind, chunks, fast=fast):
            assert 0 < len(piece) <= PIECE_BYTES_MAX
            pieces.append(piece)
    except CorruptError as caught:
        error = caught
    return b"".join(pieces), error


SMALL = {k: compress(k, b"one,1\n") + compress(k, b"") + compress(k, numbers(120)) for k in KINDS}
SMALL_TEXT = b"one,1\n" + numbers(120)
LARGE_TEXT = numbers(150_000)
LARGE = {k: compress(k, LARGE_TEXT) for k in KINDS}


@each_reader
def test_consecutive_members_are_concatenated(kind, fast):
    assert decompress_until_error(kind, [SMALL[kind]], fast=fast) == (SMALL_TEXT, None)


@each_reader
@for_each("size", [1, 2, 3, 7, 64])
def test_small_chunks_of_a_reused_buffer(kind, fast, size):
    assert decompress_until_error(kind, reuse_buffer(SMALL[kind], size), fast=fast) == (SMALL_TEXT, None)


@each_reader
@settings(max_examples=examples(0.5))
@given(choice=st.data())
def test_result_does_not_depend_on_chunk_edges(kind, fast, choice):
    data = SMALL[kind]
    edges = choice.draw(st.lists(st.integers(0, len(data)), max_size=12))
    assert decompress_until_error(kind, cut(data, edges), fast=fast) == (SMALL_TEXT, None)


@each_reader
@for_each("size", [4096, WINDOW_BYTES - 1, WINDOW_BYTES + 1, 1 << 22])
def test_input_larger_than_a_window_and_a_piece(kind, fast, size):
    assert len(LARGE_TEXT) > PIECE_BYTES_MAX
    assert len(LARGE[kind]) > 4 * WINDOW_BYTES
    assert decompress_until_error(kind, reuse_buffer(LARGE[kind], size), fast=fast) == (LARGE_TEXT, None)


@each_kind
def test_one_chunk_yields_few_pieces(kind):
    """Later stages have a cost per piece, so the windows of a chunk are not yielded one by one."""
    pieces = list(decompress(kind, [LARGE[kind]]))
    assert len(pieces) <= 2 * len(LARGE_TEXT) // PIECE_BYTES_MAX + 2


@each_kind
def test_bytes_are_yielded_before_the_next_chunk_is_read(kind):
    """Half of the stream yields about half of the bytes."""
    data = LARGE[kind]
    chunk_sizes = []

    def chunks():
        for half in (data[: len(data) // 2], data[len(data) // 2 :]):
            chunk_sizes.append(len(half))
            yield half

    source, size = decompress(kind, chunks()), 0
    while len(chunk_sizes) < 2:
        size += len(next(source))
    assert size > 0.3 * len(LARGE_TEXT)


# Truncation and damage


@each_reader
@for_each("lacks", [1, 4, 8, 9, 1000])
def test_truncated_stream_names_its_offset_after_all_bytes(kind, fast, lacks):
    data = compress(kind, LARGE_TEXT[:300_000]) + LARGE[kind]
    text, error = decompress_until_error(kind, cut(data[:-lacks], [5000, 50_000]), fast=fast)
    whole = LARGE_TEXT[:300_000] + LARGE_TEXT
    assert isinstance(error, TruncatedError)
    assert error.byte == len(data) - lacks
    assert f"after {error.byte} compressed bytes" in error.why
    assert whole.startswith(text)
    # A bzip2 block (100 kB at this level) or zstd block is yielded as a whole or not at all.
    lost_max = {"gzip": 3 * lacks + 1000, "bzip2": 100_000 + 3 * lacks, "zstd": 2 << 17}[kind]
    assert len(whole) - len(text) <= lost_max


@each_reader
@settings(max_examples=examples(0.5))
@given(choice=st.data())
def test_complete_members_before_any_cut_are_yielded(kind, fast, choice):
    data = SMALL[kind]
    length = choice.draw(st.integers(0, len(data) - 1))
    edges = choice.draw(st.lists(st.integers(0, length), max_size=4))
    text, error = decompress_until_error(kind, cut(data[:length], edges), fast=fast)
    first = len(compress(kind, b"one,1\n"))
    second = first + len(compress(kind, b""))
    assert SMALL_TEXT.startswith(text)
    assert length < first or text.startswith(b"one,1\n")
    if length in (first, second):
        assert error is None
    else:
        assert isinstance(error, TruncatedError)
        assert error.byte == length


@each_kind
def test_empty_input_is_truncated(kind):
    for chunks in ([], [b""], [b"", b""]):
        text, error = decompress_until_error(kind, chunks)
        assert (text, type(error), error.byte) == (b"", TruncatedError, 0)


@each_reader
@for_each("size", [1, 5, 1 << 20])
def test_garbage_after_the_last_member_is_an_error_after_the_data(kind, fast, size):
    data = compress(kind, LARGE_TEXT[:9000])
    chunks = reuse_buffer(data + b"garbage", size)
    text, error = decompress_until_error(kind, chunks, fast=fast)
    assert text == LARGE_TEXT[:9000]
    assert type(error) is CorruptError
    assert error.byte == len(data)
    assert f"the bytes from compressed byte {len(data)} on are not {kind} data" in error.why


@each_kind
def test_garbage_shorter_than_magic_bytes_is_an_error(kind):
    text, error = decompress_until_error(kind, [compress(kind, b"a"), b"x", b"y"])
    assert (text, type(error)) == (b"a", CorruptError)


@pytest.mark.parametrize("fast", [True, False])
@for_each("size", [1, 7, 1 << 20])
def test_zero_padding_after_gzip_is_skipped(fast, size):
    """Tapes and disks are padded to a block, and some programs append after the padding."""
    one = gzip.compress(b"1") + bytes(700)
    assert decompress_until_error("gzip", reuse_buffer(one, size), fast=fast) == (b"1", None)
    assert decompress_until_error("gzip", reuse_buffer(one + gzip.compress(b"2"), size), fast=fast) == (
        b"12",
        None,
    )


def test_leading_zeros_are_rejected():
    text, error = decompress_until_error("gzip", [bytes(20) + gzip.compress(b"1")])
    assert (text, error.byte) == (b"", 0)


@each_kind
@for_each("data", [b"a,b\n1,2\n", b"\x1f", b"PK\x03\x04", b"B"])
def test_uncompressed_input_is_rejected(kind, data):
    text, error = decompress_until_error(kind, [data[:1], data[1:]])
    assert text == b""
    if data in MAGIC[kind]:
        assert isinstance(error, TruncatedError)
        return
    assert type(error) is CorruptError
    assert error.byte == 0
    assert "pass --compression none if it is not compressed" in error.why
    assert data[:4].hex(" ") in error.why


@each_reader
def test_windows_before_damage_are_yielded(kind, fast):
    """The second half is overwritten: the first half is yielded, and the error names the offset."""
    data = bytearray(LARGE[kind])
    half = len(data) // 2
    data[half:] = np.random.default_rng(8).bytes(len(data) - half)
    text, error = decompress_until_error(kind, [bytes(data)], fast=fast)
    assert type(error) is CorruptError
    # bzip2 detects damage at the end of a block: at this level within 100 kB.
    assert half < error.byte <= half + 4 * WINDOW_BYTES
    assert f"corrupt {kind} data at or before compressed byte {error.byte}" in error.why
    lost_max = (WINDOW_BYTES + 128 * 1024) * len(LARGE_TEXT) / len(data)
    good = len(LARGE_TEXT) / 2 - lost_max
    assert LARGE_TEXT.startswith(text[: int(good)])
    assert len(text) > good


@each_reader
def test_wrong_checksum_is_corrupt(kind, fast):
    data = bytearray(SMALL[kind])
    at = {"gzip": -8, "bzip2": -2, "zstd": -1}[kind]
    data[at] ^= 0x10
    _, error = decompress_until_error(kind, [bytes(data)], fast=fast)
    assert type(error) is CorruptError


@each_reader
@given(choice=st.data())
def test_flipped_bits_raise_only_corrupt_errors(kind, fast, choice):
    data = bytearray(SMALL[kind])
    for at in choice.draw(st.lists(st.integers(0, len(data) - 1), min_size=1, max_size=4)):
        data[at] ^= choice.draw(st.integers(1, 255))
    decompress_until_error(kind, [bytes(data)], fast=fast)


# Decompression bombs


@each_reader
def test_decompression_bomb_is_yielded_in_bounded_pieces(kind, fast):
    """Data with a ratio of 900 and more is yielded completely, in bounded pieces."""
    size = 16 << 20
    data = compress(kind, bytes(size))
    assert size / len(data) > 900
    total = 0
    for piece in decompress(kind, [data], fast=fast):
        assert len(piece) <= PIECE_BYTES_MAX
        total += len(piece)
    assert total == size


@pytest.mark.parametrize("fast", [True, False])
def test_truncated_bomb_yields_all_its_bytes(fast):
    """The library keeps no output that further input would release."""
    bomb = gzip.compress(bytes(48 << 20))
    reference, expected = zlib.decompressobj(wbits=31), 0
    for start, length in pairwise((0, 2000, 20_000, WINDOW_BYTES, 40_001)):
        expected += len(reference.decompress(bomb[start:length]))
        text, error = decompress_until_error("gzip", [bomb[:length]], fast=fast)
        assert isinstance(error, TruncatedError), length
        assert expected - len(text) <= 1 << 16, length


def test_zstd_frame_with_a_giant_window_is_rejected():
    """Such a frame could request gigabytes before its first byte."""
    frame = MAGIC["zstd"] + bytes([0, (31 - 10) << 3]) + bytes([1, 0, 0])
    text, error = decompress_until_error("zstd", [frame])
    assert (text, type(error)) == (b"", CorruptError)


# Special cases of the formats


def _gzip_with_header(flags, text):
    head = b"\x1f\x8b\x08" + bytes([flags]) + bytes(4) + b"\x00\xff"
    if flags & 4:
        head += struct.pack("<H", 300) + bytes(300)
    if flags & 8:
        head += b"name.csv\0"
    if flags & 16:
        head += b"comment\0"
    if flags & 2:
        head += struct.pack("<H", zlib.crc32(head) & 0xFFFF)
    return head + gzip.compress(text)[10:]


@pytest.mark.parametrize("fast", [True, False])
@for_each("flags", range(32))
def test_every_gzip_header_variant_at_any_cut(fast, flags):
    """isal misreads headers with a checksum, or with several fields, when they are split."""
    data = gzip.compress(b"a") + _gzip_with_header(flags, b"bcd")
    for size in (1, 2, 9, 31):
        assert decompress_until_error("gzip", reuse_buffer(data, size), fast=fast) == (b"abcd", None)


def test_zstd_frames_without_size_and_skippable_frames():
    """Streaming writers omit the size. Skippable frames hold user data that is no content."""
    streaming = zstandard.ZstdCompressor().compressobj()
    frame = streaming.compress(LARGE_TEXT) + streaming.flush()
    note = bytes([0x5A, 0x2A, 0x4D, 0x18]) + struct.pack("<I", 5000) + b"n" * 5000
    empty = bytes([0x50, 0x2A, 0x4D, 0x18]) + bytes(4)
    data = note + frame + empty + compress("zstd", b"tail") + note
    for size in (1000, 1 << 20):
        assert decompress_until_error("zstd", reuse_buffer(data, size)) == (LARGE_TEXT + b"tail", None)
    assert decompress_until_error("zstd", reuse_buffer(empty + note + empty, 3)) == (b"", None)


def test_missing_zstd_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(MissingExtraError, match=r"headrace\[zstd\]"):
        next(decompress("zstd", [b""]))


def test_gzip_without_isal_uses_zlib(monkeypatch):
    monkeypatch.setattr("headrace.formats.compression._fast_zlib", None)
    assert decompress_until_error("gzip", [SMALL["gzip"]]) == (SMALL_TEXT, None)


def test_chunk_errors_propagate_after_the_bytes():
    """A storage error is not reported as a corrupt stream."""

    def chunks():
        yield LARGE["gzip"][:100_000]
        raise ConnectionError("gone")

    pieces = []

    def collect():
        pieces.extend(decompress("gzip", chunks()))

    with pytest.raises(ConnectionError):
        collect()
    assert LARGE_TEXT.startswith(b"".join(pieces))
    assert pieces
