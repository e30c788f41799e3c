"""Callers' side of a hand-over, for whatever takes: room, cancellation, and who takes its place."""

import threading
from concurrent.futures import Future, wait

import pytest

from engine.support import WAIT_S, request, ticket
from headrace.core.errors import StoppedError
from headrace.engine.intake import Intake
from headrace.testing import ManualClock


class Listed(Intake):
    """What was added, in order."""

    def __init__(self, in_flight_max=2):
        super().__init__(ManualClock(), in_flight_max=in_flight_max)
        self.waits = []
        self.woken = 0

    def offer(self, ticket):
        self._add(ticket)
        return True

    def resize(self, *, rows_max, delay_s):
        pass

    def waiting(self):
        return len(self.waits), len(self.waits), 0.0, 0

    def _add(self, ticket):
        if ticket.priority < 0:
            raise ValueError("refused")
        self.waits.append(ticket)

    def _remove(self, ticket):
        if ticket not in self.waits:
            return False
        self.waits.remove(ticket)
        return True

    def _drain(self):
        waits, self.waits = self.waits, []
        return waits

    def _wake_all(self):
        self.woken += 1


def put(intake, **settings):
    one = ticket(request(**settings))
    intake.put(one, one.reply.future)
    return one, one.reply.future


def test_what_is_not_taken_takes_no_room():
    """However it is refused."""
    intake = Listed(in_flight_max=1)
    with pytest.raises(ValueError, match="refused"):
        put(intake, priority=-1)
    assert intake._put == {}
    put(intake)


def test_a_put_waits_until_one_is_answered():
    intake = Listed(in_flight_max=1)
    _, future = put(intake)
    taken = threading.Event()
    waiting = threading.Thread(target=lambda: (put(intake), taken.set()), daemon=True)
    waiting.start()
    assert not taken.wait(0.05)
    future.set_result(None)
    assert taken.wait(WAIT_S)


def test_a_cancelled_future_leaves_and_says_so():
    intake = Listed()
    one, future = put(intake)
    assert future.cancel()
    assert wait([future], timeout=WAIT_S).done == {future}
    assert (intake.waits, intake.cancelled, one.cancelled) == ([], 1, True)


def test_an_abandoned_ticket_leaves_once():
    intake = Listed()
    one, future = put(intake)
    assert intake.abandon(future) is one
    assert intake.abandon(future) is None
    assert intake.abandon(Future()) is None
    assert intake.waits == []


def test_a_ticket_is_ended_or_withdrawn_never_both():
    intake = Listed()
    (one, _), (other, _) = put(intake), put(intake)
    intake.settle([one])
    assert not intake.withdraw(one)
    assert intake.withdraw(other)
    intake.settle([other])
    assert [(t.ended, t.cancelled) for t in (one, other)] == [(True, False), (False, True)]


def test_whoever_waits_for_room_hears_of_a_stop():
    intake = Listed(in_flight_max=1)
    put(intake)
    heard = []

    def late():
        try:
            put(intake)
        except StoppedError as error:
            heard.append(error)

    waiting = threading.Thread(target=late, daemon=True)
    waiting.start()
    intake.close()
    waiting.join(WAIT_S)
    assert len(heard) == 1
    with pytest.raises(StoppedError):
        put(intake)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("end", ["close", "drop"])
def test_an_heir_is_closed_and_dropped_with_it(before, end):
    """Also where that happened before it was there."""
    intake, heir = Listed(), Listed()
    if before:
        getattr(intake, end)()
    intake.hand_over(heir)
    if not before:
        one, _ = put(heir)
        assert (getattr(intake, end)() or []) == ([one] if end == "drop" else [])
    assert heir.dropped == (end == "drop")
    assert heir.woken == 1
    with pytest.raises(StoppedError):
        put(heir)
