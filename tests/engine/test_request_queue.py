"""The client side of queues: space, cancellation, and successors."""

import threading
from concurrent.futures import Future, wait

import pytest

from cases import for_each
from engine.support import WAIT_S, pending_request, request
from headrace.core.errors import StoppedError
from headrace.engine.request_queue import RequestQueue
from headrace.testing import ManualClock


class Listed(RequestQueue):
    """A queue that lists its requests in order."""

    def __init__(self, in_flight_max=2):
        super().__init__(ManualClock(), in_flight_max=in_flight_max)
        self.waits = []
        self.woken = 0

    def offer(self, entry):
        self._add(entry)
        return True

    def resize(self, *, rows_max, delay_s):
        pass

    def waiting(self):
        return len(self.waits), len(self.waits), 0.0, 0

    def _add(self, entry):
        if entry.priority < 0:
            raise ValueError("refused")
        self.waits.append(entry)

    def _remove(self, entry):
        if entry not in self.waits:
            return False
        self.waits.remove(entry)
        return True

    def _drain(self):
        waits, self.waits = self.waits, []
        return waits

    def _wake_all(self):
        self.woken += 1


def put(queue, **settings):
    one = pending_request(request(**settings))
    queue.put(one, one.callback.future)
    return one, one.callback.future


def test_refused_request_takes_no_space():
    queue = Listed(in_flight_max=1)
    with pytest.raises(ValueError, match="refused"):
        put(queue, priority=-1)
    assert queue._entries_by_future == {}
    put(queue)


def test_put_blocks_until_result():
    queue = Listed(in_flight_max=1)
    _, future = put(queue)
    taken = threading.Event()
    waiting = threading.Thread(target=lambda: (put(queue), taken.set()), daemon=True)
    waiting.start()
    assert not taken.wait(0.05)
    future.set_result(None)
    assert taken.wait(WAIT_S)


def test_cancelled_future_leaves_queue():
    queue = Listed()
    one, future = put(queue)
    assert future.cancel()
    assert wait([future], timeout=WAIT_S).done == {future}
    assert (queue.waits, queue.cancelled, one.cancelled) == ([], 1, True)


def test_abandoned_request_leaves_once():
    queue = Listed()
    one, future = put(queue)
    assert queue.abandon(future) is one
    assert queue.abandon(future) is None
    assert queue.abandon(Future()) is None
    assert queue.waits == []


def test_request_is_ended_or_withdrawn_never_both():
    queue = Listed()
    (one, _), (other, _) = put(queue), put(queue)
    queue.mark_ended([one])
    assert not queue.withdraw(one)
    assert queue.withdraw(other)
    queue.mark_ended([other])
    assert [(t.ended, t.cancelled) for t in (one, other)] == [(True, False), (False, True)]


def test_close_fails_blocked_put():
    queue = Listed(in_flight_max=1)
    put(queue)
    errors = []

    def late():
        try:
            put(queue)
        except StoppedError as error:
            errors.append(error)

    waiting = threading.Thread(target=late, daemon=True)
    waiting.start()
    queue.close()
    waiting.join(WAIT_S)
    assert len(errors) == 1
    with pytest.raises(StoppedError):
        put(queue)


@for_each("before", [True, False])
@for_each("end", ["close", "drop"])
def test_successor_is_closed_and_dropped(before, end):
    """Also if that happened before it was set."""
    queue, successor = Listed(), Listed()
    if before:
        getattr(queue, end)()
    queue.delegate_to(successor)
    if not before:
        one, _ = put(successor)
        assert (getattr(queue, end)() or []) == ([one] if end == "drop" else [])
    assert successor.dropped == (end == "drop")
    assert successor.woken == 1
    with pytest.raises(StoppedError):
        put(successor)
