"""Error messages for requests of ended sequences."""

import pytest

from headrace.batching.sequence_ends import RECENT_MAX, RecentEnds
from headrace.core.errors import SequenceError, SequenceGoneError, SequenceLostError, StoppedError
from headrace.core.sequence import SequenceControl, SequenceEnd


def test_unknown_sequence():
    error = RecentEnds().error_for(SequenceControl("chat"), 5.0)
    assert type(error) is SequenceGoneError
    assert str(error) == "sequence 'chat': there is no such sequence: start one with sequence_start"
    assert error.sequence_id == "chat"


@pytest.mark.parametrize(
    ("reason", "kind", "message"),
    [
        (SequenceEnd.ENDED, SequenceGoneError, "ended it"),
        (SequenceEnd.RESTARTED, SequenceGoneError, "replaced it"),
        (SequenceEnd.CANCELLED, SequenceGoneError, "cancelled"),
        (SequenceEnd.IDLE, SequenceGoneError, "idle_ms"),
        (SequenceEnd.TIMED_OUT, SequenceGoneError, "time_ms_max"),
        (SequenceEnd.EVICTED, SequenceGoneError, "live_max"),
        (SequenceEnd.INSTANCE_LOST, SequenceLostError, "without a checkpoint"),
        (SequenceEnd.STOPPED, StoppedError, "the model was stopped"),
    ],
)
def test_error_names_the_reason_and_the_time(reason, kind, message):
    ends = RecentEnds()
    ends.add("chat", reason, 10.0)
    late = ends.error_for(SequenceControl("chat"), 12.5)
    assert type(late) is kind
    assert str(late).startswith("sequence 'chat': ")
    assert message in str(late)
    assert "(2.5 s ago)" in str(late)
    seen = ends.end_error("chat", reason)
    assert type(seen) is kind
    assert message in str(seen)
    assert "ago" not in str(seen), "a waiting client knows the time"
    for error in (late, seen):
        if isinstance(error, SequenceError):
            assert error.sequence_id == "chat"
            assert str(error).endswith(": start a new one with sequence_start")


@pytest.mark.parametrize("reason", [SequenceEnd.TIMED_OUT, SequenceEnd.INSTANCE_LOST, SequenceEnd.STOPPED])
def test_anonymous_sequence_has_no_id_in_its_error(reason):
    """The error must not suggest sequence_start."""
    message = str(RecentEnds().end_error("", reason))
    assert message.startswith("a sequence without an id: ")
    assert "sequence_start" not in message
    assert "''" not in message


def test_last_end_of_an_id_counts():
    ends = RecentEnds()
    ends.add("chat", SequenceEnd.CANCELLED, 1.0)
    ends.add("chat", SequenceEnd.IDLE, 3.0)
    assert "idle_ms (1.0 s ago)" in str(ends.error_for(SequenceControl("chat"), 4.0))


def test_oldest_ends_are_dropped():
    ends = RecentEnds(ends_max=2)
    for at, id in enumerate(("a", "b", "a", "c")):
        ends.add(id, SequenceEnd.IDLE, float(at))
    assert "no such sequence" in str(ends.error_for(SequenceControl("b"), 4.0)), (
        "the end of a is newer, since it ended twice"
    )
    for id in ("a", "c"):
        assert "idle_ms" in str(ends.error_for(SequenceControl(id), 4.0))


def test_default_capacity():
    ends = RecentEnds()
    for number in range(RECENT_MAX + 1):
        ends.add(str(number), SequenceEnd.IDLE, 0.0)
    assert "no such sequence" in str(ends.error_for(SequenceControl("0"), 0.0))
    assert "idle_ms" in str(ends.error_for(SequenceControl("1"), 0.0))
