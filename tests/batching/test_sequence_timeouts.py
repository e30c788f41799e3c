"""Idle timeouts and lifetimes of sequences."""

import pytest

from headrace.batching.live_sequence import LiveSequence
from headrace.batching.sequence_ends import SequenceTimeouts
from headrace.core.sequence import SequenceEnd, SequenceLimits


def _add_sequence(timeouts: SequenceTimeouts, id: str, now: float) -> LiveSequence:
    sequence = LiveSequence(id, 1, 0, now)
    timeouts.add(sequence)
    return sequence


def test_without_limits_nothing_expires():
    timeouts = SequenceTimeouts(SequenceLimits(idle_ms=float("inf")))
    sequence = _add_sequence(timeouts, "a", 0.0)
    timeouts.mark_idle(sequence, 0.0)
    assert timeouts.next_expiry_s() is None
    assert timeouts.next_expired(1e12) is None
    assert timeouts.evictable(1e12) is None


def test_first_expiry_comes_first_with_its_reason():
    timeouts = SequenceTimeouts(SequenceLimits(idle_ms=4000, time_ms_max=10_000))
    a, b = _add_sequence(timeouts, "a", 0.0), _add_sequence(timeouts, "b", 5.0)
    timeouts.mark_idle(b, 5.0)
    assert timeouts.next_expiry_s() == 9.0
    assert timeouts.next_expired(8.9) is None
    assert timeouts.next_expired(20.0) == (b, SequenceEnd.IDLE)
    timeouts.remove(b)
    assert timeouts.next_expired(20.0) == (a, SequenceEnd.TIMED_OUT)
    timeouts.remove(a)
    assert timeouts.next_expired(20.0) is None
    assert timeouts.next_expiry_s() is None


def test_idle_time_restarts_after_activity():
    timeouts = SequenceTimeouts(SequenceLimits(idle_ms=4000, evict_idle_ms=2000))
    a, b = _add_sequence(timeouts, "a", 0.0), _add_sequence(timeouts, "b", 0.0)
    timeouts.mark_idle(a, 0.0)
    timeouts.mark_idle(b, 1.0)
    assert (timeouts.evictable(1.9), timeouts.evictable(2.0)) == (None, a)
    timeouts.mark_idle(a, 2.0)
    assert timeouts.next_expiry_s() == 5.0
    assert timeouts.evictable(3.0) is b
    timeouts.mark_active(b)
    assert timeouts.next_expiry_s() == 6.0


@pytest.mark.parametrize("asked", [True, False])
def test_activity_does_not_extend_the_lifetime(asked):
    timeouts = SequenceTimeouts(SequenceLimits(idle_ms=4000, time_ms_max=3000))
    sequence = _add_sequence(timeouts, "a", 1.0)
    timeouts.mark_idle(sequence, 2.0)
    if asked:
        timeouts.mark_active(sequence)
    assert timeouts.next_expiry_s() == 4.0
    assert timeouts.next_expired(4.0) == (sequence, SequenceEnd.TIMED_OUT)
