"""When sequences end by themselves."""

import pytest

from headrace.batching.live_sequence import LiveSequence
from headrace.batching.sequence_times import SequenceTimes
from headrace.core.sequence import SequenceEnd, SequenceLimits


def _begun(times: SequenceTimes, id: str, now: float) -> LiveSequence:
    sequence = LiveSequence(id, 1, 0, now)
    times.begins(sequence)
    return sequence


def test_nothing_is_ever_over_where_there_is_no_limit():
    times = SequenceTimes(SequenceLimits(idle_ms=float("inf")))
    sequence = _begun(times, "a", 0.0)
    times.rests(sequence, 0.0)
    assert times.next_s() is None
    assert times.over(1e12) is None
    assert times.evictable(1e12) is None


def test_the_first_whose_time_is_over_comes_first_with_its_reason():
    times = SequenceTimes(SequenceLimits(idle_ms=4000, time_ms_max=10_000))
    a, b = _begun(times, "a", 0.0), _begun(times, "b", 5.0)
    times.rests(b, 5.0)
    assert times.next_s() == 9.0
    assert times.over(8.9) is None
    assert times.over(20.0) == (b, SequenceEnd.IDLE)
    times.ended(b)
    assert times.over(20.0) == (a, SequenceEnd.TIMED_OUT)
    times.ended(a)
    assert times.over(20.0) is None
    assert times.next_s() is None


def test_whoever_rests_again_is_the_last_to_be_idle_for_too_long():
    times = SequenceTimes(SequenceLimits(idle_ms=4000, evict_idle_ms=2000))
    a, b = _begun(times, "a", 0.0), _begun(times, "b", 0.0)
    times.rests(a, 0.0)
    times.rests(b, 1.0)
    assert (times.evictable(1.9), times.evictable(2.0)) == (None, a)
    times.rests(a, 2.0)
    assert times.next_s() == 5.0
    assert times.evictable(3.0) is b
    times.asked(b)
    assert times.next_s() == 6.0


@pytest.mark.parametrize("asked", [True, False])
def test_a_life_is_no_longer_for_being_used(asked):
    times = SequenceTimes(SequenceLimits(idle_ms=4000, time_ms_max=3000))
    sequence = _begun(times, "a", 1.0)
    times.rests(sequence, 2.0)
    if asked:
        times.asked(sequence)
    assert times.next_s() == 4.0
    assert times.over(4.0) == (sequence, SequenceEnd.TIMED_OUT)
