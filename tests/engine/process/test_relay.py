"""Streams over a wire: in order, bounded, and ended as their pipe was."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from engine.support import WAIT_S
from headrace.core.errors import CancelledRequestError, ModelContractError
from headrace.engine.pipe import Pipe
from headrace.engine.process.wire import (
    FrameKind,
    Relay,
    StreamReceiver,
    StreamSender,
    Wire,
    decode_count,
    decode_end,
)
from headrace.engine.streams import ITEMS_MAX
from servers.polling import wait_until


def _pack(item):
    if item < 0:
        raise ModelContractError("m", "negative")
    return item.to_bytes(4, "big")


def _unpack(data):
    return [int.from_bytes(data[i : i + 4], "big") for i in range(0, len(data), 4)]


class _Connection:
    """A pipe here, its counterpart there, and a wire between."""

    def __init__(self):
        self.here, self.there = Pipe(ITEMS_MAX), Pipe(ITEMS_MAX)
        self.relay = Relay()
        ours, theirs = socket.socketpair()
        self.sender = StreamSender(self.relay, 7, self.here, _pack)
        self.wire = self._wire(ours, self._back, self.relay.send_ready)
        self.relay.wire = self.wire
        self.far = self._wire(theirs, self._forth, lambda: None)
        self.receiver = StreamReceiver(self.far, 7, self.there, _unpack)
        self.sender.start()

    def _wire(self, end, on_frames, before_send):
        return Wire(end, "w", on_frames=on_frames, before_send=before_send, on_end=lambda: None)

    def _back(self, frames):
        for kind, id, payload in frames:
            assert (kind, id) == (FrameKind.TAKEN, 7)
            self.sender.acknowledge(decode_count(payload))

    def _forth(self, frames):
        for kind, id, payload in frames:
            assert id == 7
            if kind == FrameKind.ITEMS:
                self.receiver.received(payload)
            else:
                self.there.close(decode_end(payload))


@pytest.fixture
def connection():
    made = _Connection()
    yield made
    made.wire.close()
    made.far.close()


def _all_of(pipe):
    found = []
    while items := pipe.get():
        found += items
    return found


def _take_into(found, pipe):
    while items := pipe.get():
        found += items


def test_items_arrive_in_order(connection):
    """Of a producer that blocks while the pipe is full."""
    with ThreadPoolExecutor(1) as pool:
        taking = pool.submit(_all_of, connection.there)
        for i in range(20_000):
            connection.here.put(i)
        connection.here.close()
        assert taking.result(WAIT_S) == list(range(20_000))


def test_idle_consumer_bounds_producer(connection):
    """A bounded number is in transit, and it continues when some are taken."""
    made = []

    def produce():
        for i in range(5000):
            connection.here.put(i)
            made.append(i)
        connection.here.close()

    thread = threading.Thread(target=produce)
    thread.start()
    wait_until(lambda: connection.sender._blocked and connection.here._putter is not None)
    assert thread.is_alive()
    assert len(made) <= 4 * ITEMS_MAX
    assert _all_of(connection.there) == list(range(5000))
    thread.join(WAIT_S)
    assert not thread.is_alive()


def test_error_arrives_after_items(connection):
    for i in range(3):
        connection.here.put(i)
    connection.here.close(ModelContractError("m", "odd"))
    found = []
    with pytest.raises(ModelContractError, match="odd"):
        _take_into(found, connection.there)
    assert found == [0, 1, 2]


def test_unpackable_item_ends_stream(connection):
    """After those before it; its producer must stop."""
    connection.here.offer_all([1, 2, -1, 3])
    found = []
    with pytest.raises(ModelContractError, match="negative"):
        _take_into(found, connection.there)
    assert found == [1, 2]
    with pytest.raises(CancelledRequestError):
        connection.here.put(4)


def test_departed_consumer_stops_no_other_stream(connection):
    """Later items are dropped."""
    connection.there.abandon()
    connection.here.offer_all(range(10))
    connection.here.close()
    wait_until(lambda: connection.sender.ended)
    with pytest.raises(CancelledRequestError):
        connection.there.offer_all([1])


def test_end_passes_blocked_stream(connection):
    """The client left while items were held back."""
    ended = threading.Event()
    close, connection.there.close = connection.there.close, lambda error=None: (close(error), ended.set())
    connection.here.offer_all(range(ITEMS_MAX))
    wait_until(lambda: connection.sender._unacknowledged == ITEMS_MAX)
    connection.here.offer_all([1])
    wait_until(lambda: connection.sender._blocked)
    connection.here.abandon()
    connection.here.close(CancelledRequestError("gone"))
    assert not ended.wait(0.1)  # it is blocked: otherwise the next line proves nothing
    connection.sender.unblock()
    assert ended.wait(WAIT_S)


# Pipes of sides that neither block nor await


def test_when_item_wakes_once():
    pipe, woken = Pipe(2), []
    assert pipe.when_item(lambda: woken.append(1))
    pipe.offer(1)
    pipe.offer(2)
    assert woken == [1]
    assert not pipe.when_item(lambda: woken.append(2))
    assert pipe.take() == [1, 2]
    assert pipe.when_item(lambda: woken.append(3))
    pipe.close(ValueError("x"))
    assert woken == [1, 3]
    assert pipe.ended
    assert str(pipe.error) == "x"


def test_when_space_wakes_once():
    pipe, woken = Pipe(2), []
    assert not pipe.when_space(lambda: woken.append(1))
    assert not pipe.offer_all([1, 2, 3])
    assert pipe.when_space(lambda: woken.append(2))
    assert (pipe.take(), woken) == ([1, 2, 3], [2])
    assert pipe.offer_all([1])
    assert not pipe.ended
