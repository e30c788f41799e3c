"""The slots of a worker: the attempts under its leases, and the threads that run them."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from typing_extensions import override

from headrace.core.clock import Clock
from headrace.core.errors import HeadraceError
from headrace.jobs.kinds import Attempt, StopReason

LeaseKey = tuple[str, int]
"""A job's id and a lease number."""
Task = Callable[[], object]

_log = logging.getLogger("headrace.jobs")


@dataclass(slots=True)
class _Entry:
    attempt: Attempt
    limit_s: float | None = None
    """The end of its time limit, on the worker's clock."""
    stop_seen_s: float | None = None
    """The time at which its stop was first seen."""
    open: bool = True
    """True until the ledger has replied to its settlement."""
    finished: bool = False
    """True once its outcome is known."""
    working: bool = False
    """True while a thread works on it, or will."""

    @property
    def running(self) -> bool:
        """True if the attempt was not stopped and its outcome is unknown."""
        return self.open and not self.finished and self.attempt.stopped is None


class RunningJobs:
    """The worker's attempts by job and lease. Thread-safe.

    An attempt is open from its claim until the ledger has replied to its settlement. An attempt
    whose thread continues after that, because it ignores `stop`, is no longer open. It occupies its
    slot until its thread returns.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[LeaseKey, _Entry] = {}
        self._claiming = False
        self._empty: Final = threading.Event()
        self._empty.set()

    def add(self, attempt: Attempt) -> None:
        """Add an attempt. An earlier attempt at the same job is stopped as lost."""
        with self._lock:
            job_id = attempt.job.id
            earlier = [e.attempt for (known, _), e in self._entries.items() if known == job_id and e.open]
            self._entries[job_id, attempt.job.lease] = _Entry(attempt)
            self._empty.clear()
        for lost in earlier:
            lost.stop(StopReason.LOST)

    def begin(self, attempt: Attempt, limit_s: float | None = None) -> None:
        """Note that a thread works on the attempt; its time limit ends at `limit_s`."""
        with self._lock:
            entry = self._entry(attempt)
            if entry is not None:
                entry.working, entry.limit_s = True, limit_s

    def mark_finished(self, attempt: Attempt) -> bool:
        """Note that the attempt's outcome is known. Return True for the first call only."""
        with self._lock:
            entry = self._entry(attempt)
            if entry is None or not entry.open or entry.finished:
                return False
            entry.finished = True
            return True

    def thread_returned(self, attempt: Attempt) -> None:
        """Note that the attempt's thread is free."""
        with self._lock:
            entry = self._entry(attempt)
            if entry is not None:
                entry.working = False
                self._forget(entry)

    def remove(self, attempt: Attempt) -> None:
        """Close an attempt that is settled or lost. It occupies its slot until its thread is free."""
        with self._lock:
            entry = self._entry(attempt)
            if entry is not None:
                entry.open = False
                self._forget(entry)

    def begin_claim(self) -> None:
        """Note that a claim is under way: until `end_claim`, further attempts may be added."""
        with self._lock:
            self._claiming = True
            self._empty.clear()

    def end_claim(self) -> None:
        """Note that all claimed jobs were added."""
        with self._lock:
            self._claiming = False
            self._set_if_empty()

    def attempts(self) -> tuple[Attempt, ...]:
        """Return all open attempts."""
        with self._lock:
            return tuple(entry.attempt for entry in self._entries.values() if entry.open)

    def get(self, job_id: str, lease: int) -> Attempt | None:
        """Return the open attempt under a lease, or None."""
        with self._lock:
            entry = self._entries.get((job_id, lease))
            return entry.attempt if entry is not None and entry.open else None

    def slots_after(self, ending: Iterable[LeaseKey] = ()) -> tuple[int, bool]:
        """Return the slots in use once `ending` are settled, and True if one job must run alone."""
        gone = set(ending)
        with self._lock:
            taken = [e for key, e in self._entries.items() if e.working or (e.open and key not in gone)]
            return len(taken), any(e.open and e.attempt.job.alone for e in taken)

    def stop_all(self, reason: StopReason) -> None:
        """Stop all open attempts."""
        for attempt in self.attempts():
            attempt.stop(reason)

    def overdue(self, now_s: float) -> tuple[Attempt, ...]:
        """Return the attempts past their time limit that were not stopped."""
        with self._lock:
            return tuple(
                e.attempt
                for e in self._entries.values()
                if e.running and e.limit_s is not None and e.limit_s <= now_s
            )

    def stuck(self, now_s: float, stop_s: float) -> tuple[Attempt, ...]:
        """Return the attempts that have not stopped `stop_s` after their stop was first seen here."""
        stuck: list[Attempt] = []
        with self._lock:
            for entry in self._entries.values():
                if not entry.open or entry.finished or entry.attempt.stopped is None:
                    continue
                if entry.stop_seen_s is None:
                    entry.stop_seen_s = now_s
                if now_s - entry.stop_seen_s >= stop_s:
                    stuck.append(entry.attempt)
        return tuple(stuck)

    def next_check_s(self, now_s: float, stop_s: float) -> float | None:
        """Return when the next attempt will be overdue or stuck; None if none can be."""
        checks: list[float] = []
        with self._lock:
            for entry in self._entries.values():
                if not entry.open or entry.finished:
                    continue
                if entry.attempt.stopped is not None:
                    checks.append(now_s if entry.stop_seen_s is None else entry.stop_seen_s + stop_s)
                elif entry.limit_s is not None:
                    checks.append(entry.limit_s)
        return min(checks, default=None)

    def wait_until_empty(self, clock: Clock, timeout_s: float) -> bool:
        """Wait until no attempt is open and no claim is under way. Return False after `timeout_s`."""
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
        self._set_if_empty()

    def _set_if_empty(self) -> None:
        if not self._claiming and not any(entry.open for entry in self._entries.values()):
            self._empty.set()


