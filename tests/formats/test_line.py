"""Tests of text lines."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.core.block import FailureKind, Position
from headrace.formats.line import JsonLinesFormat, LineFormat

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
