"""Server-sent events: exact bytes out, any bytes in."""

import orjson
from hypothesis import given
from hypothesis import strategies as st

from headrace.protocols.sse import decode_events, encode_event, encode_events

DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
).map(orjson.dumps)


def test_an_event_is_one_line_and_an_empty_one():
    assert encode_event(b'{"a":1}') == b'data: {"a":1}\n\n'
    assert encode_events([b"1", b"2"]) == b"data: 1\n\ndata: 2\n\n"
    assert encode_events([]) == b""


@given(st.lists(DOCUMENTS, max_size=5))
def test_any_documents_survive(documents):
    """JSON as orjson writes it has no line ends, so it is one line whatever is in it."""
    assert decode_events(encode_events(documents)) == documents
    assert b"".join(map(encode_event, documents)) == encode_events(documents)


def test_events_of_others_are_read_too():
    body = b": comment\r\nevent: token\r\ndata: a\r\ndata:b\r\nid: 1\r\n\r\n: only a comment\n\ndata:\n\ndata: unfinished"
    assert decode_events(body) == [b"a\nb"]


@given(st.binary(max_size=200))
def test_any_bytes_are_some_events(body):
    assert all(isinstance(event, bytes) for event in decode_events(body))


@given(st.lists(DOCUMENTS, min_size=1, max_size=4), st.integers(1, 30))
def test_an_event_that_was_cut_off_is_none(documents, cut):
    """Of a body that ends early, what is whole is read and nothing else."""
    body = encode_events(documents)[:-cut]
    found = decode_events(body)
    assert found == documents[: len(found)]
    assert len(found) < len(documents)
