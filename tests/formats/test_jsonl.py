"""Tests of JSON Lines splitting."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.core.block import Block, FailureKind, Position
from headrace.formats.line import JsonLinesFormat

TEXTS = st.lists(st.sampled_from(["{}", '"', "é", "\n", "\n\n", "\r\n", " ", "\r"]), max_size=50).map("".join)


def split(data: bytes, size: int, **options) -> tuple[list[tuple], list[Block]]:
    chunks = [data[i : i + size] for i in range(0, len(data), size)]
    blocks = list(JsonLinesFormat(**options).blocks(chunks, Position("o")))
    found = []
    for block in blocks:
        for index in range(len(block)):
            at = block.position(index)
            found.append((at.record, at.line, at.byte, block.record(index)))
    return found, blocks


@given(TEXTS, st.integers(1, 30), st.integers(1, 30))
def test_every_line_that_is_not_blank_is_a_record(text, size, block_bytes_max):
    """Quotes have no meaning, CRLF is a line end, and a lone carriage return is data."""
    data = text.encode()
    expected, byte = [], 0
    for line, raw in enumerate(data.split(b"\n"), start=1):
        record = raw.removesuffix(b"\r")
        if record:
            expected.append((len(expected), line, byte, record))
        byte += len(raw) + 1
    assert split(data, size, block_bytes_max=block_bytes_max)[0] == expected


def test_byte_order_mark_is_dropped_but_counted():
    assert split(b"\xef\xbb\xbf{}\n[]", 2)[0] == [(0, 1, 3, b"{}"), (1, 2, 6, b"[]")]


def test_overlong_line_is_one_failure():
    for size in (1, 3, 100):
        _, blocks = split(b"[1]\n" + b"[" * 30 + b"\n[2]\n", size, record_bytes_max=10)
        failures = [f for b in blocks for f in b.failures]
        assert [(f.kind, f.position.record, f.position.line, f.raw) for f in failures] == [
            (FailureKind.FORMAT, 1, 2, b"[" * 10)
        ]
        assert [b.record(i) for b in blocks for i in range(len(b))] == [b"[1]", b"[2]"]


def test_binary_input_is_named():
    _, blocks = split(b"PK\x03\x04\0\0", 3)
    assert blocks[0].failures[0].why.startswith("not JSON Lines text: NUL byte at offset 4")
