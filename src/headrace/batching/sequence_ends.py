"""A memory of recently ended sequences, for the error messages of late requests."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

from headrace.core.errors import PredictorError, SequenceGoneError, SequenceLostError, StoppedError
from headrace.core.sequence import SequenceEnd

RECENT_MAX: Final = 4096
"""Number of ends to remember."""

_EXPLANATIONS: Final[Mapping[SequenceEnd, str]] = {
    SequenceEnd.ENDED: "its client or the model ended it",
    SequenceEnd.RESTARTED: "a new sequence with this id replaced it",
    SequenceEnd.CANCELLED: "it was cancelled",
    SequenceEnd.IDLE: "it was idle for idle_ms",
    SequenceEnd.TIMED_OUT: "it reached the lifetime of time_ms_max",
    SequenceEnd.EVICTED: "it was evicted for a new sequence (live_max)",
    SequenceEnd.INSTANCE_LOST: (
        "its state was lost without a checkpoint: the process that held it died, or a defect corrupted it"
    ),
    SequenceEnd.STOPPED: "the model was stopped",
}
_START_ANEW: Final = "start a new one with sequence_start"
_RETRY: Final = "retry"


class RecentEnds:
    """The last `ends_max` ends of sequences, by sequence id. Older ends are dropped."""

    def __init__(self, ends_max: int = RECENT_MAX) -> None:
        self._ends_max = ends_max
        self._ends: OrderedDict[str, tuple[SequenceEnd, float]] = OrderedDict()

    def add(self, id: str, reason: SequenceEnd, now: float) -> None:
        """Record the end of the sequence with this id."""
        self._ends[id] = (reason, now)
        self._ends.move_to_end(id)
        if len(self._ends) > self._ends_max:
            self._ends.popitem(last=False)

    def error_for(self, id: str, now: float) -> PredictorError:
        """Return the error for a request whose sequence id has no live sequence."""
        known = self._ends.get(id)
        if known is None:
            return SequenceGoneError(id, "there is no such sequence: start one with sequence_start")
        reason, ended_s = known
        return self.end_error(id, reason, ago_s=now - ended_s)

    def end_error(self, id: str, reason: SequenceEnd, *, ago_s: float | None = None) -> PredictorError:
        """Return the error for a request whose sequence ended for this reason.

        `ago_s` is the time since the end in seconds; None if the request was waiting at that time.
        """
        when = "" if ago_s is None else f" ({ago_s:.1f} s ago)"
        if reason is SequenceEnd.STOPPED:
            return StoppedError(f"{_named(id)}: {_EXPLANATIONS[reason]}{when}")
        kind = SequenceLostError if reason is SequenceEnd.INSTANCE_LOST else SequenceGoneError
        return kind(id, f"{_EXPLANATIONS[reason]}{when}: {_START_ANEW if id else _RETRY}")


def _named(id: str) -> str:
    return f"sequence {id!r}" if id else "a sequence without an id"
