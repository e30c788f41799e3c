"""Tests of `WholeFormat`."""

from cases import for_each
from headrace.core.block import RAW_BYTES_KEPT_MAX, FailureKind, Position
from headrace.formats.line import WholeFormat


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
