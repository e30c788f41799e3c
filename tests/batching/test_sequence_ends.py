"""What whoever comes too late is told: how the sequence ended, when, and what to do."""

import pytest

from headrace.batching.sequence_ends import RECENT_MAX, RecentEnds
from headrace.core.errors import SequenceError, SequenceGoneError, SequenceLostError, StoppedError
from headrace.core.sequence import SequenceEnd


def test_a_sequence_that_never_was():
    error = RecentEnds().error("chat", 5.0)
    assert type(error) is SequenceGoneError
    assert str(error) == "sequence 'chat': there is no such sequence: begin it with sequence_start"
    assert error.sequence_id == "chat"


@pytest.mark.parametrize(
    ("why", "kind", "says"),
    [
        (SequenceEnd.ENDED, SequenceGoneError, "it has ended"),
        (SequenceEnd.RESTARTED, SequenceGoneError, "another sequence of this id was begun"),
        (SequenceEnd.CANCELLED, SequenceGoneError, "cancelled"),
        (SequenceEnd.IDLE, SequenceGoneError, "idle_ms"),
        (SequenceEnd.TIMED_OUT, SequenceGoneError, "time_ms_max"),
        (SequenceEnd.EVICTED, SequenceGoneError, "live_max"),
        (SequenceEnd.INSTANCE_LOST, SequenceLostError, "no checkpoint"),
        (SequenceEnd.STOPPED, StoppedError, "the model was stopped"),
    ],
)
def test_each_end_is_told_with_its_time(why, kind, says):
    ends = RecentEnds()
    ends.add("chat", why, 10.0)
    late = ends.error("chat", 12.5)
    assert type(late) is kind
    assert str(late).startswith("sequence 'chat': ")
    assert says in str(late)
    assert "(2.5 s ago)" in str(late)
    seen = ends.error_of("chat", why)
    assert type(seen) is kind
    assert says in str(seen)
    assert "ago" not in str(seen), "whoever waited knows when"
    for error in (late, seen):
        if isinstance(error, SequenceError):
            assert error.sequence_id == "chat"
            assert str(error).endswith(": begin another with sequence_start")


@pytest.mark.parametrize("why", [SequenceEnd.TIMED_OUT, SequenceEnd.INSTANCE_LOST, SequenceEnd.STOPPED])
def test_a_request_by_itself_is_called_so(why):
    """It has no id that could be told, and nothing that could be begun again but itself."""
    said = str(RecentEnds().error_of("", why))
    assert said.startswith("a sequence of one request: ")
    assert "sequence_start" not in said
    assert "''" not in said


def test_the_last_end_of_an_id_counts():
    ends = RecentEnds()
    ends.add("chat", SequenceEnd.CANCELLED, 1.0)
    ends.add("chat", SequenceEnd.IDLE, 3.0)
    assert "idle_ms (1.0 s ago)" in str(ends.error("chat", 4.0))


def test_the_oldest_ends_are_forgotten():
    ends = RecentEnds(ends_max=2)
    for at, id in enumerate(("a", "b", "a", "c")):
        ends.add(id, SequenceEnd.IDLE, float(at))
    assert "no such sequence" in str(ends.error("b", 4.0)), "the end of a is newer, since it ended twice"
    for id in ("a", "c"):
        assert "idle_ms" in str(ends.error(id, 4.0))


def test_so_many_are_remembered():
    ends = RecentEnds()
    for number in range(RECENT_MAX + 1):
        ends.add(str(number), SequenceEnd.IDLE, 0.0)
    assert "no such sequence" in str(ends.error("0", 0.0))
    assert "idle_ms" in str(ends.error("1", 0.0))
