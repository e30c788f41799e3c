"""Tests of text lines."""

from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.core.block import RAW_BYTES_KEPT_MAX, FailureKind, Position
from headrace.formats.line import JsonLinesFormat, LineFormat, WholeFormat

TEXTS = st.lists(st.sampled_from(["a", '"', "é", "\n", "\r\n", " ", "\r", ","]), max_size=50).map("".join)


def entries(format_, data: bytes, size: int):
    found = []
    for block in format_.blocks([data[i : i + size] for i in range(0, len(data), size)], Position("o")):
        found += [(block.position(i), block.record(i)) for i in range(len(block))]
        found += [(f.position, f.kind, f.raw) for f in block.failures]
    return found


@given(TEXTS, st.integers(1, 30), st.integers(1, 30))
def test_lines_are_cut_like_json_lines(text, size, record_bytes_max):
    options = {"record_bytes_max": record_bytes_max}
    data = text.encode()
    assert entries(LineFormat(**options), data, size) == entries(JsonLinesFormat(**options), data, size)


def test_lines_keep_their_text_and_blank_lines_are_counted():
    found = entries(LineFormat(), b'one, "1\n\r\n two\r\nlast', 3)
    assert [(p.record, p.line, p.byte, raw) for p, raw in found] == [
        (0, 1, 0, b'one, "1'),
        (1, 3, 10, b" two"),
        (2, 4, 16, b"last"),
    ]


def test_binary_input_is_one_failure():
    ((_, kind, raw),) = entries(LineFormat(), b"PK\x03\x04\0\0\n\n", 2)
    assert (kind, raw) == (FailureKind.OBJECT, b"PK\x03\x04\0\0\n\n")


@for_each("chunks", [[], [b""], [b"\0ab\n", memoryview(b"c\r\n")], [b"x"] * 10])
def test_all_bytes_are_one_unchanged_record(chunks):
    """This includes empty and binary members."""
    (block,) = WholeFormat(record_bytes_max=10).blocks(chunks, Position("o", "m"))
    assert len(block) == 1
    assert block.record(0) == b"".join(chunks)
    assert block.position(0) == Position("o", "m")
    assert block.failures == ()


@for_each("size", [1, 4, 11, 40])
def test_oversized_object_is_a_failure_with_its_start(size):
    """The result does not depend on the chunk size."""
    data = bytes(range(40))
    chunks = [data[i : i + size] for i in range(0, 40, size)]
    (block,) = WholeFormat(record_bytes_max=10).blocks(chunks, Position("o"))
    (failure,) = block.failures
    assert (len(block), failure.kind, failure.raw) == (0, FailureKind.FORMAT, data[:10])
    assert failure.why == "40 bytes, longer than record_bytes_max=10"


def test_failure_keeps_the_first_64_kib():
    """A chunk that is overwritten later does not change the kept bytes."""
    buffer = bytearray(b"a" * 50_000)

    def chunks():
        for letter in b"abcd":
            buffer[:] = bytes([letter]) * 50_000
            yield memoryview(buffer)

    (block,) = WholeFormat(record_bytes_max=100_000).blocks(chunks(), Position())
    assert block.failures[0].raw == (b"a" * 50_000 + b"b" * 50_000)[:RAW_BYTES_KEPT_MAX]
