"""Idle timeouts and lifetimes of sequences."""

from collections import OrderedDict
from collections.abc import Iterator
from math import inf
from typing import Generic, TypeVar

from headrace.batching.deadline_queue import DeadlineQueue
from headrace.batching.live_sequence import LiveSequence, StepRequest
from headrace.core.sequence import SequenceEnd, SequenceLimits

T = TypeVar("T", bound=StepRequest)


class SequenceTimeouts(Generic[T]):
    """The idle times and lifetimes of the live sequences. `now` never decreases."""

    def __init__(self, limits: SequenceLimits) -> None:
        self._idle_s = limits.idle_ms / 1000
        self._time_s = inf if limits.time_ms_max is None else limits.time_ms_max / 1000
        self._evict_s = inf if limits.evict_idle_ms is None else limits.evict_idle_ms / 1000
        self._idle: OrderedDict[LiveSequence[T], None] = OrderedDict()
        """Idle sequences, the longest idle first."""
        self._deadlines = DeadlineQueue[LiveSequence[T]]()
        """Ends of lifetime of the live sequences, if lifetimes are limited."""

    def add(self, sequence: LiveSequence[T]) -> None:
        """Start the lifetime of a sequence."""
        if self._time_s < inf:
            self._deadlines.add(sequence, sequence.started_s + self._time_s)

    def mark_idle(self, sequence: LiveSequence[T], now: float) -> None:
        """Start the idle time of a sequence that has answered all its requests."""
        sequence.idle_since_s = now
        self._idle[sequence] = None
        self._idle.move_to_end(sequence)

    def mark_active(self, sequence: LiveSequence[T]) -> None:
        """Stop the idle time of a sequence that received a request."""
        self._idle.pop(sequence, None)

    def remove(self, sequence: LiveSequence[T]) -> None:
        """Forget an ended sequence."""
        self._idle.pop(sequence, None)
        self._deadlines.discard(sequence)

    def idle(self) -> Iterator[LiveSequence[T]]:
        """Iterate over the idle sequences, the longest idle first."""
        return iter(self._idle)

    def evictable(self, now: float) -> LiveSequence[T] | None:
        """Return the longest idle sequence, or None if none has been idle long enough for eviction."""
        idlest = next(iter(self._idle), None)
        return idlest if idlest is not None and now >= idlest.idle_since_s + self._evict_s else None

    def next_expired(self, now: float) -> tuple[LiveSequence[T], SequenceEnd] | None:
        """Return the first sequence to expire by `now`, with the reason, or None.

        The caller ends and removes it.
        """
        idle_s, due_s = self._idle_until_s(), self._deadlines.next_due_s()
        if due_s is not None and due_s < idle_s:
            late = self._deadlines.pop(now)
            return None if late is None else (late, SequenceEnd.TIMED_OUT)
        return (next(iter(self._idle)), SequenceEnd.IDLE) if idle_s <= now else None

    def next_expiry_s(self) -> float | None:
        """Return the time of the next expiry, as of now, or None for never."""
        idle_s, due_s = self._idle_until_s(), self._deadlines.next_due_s()
        at_s = idle_s if due_s is None else min(idle_s, due_s)
        return at_s if at_s < inf else None

    def _idle_until_s(self) -> float:
        idlest = next(iter(self._idle), None)
        return inf if idlest is None else idlest.idle_since_s + self._idle_s
