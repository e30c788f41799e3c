"""The ends of sequences: when they expire, and how the recent ones ended.

Pure: the caller passes `now`, which never decreases.
"""

import heapq
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping
from math import inf
from typing import Any, Final, Generic, TypeVar

from headrace.batching.live_sequence import LiveSequence, StepRequest
from headrace.core.errors import PredictorError, SequenceGoneError, SequenceLostError, StoppedError
from headrace.core.sequence import SequenceControl, SequenceEnd, SequenceLimits

T = TypeVar("T", bound=StepRequest)
Item = TypeVar("Item", bound=Hashable)

_SPARE: Final = 16
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
    """The last `ends_max` ends of sequences, by qualified id. Older ends are dropped."""

    def __init__(self, ends_max: int = RECENT_MAX) -> None:
        self._ends_max = ends_max
        self._ends: OrderedDict[str, tuple[SequenceEnd, float]] = OrderedDict()

    def add(self, qualified_id: str, reason: SequenceEnd, now: float) -> None:
        """Record the end of the sequence with this id."""
        self._ends[qualified_id] = (reason, now)
        self._ends.move_to_end(qualified_id)
        if len(self._ends) > self._ends_max:
            self._ends.popitem(last=False)

    def error_for(self, named: SequenceControl | LiveSequence[Any], now: float) -> PredictorError:
        """Return the error for a request that names a sequence which is not live."""
        known = self._ends.get(named.qualified_id)
        if known is None:
            return SequenceGoneError(named.id, "there is no such sequence: start one with sequence_start")
        reason, ended_s = known
        return self.end_error(named.id, reason, ago_s=now - ended_s)

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


class DeadlineQueue(Generic[Item]):
    """A queue of items by deadline, with one deadline for each item.

    Adding and discarding an item takes amortised logarithmic time. The heap keeps a discarded entry
    until it is due or until a rebuild: it holds a small constant more than twice the live entries.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Item]] = []
        self._entries: dict[Item, int] = {}
        self._numbers = 0

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self._entries)

    def add(self, item: Item, at_s: float) -> None:
        """Set the deadline of an item, in place of any earlier deadline."""
        self._numbers += 1
        self._entries[item] = self._numbers
        heapq.heappush(self._heap, (at_s, self._numbers, item))
        self._trim()

    def discard(self, item: Item) -> None:
        """Remove an item. Do nothing if the item is absent."""
        if self._entries.pop(item, None) is not None:
            self._trim()

    def next_due_s(self) -> float | None:
        """Return the earliest deadline, or None if the queue is empty."""
        if not self._heap:
            return None
        self._skip()
        return self._heap[0][0] if self._heap else None

    def pop(self, now: float) -> Item | None:
        """Remove and return the item with the earliest deadline.

        Return None if no deadline is reached at `now`.
        """
        self._skip()
        if not self._heap or self._heap[0][0] > now:
            return None
        item = heapq.heappop(self._heap)[2]
        del self._entries[item]
        return item

    def _trim(self) -> None:
        # Discarded entries stay in the heap until they are due. Rebuilding at this size bounds
        # their number at amortised constant cost.
        if len(self._heap) > 2 * len(self._entries) + _SPARE:
            self._heap = [entry for entry in self._heap if self._entries.get(entry[2]) == entry[1]]
            heapq.heapify(self._heap)

    def _skip(self) -> None:
        heap, entries = self._heap, self._entries
        while heap and entries.get(heap[0][2]) != heap[0][1]:
            heapq.heappop(heap)


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
