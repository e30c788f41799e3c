"""The maintenance threads: each task at its own interval, with jitter."""

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from typing_extensions import override

from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import HeadraceError, JobLedgerUnavailableError
from headrace.core.service import Service

_log = logging.getLogger("headrace.jobs")


@dataclass(frozen=True, slots=True)
class MaintenanceTask:
    """A periodic task.

    `do` runs one round and returns how much it did; a full round is repeated at once.
    """

    name: str
    every_s: float
    do: Callable[[], int]
    full: int | None = None
    """A round that did this much may have left more."""


class Maintenance(Service):
    """A service that runs maintenance tasks. Use it once.

    Each task has its own thread, so that an unavailable store does not delay the take-back of
    leases. A failed round is logged and repeated at its next time. After the ledger was
    unavailable, all tasks pause for `hold_off_s`: running workers must be able to send heartbeats
    before their leases are taken back.

    `stop` waits `stop_s` for running rounds; a longer round ends by itself, or with the process.
    """

    def __init__(
        self,
        tasks: Sequence[MaintenanceTask],
        *,
        hold_off_s: float,
        stop_s: float = 10.0,
        clock: Clock | None = None,
        seed: int | None = None,
    ) -> None:
        self._tasks = tuple(tasks)
        self._clock = clock or SystemClock()
        self._random = random.Random(seed)  # noqa: S311 - jitter
        self._hold_off_s = hold_off_s
        self._stop_s = stop_s
        self._paused_until_s = float("-inf")
        self._wake = threading.Event()
        self._life = threading.Lock()
        self._threads: list[threading.Thread] = []

    @override
    def start(self) -> None:
        """Start. Raise RuntimeError if a thread cannot be created; then `stop` ends the others."""
        with self._life:
            if self._threads or self._wake.is_set():
                return
            for task in self._tasks:
                thread = threading.Thread(
                    target=self._run, args=(task,), name=f"headrace-{task.name}", daemon=True
                )
                thread.start()
                self._threads.append(thread)

    @override
    def stop(self, *, drain: bool = True) -> None:
        """Stop after the running rounds; `drain` has no effect."""
        with self._life:
            threads = self._threads
            if threads:
                self._wake.set()
        until_s = time.monotonic() + self._stop_s
        for thread in threads:
            thread.join(max(0.0, until_s - time.monotonic()))
        unfinished = [thread.name for thread in threads if thread.is_alive()]
        if unfinished:
            _log.warning("maintenance tasks did not end in time: %s", ", ".join(unfinished))

    def _run(self, task: MaintenanceTask) -> None:
        # The first round is anywhere in its interval, so that workers started together do not run
        # in step.
        wait_s = task.every_s * self._random.random()
        while not self._wake.is_set():
            wait_s = max(wait_s, self._paused_until_s - self._clock.now())
            if wait_s > 0 and self._clock.sleep(wait_s, self._wake):
                return
            if self._paused_until_s > self._clock.now():
                wait_s = 0.0
                continue
            wait_s = self._round(task)

    def _round(self, task: MaintenanceTask) -> float:
        """Run one round. Return the seconds until the next."""
        try:
            done = task.do()
        except JobLedgerUnavailableError as error:
            _log.warning("%s: the job ledger is unavailable: %s", task.name, error)
            self._paused_until_s = self._clock.now() + self._hold_off_s
        except HeadraceError as error:
            _log.warning("%s: %s", task.name, error)
        except Exception:  # noqa: BLE001 - it is retried
            _log.exception("%s failed", task.name)
        else:
            if task.full is not None and done >= task.full:
                return 0.0
        return task.every_s * (0.75 + self._random.random() / 2)
