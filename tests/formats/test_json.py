"""Tests of whole objects as one JSON text."""

import json

from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.core.block import FailureKind, Position
from headrace.formats.json_decode import JsonDecoder, JsonField
from headrace.formats.line import JsonFormat

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)
SPACE = st.text(" \t\r\n", max_size=5)


@given(VALUES, SPACE, SPACE, st.booleans(), st.integers(1, 20))
def test_text_is_one_record_without_surrounding_space(value, before, after, bom, size):
    text = json.dumps(value, indent=2, ensure_ascii=False).encode()
    head = (b"\xef\xbb\xbf" if bom else b"") + before.encode()
    data = head + text + after.encode()
    chunks = [data[i : i + size] for i in range(0, len(data), size)]
    (block,) = JsonFormat().blocks(chunks, Position("o", line=3, byte=100))
    assert [block.record(i) for i in range(len(block))] == [text]
    assert block.position(0) == Position("o", line=3 + before.count("\n"), byte=100 + len(head))


@for_each("text", ["[\n1.5,\n2\n]", "[1.5\r\n,2]\n", "\n[ 1.5 , 2 ]"])
def test_array_on_several_lines_is_one_row(text):
    (block,) = JsonFormat().blocks([text.encode()], Position())
    decoded = JsonDecoder({"x": JsonField()}).decode(block)
    assert decoded.tensors["x"].tolist() == [[1.5, 2.0]]


@for_each("data", [b"", b"  \n", b"\xef\xbb\xbf"])
def test_empty_object_is_a_record_that_is_not_json(data):
    """Skipping it silently would lose a record."""
    (block,) = JsonFormat().blocks([data], Position())
    (failure,) = JsonDecoder({"x": JsonField()}).decode(block).failures
    assert (len(block), failure.kind) == (1, FailureKind.FORMAT)


def test_text_over_the_limit_is_a_failure():
    (block,) = JsonFormat(record_bytes_max=4).blocks([b"[1, 2]"], Position())
    assert (len(block), [f.raw for f in block.failures]) == (0, [b"[1, "])
