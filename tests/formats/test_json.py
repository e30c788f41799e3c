"""A whole object as one JSON text."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.block import FailureKind, Position
from headrace.formats.json import JsonFormat
from headrace.formats.json_decode import JsonDecoder, JsonField

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)
SPACE = st.text(" \t\r\n", max_size=5)


@given(VALUES, SPACE, SPACE, st.booleans(), st.integers(1, 20))
def test_the_text_is_one_record_without_the_space_around_it(value, before, after, bom, size):
    text = json.dumps(value, indent=2, ensure_ascii=False).encode()
    head = (b"\xef\xbb\xbf" if bom else b"") + before.encode()
    data = head + text + after.encode()
    chunks = [data[i : i + size] for i in range(0, len(data), size)]
    (block,) = JsonFormat().blocks(chunks, Position("o", line=3, byte=100))
    assert [block.record(i) for i in range(len(block))] == [text]
    assert block.position(0) == Position("o", line=3 + before.count("\n"), byte=100 + len(head))


@pytest.mark.parametrize("text", ["[\n1.5,\n2\n]", "[1.5\r\n,2]\n", "\n[ 1.5 , 2 ]"])
def test_arrays_over_several_lines_are_one_row(text):
    (block,) = JsonFormat().blocks([text.encode()], Position())
    decoded = JsonDecoder({"x": JsonField()}).decode(block)
    assert decoded.tensors["x"].tolist() == [[1.5, 2.0]]


@pytest.mark.parametrize("data", [b"", b"  \n", b"\xef\xbb\xbf"])
def test_an_empty_object_is_a_record_that_is_not_json(data):
    """It was to hold one: silence would lose it."""
    (block,) = JsonFormat().blocks([data], Position())
    (failure,) = JsonDecoder({"x": JsonField()}).decode(block).failures
    assert (len(block), failure.kind) == (1, FailureKind.FORMAT)


def test_more_than_may_be_is_a_failure():
    (block,) = JsonFormat(record_bytes_max=4).blocks([b"[1, 2]"], Position())
    assert (len(block), [f.raw for f in block.failures]) == (0, [b"[1, "])
