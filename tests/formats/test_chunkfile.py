"""Reads over chunks: exact whatever the cuts, and honest about what the chunks raised."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.formats.chunkfile import ChunkFile


def cut(data, size):
    return [data[i : i + size] for i in range(0, len(data), size)]


@settings(deadline=None, derandomize=True)
@given(
    st.binary(max_size=60),
    st.integers(1, 9),
    st.lists(st.tuples(st.booleans(), st.integers(0, 12)), max_size=9),
)
def test_reads_and_peeks_are_those_of_one_buffer(data, size, steps):
    file = ChunkFile([b"", *cut(data, size)], start_byte=100)
    at = 0
    for peeks, length in steps:
        got = file.peek(length) if peeks else file.read(length)
        assert got == data[at : at + length]
        at += 0 if peeks else len(got)
        assert file.position == 100 + at


def test_a_memoryview_is_copied_before_the_next_chunk_overwrites_it():
    buffer = bytearray(2)

    def chunks():
        for text in (b"ab", b"cd"):
            buffer[:] = text
            yield memoryview(buffer)

    assert ChunkFile(chunks()).read(4) == b"abcd"


def test_skip_tells_how_far_it_came_and_drain_reads_the_rest():
    file = ChunkFile(cut(b"x" * 100, 7))
    assert file.skip(90) == 90
    file.drain()
    assert file.position == 100
    assert file.skip(5) == 0


def test_bytes_before_an_error_are_given_first_and_the_error_then():
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
