"""Items through a wire: in order, bounded, and ended as their pipe was."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from engine.support import WAIT_S
from headrace.core.errors import CancelledRequestError, ModelContractError
from headrace.engine.pipe import Pipe
from headrace.engine.relay import Inlet, Outlet, Relay, count_of, end_of
from headrace.engine.streams import ITEMS_MAX
from headrace.engine.wire import Kind, Wire


def _pack(item):
    if item < 0:
        raise ModelContractError("m", "negative")
    return item.to_bytes(4, "big")


def _unpack(data):
    return [int.from_bytes(data[i : i + 4], "big") for i in range(0, len(data), 4)]


class _Way:
    """A pipe here, its twin there, and a wire between."""

    def __init__(self):
        self.here, self.there = Pipe(ITEMS_MAX), Pipe(ITEMS_MAX)
        self.relay = Relay()
        ours, theirs = socket.socketpair()
        self.outlet = Outlet(self.relay, 7, self.here, _pack)
        self.wire = self._wire(ours, self._back, self.relay.gather)
        self.relay.wire = self.wire
        self.far = self._wire(theirs, self._forth, lambda: None)
        self.inlet = Inlet(self.far, 7, self.there, _unpack)
        self.outlet.begin()

    def _wire(self, end, on_frames, gather):
        return Wire(end, "w", on_frames=on_frames, gather=gather, on_end=lambda: None)

    def _back(self, frames):
        for kind, id, payload in frames:
            assert (kind, id) == (Kind.TAKEN, 7)
            self.outlet.taken(count_of(payload))

    def _forth(self, frames):
        for kind, id, payload in frames:
            assert id == 7
            if kind == Kind.ITEMS:
                self.inlet.received(payload)
            else:
                self.there.close(end_of(payload))


@pytest.fixture
def way():
    made = _Way()
    yield made
    made.wire.close()
    made.far.close()


def _all_of(pipe):
    found = []
    while items := pipe.get():
        found += items
    return found


def _until(holds):
    """What a wire's thread does is told to nobody; the test's own time-out bounds this."""
    while not holds():
        threading.Event().wait(0.001)


def _take_into(found, pipe):
    while items := pipe.get():
        found += items


def test_items_arrive_in_order_however_many(way):
    """Of a producer that blocks where there is no room."""
    with ThreadPoolExecutor(1) as pool:
        taking = pool.submit(_all_of, way.there)
        for i in range(20_000):
            way.here.put(i)
        way.here.close()
        assert taking.result(WAIT_S) == list(range(20_000))


def test_a_producer_is_held_up_by_a_consumer_that_does_not_take(way):
    """A bounded number is on the way, and it goes on when some are taken."""
    made = []

    def produce():
        for i in range(5000):
            way.here.put(i)
            made.append(i)
        way.here.close()

    thread = threading.Thread(target=produce)
    thread.start()
    # It cannot end before somebody takes: waiting for that must run into the time-out.
    thread.join(0.3)
    assert thread.is_alive()
    assert len(made) <= 4 * ITEMS_MAX
    assert _all_of(way.there) == list(range(5000))
    thread.join(WAIT_S)
    assert not thread.is_alive()


def test_an_error_arrives_after_the_items_before_it(way):
    for i in range(3):
        way.here.put(i)
    way.here.close(ModelContractError("m", "odd"))
    found = []
    with pytest.raises(ModelContractError, match="odd"):
        _take_into(found, way.there)
    assert found == [0, 1, 2]


def test_an_item_that_cannot_be_packed_ends_the_stream(way):
    """After those before it; its producer is told to stop."""
    way.here.offer_all([1, 2, -1, 3])
    found = []
    with pytest.raises(ModelContractError, match="negative"):
        _take_into(found, way.there)
    assert found == [1, 2]
    with pytest.raises(CancelledRequestError):
        way.here.put(4)


def test_a_consumer_that_leaves_stops_nothing_else(way):
    """What still comes goes nowhere."""
    way.there.abandon()
    way.here.offer_all(range(10))
    way.here.close()
    _until(lambda: way.outlet.over)
    with pytest.raises(CancelledRequestError):
        way.there.offer_all([1])


def test_the_end_gets_through_to_who_takes_nothing(way):
    """Its caller left while its items were held back for it."""
    ended = threading.Event()
    close, way.there.close = way.there.close, lambda error=None: (close(error), ended.set())
    way.here.offer_all(range(ITEMS_MAX))
    _until(lambda: way.outlet._untaken == ITEMS_MAX)
    way.here.offer_all([1])
    _until(lambda: way.outlet._held)
    way.here.abandon()
    way.here.close(CancelledRequestError("gone"))
    assert not ended.wait(0.1)  # it is held back: only that makes the next line mean something
    way.outlet.free()
    assert ended.wait(WAIT_S)


# What pipes do for those that neither block nor await


def test_a_pipe_tells_once_when_there_is_something():
    pipe, told = Pipe(2), []
    assert pipe.when_item(lambda: told.append(1))
    pipe.offer(1)
    pipe.offer(2)
    assert told == [1]
    assert not pipe.when_item(lambda: told.append(2))
    assert pipe.take() == [1, 2]
    assert pipe.when_item(lambda: told.append(3))
    pipe.close(ValueError("x"))
    assert told == [1, 3]
    assert pipe.ended
    assert str(pipe.error) == "x"


def test_a_pipe_tells_once_when_there_is_room():
    pipe, told = Pipe(2), []
    assert not pipe.when_room(lambda: told.append(1))
    assert not pipe.offer_all([1, 2, 3])
    assert pipe.when_room(lambda: told.append(2))
    assert (pipe.take(), told) == ([1, 2, 3], [2])
    assert pipe.offer_all([1])
    assert not pipe.ended
