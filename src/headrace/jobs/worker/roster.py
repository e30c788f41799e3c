"""What a worker has in hand: the attempts under its leases, and the slots that are taken."""

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from headrace.core.clock import Clock
from headrace.jobs.attempt import Attempt, StopReason

LeaseKey = tuple[str, int]
"""A job's id and a lease's number."""


@dataclass(slots=True)
class _Entry:
    attempt: Attempt
    limit_s: float | None = None
    """When its time is over, on the worker's own clock."""
    told_s: float | None = None
    """When it was first seen to have been told to stop."""
    open: bool = True
    """The ledger has not answered for it yet."""
    answered: bool = False
    """Somebody has said what it came to."""
    working: bool = False
    """A thread is at it, or will be."""

    @property
    def running(self) -> bool:
        """Whether nobody has told it to stop, or said what it came to."""
        return self.open and not self.answered and self.attempt.stopped is None


class Roster:
    """Attempts by job and lease; safe from any thread.

    An attempt is in hand from its claim until its settlement was answered. One whose thread goes on beyond that, because it
    does not listen, is in hand no more, but takes up a slot until it returns.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[LeaseKey, _Entry] = {}
        self._expecting = False
        self._empty: Final = threading.Event()
        self._empty.set()

    def add(self, attempt: Attempt) -> None:
        """Take one in hand. An earlier attempt at its job is lost by that, and is told so."""
        with self._lock:
            job_id = attempt.job.id
            earlier = [e.attempt for (known, _), e in self._entries.items() if known == job_id and e.open]
            self._entries[job_id, attempt.job.lease] = _Entry(attempt)
            self._empty.clear()
        for lost in earlier:
            lost.stop(StopReason.LOST)

    def begin(self, attempt: Attempt, limit_s: float | None = None) -> None:
        """A thread is to work on it; its time is over at `limit_s`."""
        with self._lock:
            entry = self._entry(attempt)
            if entry is not None:
                entry.working, entry.limit_s = True, limit_s

    def answer(self, attempt: Attempt) -> bool:
        """Somebody says what it came to; whether nobody had done so before."""
        with self._lock:
            entry = self._entry(attempt)
            if entry is None or not entry.open or entry.answered:
                return False
            entry.answered = True
            return True

    def returned(self, attempt: Attempt) -> None:
        """Its thread is free."""
        with self._lock:
            entry = self._entry(attempt)
            if entry is not None:
                entry.working = False
                self._forget(entry)

    def remove(self, attempt: Attempt) -> None:
        """It is settled, or lost. Its slot stays taken until its thread is free."""
        with self._lock:
            entry = self._entry(attempt)
            if entry is not None:
                entry.open = False
                self._forget(entry)

    def expect(self) -> None:
        """Jobs were asked for: until `expect_nothing`, there may be more in hand than is known."""
        with self._lock:
            self._expecting = True
            self._empty.clear()

    def expect_nothing(self) -> None:
        """All that was claimed is in hand."""
        with self._lock:
            self._expecting = False
            self._look()

    def held(self) -> tuple[Attempt, ...]:
        """All that is in hand."""
        with self._lock:
            return tuple(entry.attempt for entry in self._entries.values() if entry.open)

    def get(self, job_id: str, lease: int) -> Attempt | None:
        """The attempt that is in hand under a lease."""
        with self._lock:
            entry = self._entries.get((job_id, lease))
            return entry.attempt if entry is not None and entry.open else None

    def staying(self, ending: Iterable[LeaseKey] = ()) -> tuple[int, bool]:
        """How many slots are taken once `ending` is settled, and whether one of them is by a job that must be alone."""
        gone = set(ending)
        with self._lock:
            taken = [e for key, e in self._entries.items() if e.working or (e.open and key not in gone)]
            return len(taken), any(e.open and e.attempt.job.alone for e in taken)

    def stop_all(self, reason: StopReason) -> None:
        """Tell all to stop."""
        for attempt in self.held():
            attempt.stop(reason)

    def overdue(self, now_s: float) -> tuple[Attempt, ...]:
        """Those whose time is over and that were not told."""
        with self._lock:
            return tuple(
                e.attempt
                for e in self._entries.values()
                if e.running and e.limit_s is not None and e.limit_s <= now_s
            )

    def stuck(self, now_s: float, patience_s: float) -> tuple[Attempt, ...]:
        """Those that were told to stop, `patience_s` ago as far as was seen here, and have not."""
        stuck: list[Attempt] = []
        with self._lock:
            for entry in self._entries.values():
                if not entry.open or entry.answered or entry.attempt.stopped is None:
                    continue
                if entry.told_s is None:
                    entry.told_s = now_s
                if now_s - entry.told_s >= patience_s:
                    stuck.append(entry.attempt)
        return tuple(stuck)

    def next_look_s(self, now_s: float, patience_s: float) -> float | None:
        """When one will be overdue or stuck; None where none can."""
        looks: list[float] = []
        with self._lock:
            for entry in self._entries.values():
                if not entry.open or entry.answered:
                    continue
                if entry.attempt.stopped is not None:
                    looks.append(now_s if entry.told_s is None else entry.told_s + patience_s)
                elif entry.limit_s is not None:
                    looks.append(entry.limit_s)
        return min(looks, default=None)

    def wait_until_empty(self, clock: Clock, timeout_s: float) -> bool:
        """Block until nothing is in hand or expected, or `timeout_s` have passed; whether nothing is."""
        return clock.sleep(timeout_s, self._empty)

    def __len__(self) -> int:
        with self._lock:
            return sum(entry.open for entry in self._entries.values())

    def _entry(self, attempt: Attempt) -> _Entry | None:
        entry = self._entries.get((attempt.job.id, attempt.job.lease))
        return entry if entry is not None and entry.attempt is attempt else None

    def _forget(self, entry: _Entry) -> None:
        if not entry.open and not entry.working:
            del self._entries[entry.attempt.job.id, entry.attempt.job.lease]
        self._look()

    def _look(self) -> None:
        if not self._expecting and not any(entry.open for entry in self._entries.values()):
            self._empty.set()
