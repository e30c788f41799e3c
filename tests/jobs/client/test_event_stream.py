"""The reader of server-sent events."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import LimitError
from headrace.jobs.client.messages import Event, EventReader

STREAM = (
    b": hello\n\nid: 1\nevent: state\ndata: {}\n\n: still here\r\n\r\nid: 2\r\ndata: a\r\ndata:b\r\n\r\n"
    b"event: progress\ndata: c\nretry: 5\n\nevent: lost\n\ndata: unfinished\n"
)
EVENTS = [Event("state", "1", b"{}"), Event("message", "2", b"a\nb"), Event("progress", "2", b"c")]


@given(st.lists(st.integers(0, len(STREAM)), max_size=20))
def test_events_do_not_depend_on_chunks(cuts):
    reader, events, at = EventReader(), [], 0
    for cut in [*sorted(cuts), len(STREAM)]:
        events += reader.feed(STREAM[at:cut])
        at = cut
    assert events == EVENTS


def test_endless_event_is_refused():
    reader = EventReader(event_bytes_max=100)
    reader.feed(b"data: 0123456789\n" * 5)
    with pytest.raises(LimitError):
        reader.feed(b"x" * 60)


@given(st.binary(max_size=300))
def test_any_bytes_are_parsed(body):
    EventReader().feed(body)
