"""How sequences ended that are no more, so that whoever comes too late can be told why."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

from headrace.core.errors import PredictorError, SequenceGoneError, SequenceLostError, StoppedError
from headrace.core.sequence import SequenceEnd

RECENT_MAX: Final = 4096
"""Ends that are remembered."""

_HOW: Final[Mapping[SequenceEnd, str]] = {
    SequenceEnd.ENDED: "it has ended, as its client or the model said",
    SequenceEnd.RESTARTED: "another sequence of this id was begun in its place",
    SequenceEnd.CANCELLED: "it was cancelled",
    SequenceEnd.IDLE: "it ended since nobody had asked anything of it for idle_ms",
    SequenceEnd.TIMED_OUT: "it ended since it had lived for time_ms_max",
    SequenceEnd.EVICTED: "it made room for another one (live_max)",
    SequenceEnd.INSTANCE_LOST: "the process that held its state died, or a defect spoiled it, and there is no checkpoint of it",
    SequenceEnd.STOPPED: "the model was stopped",
}
_ANEW: Final = "begin another with sequence_start"
_AGAIN: Final = "ask again"


class RecentEnds:
    """The last ends, by the sequences' ids; the oldest are forgotten."""

    def __init__(self, ends_max: int = RECENT_MAX) -> None:
        self._ends_max = ends_max
        self._ends: OrderedDict[str, tuple[SequenceEnd, float]] = OrderedDict()

    def add(self, id: str, why: SequenceEnd, now: float) -> None:
        """A sequence of this id has ended."""
        self._ends[id] = (why, now)
        self._ends.move_to_end(id)
        if len(self._ends) > self._ends_max:
            self._ends.popitem(last=False)

    def error(self, id: str, now: float) -> PredictorError:
        """What a request comes to for which no sequence of this id lives."""
        known = self._ends.get(id)
        if known is None:
            return SequenceGoneError(id, "there is no such sequence: begin it with sequence_start")
        why, ended_s = known
        return self.error_of(id, why, ago_s=now - ended_s)

    def error_of(self, id: str, why: SequenceEnd, *, ago_s: float | None = None) -> PredictorError:
        """What a request comes to whose sequence ended so, so long ago; None: before its eyes."""
        when = "" if ago_s is None else f" ({ago_s:.1f} s ago)"
        if why is SequenceEnd.STOPPED:
            return StoppedError(f"{_named(id)}: {_HOW[why]}{when}")
        kind = SequenceLostError if why is SequenceEnd.INSTANCE_LOST else SequenceGoneError
        return kind(id, f"{_HOW[why]}{when}: {_ANEW if id else _AGAIN}")


def _named(id: str) -> str:
    return f"sequence {id!r}" if id else "a sequence of one request"
