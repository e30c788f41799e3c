"""Server-sent events: exact bytes out, any bytes in."""

import orjson
from hypothesis import given
from hypothesis import strategies as st

from headrace.protocols.sse import EventDecoder, encode_event

DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
).map(orjson.dumps)


def test_event_is_a_line_and_an_empty_line():
    assert encode_event(b'{"a":1}') == b'data: {"a":1}\n\n'


@given(st.lists(DOCUMENTS, max_size=5))
def test_any_documents_round_trip(documents):
    """orjson writes no line ends, so any document is one line."""
    assert EventDecoder().feed(b"".join(map(encode_event, documents))) == documents


def test_events_of_other_servers_are_decoded():
    body = (
        b": comment\r\nevent: token\r\ndata: a\r\ndata:b\r\nid: 1\r\n\r\n"
        b": only a comment\n\ndata:\n\ndata: unfinished"
    )
    assert EventDecoder().feed(body) == [b"a\nb"]


@given(st.binary(max_size=200))
def test_any_bytes_decode_equally_in_chunks(body):
    assert all(isinstance(event, bytes) for event in EventDecoder().feed(body))


@given(st.lists(DOCUMENTS, min_size=1, max_size=4), st.integers(1, 30))
def test_truncated_event_is_dropped(documents, cut):
    """Complete events of a truncated body are decoded, and nothing else."""
    body = b"".join(map(encode_event, documents))[:-cut]
    found = EventDecoder().feed(body)
    assert found == documents[: len(found)]
    assert len(found) < len(documents)
