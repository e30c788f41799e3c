"""Frames: in order, complete, from any thread, and an end that is reported once."""

import os
import selectors
import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.support import WAIT_S
from headrace.engine.process.wire import _HEADER, FrameKind, Wire


class _Endpoint:
    """A wire that records its frames."""

    def __init__(self, end, watch=None):
        self.frames = []
        self.changed = threading.Condition()
        self.ends = 0
        self.wire = Wire(
            end, "wire", on_frames=self._came, before_send=lambda: None, on_end=self._ended, watch=watch
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
    """Yield both ends, closed at the end."""
    made = [_Endpoint(end) for end in socket.socketpair()]
    yield made
    for end in made:
        end.wire.close()


@given(
    st.lists(st.tuples(st.sampled_from(list(FrameKind)), st.integers(0, 2**64 - 1), st.binary()), max_size=20)
)
def test_frames_arrive_in_order(posted):
    here, there = (_Endpoint(end) for end in socket.socketpair())
    try:
        for frame in posted:
            here.wire.post(*frame)
        there.wait(lambda end: len(end.frames) == len(posted))
        assert there.frames == posted
    finally:
        here.wire.close()
        there.wire.close()


def test_frame_larger_than_socket_buffer_arrives_whole(pair):
    """Both ways at once: neither end blocks."""
    big = os.urandom(3_000_000)
    for end in pair:
        for i in range(3):
            end.wire.post(FrameKind.ITEMS, i, big)
    for end in pair:
        end.wait(lambda end: len(end.frames) == 3)
        assert end.frames == [(FrameKind.ITEMS, i, big) for i in range(3)]


def test_frames_posted_while_socket_is_full_are_sent():
    """Also without another event: the wake-up was read while the socket was full."""
    ours, theirs = socket.socketpair()
    end = _Endpoint(ours)
    try:
        end.wire.post(FrameKind.ITEMS, 1, bytes(3_000_000))
        with selectors.DefaultSelector() as ready:
            ready.register(theirs, selectors.EVENT_READ)
            assert ready.select(WAIT_S), "the first frame is on its way"
        end.wire.post(FrameKind.ITEMS, 2, b"second")
        # Until the wake-up was read.
        while end.wire._wakeup_pending:
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
            here.wire.post(FrameKind.ITEMS, id, bytes([i]) * 100)

    threads = [threading.Thread(target=post, args=(id,)) for id in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    there.wait(lambda end: len(end.frames) == 800)
    for id in range(4):
        assert [p[0] for _, i, p in there.frames if i == id] == list(range(200))


def test_on_end_follows_last_frame(pair):
    """Frames posted before a close are sent; the closing end gets no `on_end`."""
    here, there = pair
    here.wire.post(FrameKind.LOG, 1, b"last")
    here.wire.close()
    there.wait(lambda end: end.ends)
    assert (there.frames, there.ends, here.ends) == ([(FrameKind.LOG, 1, b"last")], 1, 0)
    here.wire.post(FrameKind.LOG, 1)
    there.wire.post(FrameKind.LOG, 1)


@pytest.fixture
def watching():
    """Yield an end that watches a file, the other socket, and a function that makes the file
    readable.
    """
    ours, theirs = socket.socketpair()
    watched, tells = os.pipe()
    end = _Endpoint(ours, watched)
    yield end, theirs, tells
    end.wire.close()
    theirs.close()
    os.close(watched)
    os.close(tells)


def test_watched_file_ends_connection(watching):
    """Also while another process holds the socket open."""
    end, theirs, tells = watching
    theirs.send(b"\0" * 17)
    os.write(tells, b"x")
    end.wait(lambda end: end.ends)
    assert end.frames == [(0, 0, b"")]


def test_close_reads_last_frames(watching):
    """Also those that arrived while earlier frames were handled, such as the last lines of a log."""
    end, theirs, tells = watching

    def closes_meanwhile(frames):
        end._came(frames)
        if len(end.frames) == 1:
            theirs.send(_HEADER.pack(4, FrameKind.LOG, 2) + b"last")
            os.write(tells, b"x")
            end.wire.close()

    end.wire._on_frames = closes_meanwhile
    theirs.send(_HEADER.pack(0, FrameKind.LOG, 1))
    end.wire._thread.join(WAIT_S)
    assert (end.frames, end.ends) == ([(FrameKind.LOG, 1, b""), (FrameKind.LOG, 2, b"last")], 0)


def test_bad_frame_ends_connection(caplog):
    """With a logged traceback and an `on_end`."""
    ours, theirs = socket.socketpair()
    end = _Endpoint(ours)
    end.wire._on_frames = lambda frames: 1 / 0
    theirs.send(b"\0" * 17)
    end.wait(lambda end: end.ends)
    assert "ZeroDivisionError" in caplog.text
    theirs.close()
    end.wire.close()
