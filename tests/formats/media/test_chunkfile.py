"""Tests of `ChunkFile`: exact reads for any chunks, and errors of the chunks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.formats.media.chunkfile import ChunkFile


def cut(data, size):
    return [data[i : i + size] for i in range(0, len(data), size)]


@given(
    st.binary(max_size=60),
    st.integers(1, 9),
    st.lists(st.tuples(st.booleans(), st.integers(0, 12)), max_size=9),
)
def test_reads_and_peeks_match_one_buffer(data, size, steps):
    file = ChunkFile([b"", *cut(data, size)], start_byte=100)
    at = 0
    for peeks, length in steps:
        data_read = file.peek(length) if peeks else file.read(length)
        assert data_read == data[at : at + length]
        at += 0 if peeks else len(data_read)
        assert file.position == 100 + at


def test_memoryview_is_copied_before_the_next_chunk():
    buffer = bytearray(2)

    def chunks():
        for text in (b"ab", b"cd"):
            buffer[:] = text
            yield memoryview(buffer)

    assert ChunkFile(chunks()).read(4) == b"abcd"


def test_skip_returns_the_skipped_bytes_and_drain_reads_the_rest():
    file = ChunkFile(cut(b"x" * 100, 7))
    assert file.skip(90) == 90
    file.drain()
    assert file.position == 100
    assert file.skip(5) == 0


def test_bytes_before_an_error_are_returned_first():
    error = OSError("gone")

    def chunks():
        yield b"abc"
        raise error

    file = ChunkFile(chunks())
    assert file.peek(4) == b"abc"
    assert file.read(4) == b"abc"
    for step in (file.check, file.drain, lambda: file.read(1), lambda: file.skip(1)):
        with pytest.raises(OSError, match="gone"):
            step()
    assert file.error is error
