"""The schedule of a request queue: when each pending request can be called, and by which instance."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from typing_extensions import override

from headrace.batching.adaptive import AdaptiveBatch, WaitCondition
from headrace.core.frozen import statically_frozen
from headrace.engine.pending_request import PendingRequest, RequestResult
from headrace.engine.ready_queue import QueueConsumer, ReadyQueue
from headrace.engine.stepper import SequenceEnding


@statically_frozen
class ReadyBatch:
    """The work of one call."""

    taken: Sequence[Any] = ()
    """Pending requests, or sequences with their row requests: what the schedule keeps."""
    rows: int = 0
    reason: str = ""
    """The reason for which the batch closed."""
    endings: Sequence[SequenceEnding] = ()
    """Ended sequences to report to the model before the call."""


class Schedule(Protocol):
    """The order of the calls. The lock of the request queue is held in all methods."""

    @property
    def has_ended(self) -> bool:
        """True if requests may have ended without a call. Needs no lock."""
        ...

    def resize(self, *, rows_max: int, delay_s: float) -> None:
        """Set the limits of a call, once the model is loaded: its rows and its co-batching delay."""
        ...

    def has_room(self, entry: PendingRequest, rows_max: int) -> bool:
        """Return True if the request fits below the limit of queued rows."""
        ...

    def add(self, entry: PendingRequest, details: Any) -> None:
        """Add a request. `details` are those of `RequestQueue.offer`. Raises the error that refuses it."""
        ...

    def remove(self, entry: PendingRequest) -> bool:
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
    ) -> ReadyBatch | WaitCondition | None:
        """Return the next batch of an instance, or the condition to wait for; None if nothing is left."""
        ...

    def take_full(self, instance: int, now: float) -> ReadyBatch | None:
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


class IndependentRequests(Schedule):
    """The schedule of requests without states: each can be called at once, by any instance."""

    @property
    @override
    def has_ended(self) -> bool:
        return False

    def __init__(self, *, merge: bool) -> None:
        self._ready = ReadyQueue[PendingRequest](merge=merge, shared=True)

    @override
    def resize(self, *, rows_max: int, delay_s: float) -> None:
        self._ready.resize(rows_max=rows_max, delay_s=delay_s)

    @override
    def has_room(self, entry: PendingRequest, rows_max: int) -> bool:
        """Return True if the request fits, or nothing else waits."""
        waiting = len(self._ready)
        return not waiting or (self._ready.rows + entry.rows <= rows_max and waiting < rows_max)

    @override
    def add(self, entry: PendingRequest, details: Any) -> None:
        self._ready.add(entry)

    @override
    def remove(self, entry: PendingRequest) -> bool:
        return self._ready.remove(entry)

    @override
    def drain(self) -> list[PendingRequest]:
        return self._ready.drain()

    @override
    def forget(self, entries: Iterable[PendingRequest]) -> None:
        pass

    @override
    def waiting(self, now: float) -> tuple[int, int, float, int]:
        ready = self._ready
        age_s = 0.0 if ready.oldest_s is None else max(0.0, now - ready.oldest_s)
        return len(ready), ready.rows, age_s, ready.running

    @override
    def take(
        self, consumer: QueueConsumer, instance: int, now: float, *, closed: bool
    ) -> ReadyBatch | WaitCondition | None:
        found = self._ready.next(consumer, now, flush=closed)
        if isinstance(found, AdaptiveBatch):
            return _batch(found)
        if closed:
            self._ready.mark_awake(consumer)
            return None
        return self._ready.sleep(consumer, found)

    @override
    def take_full(self, instance: int, now: float) -> ReadyBatch | None:
        found = self._ready.next_full(now)
        return None if found is None else _batch(found)

    def end(self, batch: ReadyBatch, now: float) -> None:
        """Record the end of a batch."""
        self._ready.end(len(batch.taken), batch.rows, now)

    def requeue(self, entries: Sequence[PendingRequest]) -> None:
        """Queue requests again that lost their instance, ahead of their equals, also while closing.

        Cancelled requests are skipped.
        """
        for entry in reversed(entries):
            if not entry.cancelled:
                self._ready.add(entry, first=True)
        self._ready.wake_one()

    @override
    def is_full(self, instance: int) -> bool:
        return self._ready.is_full

    @override
    def leave(self, consumer: QueueConsumer, instance: int) -> None:
        self._ready.mark_awake(consumer)
        # It may have been woken for work that it does not take.
        self._ready.wake_one()

    @override
    def wake_all(self) -> None:
        self._ready.wake_all()

    @override
    def take_ended(self) -> Callable[[], list[tuple[PendingRequest, RequestResult]]]:
        return list


def _batch(closed: AdaptiveBatch[PendingRequest]) -> ReadyBatch:
    return ReadyBatch(closed.items, closed.rows, closed.reason)