class WorkerThreads:
    """A fixed number of daemon threads over one queue whose length the caller bounds. Use it once.

    A task that never returns does not keep the process from exiting. (The interpreter waits at exit
    for the threads of `concurrent.futures`, however they were shut down.)
    """

    def __init__(self, size: int, name: str) -> None:
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._leaving = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}-{number}", daemon=True) for number in range(size)
        ]

    def start(self) -> None:
        """Start the threads.

        Raise RuntimeError if a thread cannot be created; then `stop` ends the others.
        """
        for thread in self._threads:
            thread.start()

    def submit(self, task: Task) -> None:
        """Queue a task for the next free thread.

        Never block and never raise; tasks after `stop` are dropped.
        """
        self._tasks.put(task)

    def stop(self, timeout_s: float) -> bool:
        """Finish queued tasks; after `timeout_s`, begin no more.

        Return True if all threads have ended.
        """
        for _ in self._threads:
            self._tasks.put(None)
        until_s = time.monotonic() + timeout_s
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, until_s - time.monotonic()))
        self._leaving.set()
        with suppress(queue.Empty):
            while True:
                self._tasks.get_nowait()
        for _ in self._threads:
            self._tasks.put(None)
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self) -> None:
        while not self._leaving.is_set():
            task = self._tasks.get()
            if task is None:
                return
            try:
                task()
            except BaseException:  # noqa: BLE001 - the thread must continue
                _log.exception("a task failed in a worker thread, the thread continues")


class BackgroundTasks(WorkerThreads):
    """Threads for work that the sweepers would do later: at most `waiting_max` tasks wait."""

    def __init__(self, size: int, name: str, *, waiting_max: int) -> None:
        super().__init__(size, name)
        self._lock = threading.Lock()
        self._waiting_max = waiting_max
        self._waiting = 0

    @override
    def submit(self, task: Task) -> None:
        """Queue a task; drop it if too many wait."""
        with self._lock:
            if self._waiting >= self._waiting_max:
                return
            self._waiting += 1
        super().submit(partial(self._do, task))

    def _do(self, task: Task) -> None:
        with self._lock:
            self._waiting -= 1
        try:
            task()
        except HeadraceError as error:
            _log.warning("left to the sweepers: %s", error)
        except Exception:  # noqa: BLE001 - the thread must continue
            _log.exception("left to the sweepers")
