"""When sequences end by themselves: nothing has been asked of them, or they have lived, for too long. Pure."""

from collections import OrderedDict
from math import inf
from typing import Generic, TypeVar

from headrace.batching.due import Due
from headrace.batching.live_sequence import Asked, LiveSequence
from headrace.core.sequence import SequenceEnd, SequenceLimits

T = TypeVar("T", bound=Asked)


class SequenceTimes(Generic[T]):
    """The times of those that live; `now` never goes back."""

    def __init__(self, limits: SequenceLimits) -> None:
        self._idle_s = limits.idle_ms / 1000
        self._time_s = inf if limits.time_ms_max is None else limits.time_ms_max / 1000
        self._evict_s = inf if limits.evict_idle_ms is None else limits.evict_idle_ms / 1000
        self._idle: OrderedDict[LiveSequence[T], None] = OrderedDict()
        """Those of which nothing is asked, the idlest first."""
        self._due = Due[LiveSequence[T]]()
        """Those that live, where they may not for ever."""

    def begins(self, sequence: LiveSequence[T]) -> None:
        """It lives from now on."""
        if self._time_s < inf:
            self._due.add(sequence, sequence.started_s + self._time_s)

    def rests(self, sequence: LiveSequence[T], now: float) -> None:
        """It has its last answer, and nothing else is asked of it."""
        sequence.touched_s = now
        self._idle[sequence] = None
        self._idle.move_to_end(sequence)

    def asked(self, sequence: LiveSequence[T]) -> None:
        """Something is asked of it."""
        self._idle.pop(sequence, None)

    def ended(self, sequence: LiveSequence[T]) -> None:
        """It lives no more."""
        self._idle.pop(sequence, None)
        self._due.drop(sequence)

    def evictable(self, now: float) -> LiveSequence[T] | None:
        """The one that has been idle longest, if that is long enough for it to make room."""
        idlest = next(iter(self._idle), None)
        return idlest if idlest is not None and now >= idlest.touched_s + self._evict_s else None

    def over(self, now: float) -> tuple[LiveSequence[T], SequenceEnd] | None:
        """One whose time was over by now, the one first whose was over first, and why: to be ended."""
        idle_s, due_s = self._idle_until_s(), self._due.next_s()
        if due_s is not None and due_s < idle_s:
            late = self._due.pop(now)
            return None if late is None else (late, SequenceEnd.TIMED_OUT)
        return (next(iter(self._idle)), SequenceEnd.IDLE) if idle_s <= now else None

    def next_s(self) -> float | None:
        """When the next one's time is over, as things stand; None: never."""
        idle_s, due_s = self._idle_until_s(), self._due.next_s()
        at_s = idle_s if due_s is None else min(idle_s, due_s)
        return at_s if at_s < inf else None

    def _idle_until_s(self) -> float:
        idlest = next(iter(self._idle), None)
        return inf if idlest is None else idlest.touched_s + self._idle_s
