"""Frames: in order, whole, from any thread, and an end that is told once."""

import os
import selectors
import socket
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.support import WAIT_S
from headrace.engine.wire import _HEADER, Kind, Wire


class _End:
    """A wire that keeps what comes."""

    def __init__(self, end, watch=None):
        self.frames = []
        self.changed = threading.Condition()
        self.ends = 0
        self.wire = Wire(
            end, "wire", on_frames=self._came, gather=lambda: None, on_end=self._ended, watch=watch
        )

    def _came(self, frames):
        with self.changed:
            self.frames += [(kind, id, bytes(payload)) for kind, id, payload in frames]
            self.changed.notify_all()

    def _ended(self):
        with self.changed:
            self.ends += 1
            self.changed.notify_all()

    def wait(self, holds):
        with self.changed:
            assert self.changed.wait_for(lambda: holds(self), WAIT_S)


@pytest.fixture
def pair():
    """Both ends, closed whatever happens."""
    made = [_End(end) for end in socket.socketpair()]
    yield made
    for end in made:
        end.wire.close()


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(list(Kind)), st.integers(0, 2**64 - 1), st.binary()), max_size=20))
def test_frames_arrive_in_order(posted):
    here, there = (_End(end) for end in socket.socketpair())
    try:
        for frame in posted:
            here.wire.post(*frame)
        there.wait(lambda end: len(end.frames) == len(posted))
        assert there.frames == posted
    finally:
        here.wire.close()
        there.wire.close()


def test_more_than_the_socket_takes_arrives_whole(pair):
    """Both ways at once: nobody blocks writing while the other does."""
    big = os.urandom(3_000_000)
    for end in pair:
        for i in range(3):
            end.wire.post(Kind.ITEMS, i, big)
    for end in pair:
        end.wait(lambda end: len(end.frames) == 3)
        assert end.frames == [(Kind.ITEMS, i, big) for i in range(3)]


def test_what_is_posted_while_the_socket_is_full_is_sent_when_it_is_not():
    """Also when nothing else happens: its bell was heard while there was no room."""
    ours, theirs = socket.socketpair()
    end = _End(ours)
    try:
        end.wire.post(Kind.ITEMS, 1, bytes(3_000_000))
        with selectors.DefaultSelector() as ready:
            ready.register(theirs, selectors.EVENT_READ)
            assert ready.select(WAIT_S), "the first frame is on its way"
        end.wire.post(Kind.ITEMS, 2, b"second")
        # Until the bell was heard.
        while end.wire._rung:
            os.sched_yield()
        theirs.settimeout(WAIT_S)
        size = 3_000_000 + len(b"second") + 2 * _HEADER.size
        got = 0
        while got < size:
            got += len(theirs.recv(size - got))
    finally:
        theirs.close()
        end.wire.close()


def test_frames_from_many_threads_are_not_mixed(pair):
    here, there = pair

    def post(id):
        for i in range(200):
            here.wire.post(Kind.ITEMS, id, bytes([i]) * 100)

    threads = [threading.Thread(target=post, args=(id,)) for id in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    there.wait(lambda end: len(end.frames) == 800)
    for id in range(4):
        assert [p[0] for _, i, p in there.frames if i == id] == list(range(200))


def test_the_other_ends_end_is_told_after_its_last_frame(pair):
    """What was posted before a close is sent; whoever closes hears nothing."""
    here, there = pair
    here.wire.post(Kind.LOG, 1, b"last")
    here.wire.close()
    there.wait(lambda end: end.ends)
    assert (there.frames, there.ends, here.ends) == ([(Kind.LOG, 1, b"last")], 1, 0)
    here.wire.post(Kind.LOG, 1)
    there.wire.post(Kind.LOG, 1)


@pytest.fixture
def watching():
    """An end that watches a file, the other end's socket, and what makes the file readable."""
    ours, theirs = socket.socketpair()
    watched, tells = os.pipe()
    end = _End(ours, watched)
    yield end, theirs, tells
    end.wire.close()
    theirs.close()
    os.close(watched)
    os.close(tells)


def test_a_watched_file_tells_of_the_end_too(watching):
    """Also while somebody else holds the socket open."""
    end, theirs, tells = watching
    theirs.send(b"\0" * 17)
    os.write(tells, b"x")
    end.wait(lambda end: end.ends)
    assert end.frames == [(0, 0, b"")]


def test_what_came_before_the_other_end_went_is_read_when_this_one_closes(watching):
    """Also what came while the frames before it were handled: the last lines of a process's log, say."""
    end, theirs, tells = watching

    def closes_meanwhile(frames):
        end._came(frames)
        if len(end.frames) == 1:
            theirs.send(_HEADER.pack(4, Kind.LOG, 2) + b"last")
            os.write(tells, b"x")
            end.wire.close()

    end.wire._on_frames = closes_meanwhile
    theirs.send(_HEADER.pack(0, Kind.LOG, 1))
    end.wire._thread.join(WAIT_S)
    assert (end.frames, end.ends) == ([(Kind.LOG, 1, b""), (Kind.LOG, 2, b"last")], 0)


def test_a_frame_that_cannot_be_handled_ends_it(caplog):
    """With its traceback in the log, and the end told."""
    ours, theirs = socket.socketpair()
    end = _End(ours)
    end.wire._on_frames = lambda frames: 1 / 0
    theirs.send(b"\0" * 17)
    end.wait(lambda end: end.ends)
    assert "ZeroDivisionError" in caplog.text
    theirs.close()
    end.wire.close()
