"""The order of the calls of a model: what the request queue asks for the next batch of an instance.

Requests without states are here; steps of sequences are in
`headrace.engine.sequences.sequence_schedule`.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from typing_extensions import override

from headrace.batching.adaptive import AdaptiveBatch, QueueConsumer, ReadyQueue, WaitCondition
from headrace.engine.backend import CallInputs
from headrace.engine.batch_caller import CallItem
from headrace.engine.pending_request import PendingRequest, RequestResult
from headrace.engine.stepper import SequenceEnding


class TakenBatch:
    """A batch that an instance has taken: the work of one call, and its progress."""

    __slots__ = ("endings", "endings_reported", "inputs", "is_ended", "items", "reason", "rows", "work")

    def __init__(
        self,
        work: Sequence[Any] = (),
        rows: int = 0,
        reason: str = "",
        endings: Sequence[SequenceEnding] = (),
    ) -> None:
        self.work = work
        """Pending requests, or sequences with their row requests: what the schedule keeps."""
        self.rows = rows
        self.reason = reason
        """The reason for which the batch closed."""
        self.endings = endings
        """Ended sequences to report to the model before the call."""
        self.items: Sequence[CallItem] | None = None
        """The items of the call; None until they are made."""
        self.inputs: CallInputs | None = None
        """The arguments of the call of all items, if they were made ahead."""
        self.endings_reported = False
        """True once the model was told of the sequences that ended before this batch."""
        self.is_ended = False
        """True once the schedule knows its end."""


class Schedule(Protocol):
    """The order of the calls. The lock of the request queue is held in all methods."""

    room_counts_running: bool
    """True if requests that run take room, too."""

    @property
    def has_ended(self) -> bool:
        """True if requests may have ended without a call. Needs no lock."""
        ...

    def add_instance(self, instance: int) -> None:
        """Prepare for an instance with this number. It may be known, or draining."""
        ...

    def drain_instance(self, instance: int, now: float) -> bool:
        """Leave the work to the others, as far as they can do it. Return True if nothing is left."""
        ...

    def resize(self, *, rows_max: int, delay_s: float) -> None:
        """Set the limits of a call, once the model is loaded: its rows and its co-batching delay."""
        ...

    def has_room(self, entry: PendingRequest, rows_max: int) -> bool:
        """Return True if the request fits below the limit of queued rows."""
        ...

    def add(self, entry: PendingRequest, /) -> None:
        """Add a request. Raises the error that refuses it."""
        ...

    def remove(self, entry: PendingRequest, /) -> bool:
        """Remove a request. Return True if it had not begun."""
        ...

    def drain(self) -> list[PendingRequest]:
        """Remove and return all waiting requests."""
        ...

    def forget(self, entries: Iterable[PendingRequest]) -> None:
        """Forget requests that have ended."""
        ...

    def waiting(self, now: float) -> tuple[int, int, float, int]:
        """Return the waiting requests and rows, the oldest age in seconds, and running requests."""
        ...

    def take(
        self, consumer: QueueConsumer, instance: int, now: float, *, closed: bool
    ) -> TakenBatch | WaitCondition | None:
        """Return the next batch of an instance, or the condition to wait for; None if nothing is left."""
        ...

    def take_full(self, instance: int, now: float) -> TakenBatch | None:
        """Return the next batch of an instance if it fills a call."""
        ...

    def is_full(self, instance: int) -> bool:
        """Return True if the waiting work of an instance fills a call. Needs no lock."""
        ...

    def leave(self, consumer: QueueConsumer, instance: int) -> None:
        """Record that an instance takes nothing for now."""
        ...

    def wake_all(self) -> None:
        """Wake all instances, after a change of the queue's state."""
        ...

    def take_ended(self) -> Callable[[], list[tuple[PendingRequest, RequestResult]]]:
        """Return a function that finishes the requests that ended without a call.

        Call it without the lock; it returns the results to deliver.
        """
        ...


class IndependentRequests(ReadyQueue[PendingRequest], Schedule):
    """The schedule of requests without states: each can be called at once, by any instance."""

    room_counts_running = False

    def __init__(self, *, merge: bool) -> None:
        super().__init__(merge=merge, shared=True)

    @property
    @override
    def has_ended(self) -> bool:
        return False

    @override
    def add_instance(self, instance: int) -> None:
        pass

    @override
    def drain_instance(self, instance: int, now: float) -> bool:
        return True

    @override
    def has_room(self, entry: PendingRequest, rows_max: int) -> bool:
        """Return True if the request fits, or nothing else waits."""
        waiting = self.requests
        return not waiting or (self.rows + entry.rows <= rows_max and waiting < rows_max)

    @override
    def forget(self, entries: Iterable[PendingRequest]) -> None:
        pass

    @override
    def waiting(self, now: float) -> tuple[int, int, float, int]:
        oldest_s = self.oldest_arrival_s()
        age_s = 0.0 if oldest_s is None else max(0.0, now - oldest_s)
        return self.requests, self.rows, age_s, self.running

    @override
    def take(
        self, consumer: QueueConsumer, instance: int, now: float, *, closed: bool
    ) -> TakenBatch | WaitCondition | None:
        found = self.next_for(consumer, now, flush=closed)
        if isinstance(found, AdaptiveBatch):
            return TakenBatch(found.items, found.rows, found.reason)
        if closed:
            self.mark_awake(consumer)
            return None
        return self.sleep(consumer, found)

    @override
    def take_full(self, instance: int, now: float) -> TakenBatch | None:
        found = self.next_full(now)
        return None if found is None else TakenBatch(found.items, found.rows, found.reason)

    def requeue(self, entries: Sequence[PendingRequest]) -> None:
        """Queue requests again that lost their instance, ahead of their equals, also while closing.

        Cancelled requests are skipped.
        """
        for entry in reversed(entries):
            if not entry.cancelled:
                self.add(entry, first=True)
        self.wake_one()

    @override
    def is_full(self, instance: int) -> bool:
        return self.fills_call

    @override
    def leave(self, consumer: QueueConsumer, instance: int) -> None:
        self.mark_awake(consumer)
        # It may have been woken for work that it does not take.
        self.wake_one()

    @override
    def take_ended(self) -> Callable[[], list[tuple[PendingRequest, RequestResult]]]:
        return list
