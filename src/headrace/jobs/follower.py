"""Waiting for jobs: one thread reads the ledger for all waiters after each change.

A long poll and an event stream both wait for a job to meet a condition. No waiter holds a thread.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

from typing_extensions import override

from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import JobLedgerUnavailableError, JobNotFoundError, OverloadedError, StoppedError
from headrace.core.predictor import Service
from headrace.jobs.job import Job
from headrace.jobs.ledger import JobLedger, Wakeup

_log = logging.getLogger("headrace.jobs")

FOLLOWERS_MAX: Final = 10_000
POLL_S_MAX: Final = 2.0
"""The largest delay of a change if the ledger's notification is lost."""
POLL_S_MIN: Final = 0.01
"""The shortest time between two reads; changes meanwhile are seen together."""
POLL_JOBS: Final = 500
OUTAGE_S: Final = 0.5
RETRY_AFTER_S: Final = 5.0

JobCondition = Callable[[Job], bool]


@dataclass(frozen=True, slots=True, eq=False)
class JobWaiter:
    """A waiter for one job.

    `job` completes once the job meets `condition`; JobNotFoundError if it is deleted.
    """

    job_id: str
    condition: JobCondition
    job: "Future[Job]"


class Follower(Service):
    """A service that completes waiters of jobs.

    Any thread may call `follow` and `leave`; they never block.
    """

    def __init__(
        self, ledger: JobLedger, *, followers_max: int = FOLLOWERS_MAX, clock: Clock | None = None
    ) -> None:
        self._ledger = ledger
        self._followers_max = followers_max
        self._clock = clock or SystemClock()
        self._waiters: set[JobWaiter] = set()
        self._changed = threading.Condition()
        self._life = threading.Lock()
        self._closing = threading.Event()
        self._wakeup: Wakeup | None = None
        self._thread: threading.Thread | None = None

    @override
    def start(self) -> None:
        """Start. The ledger must be running."""
        with self._life:
            if self._thread is not None:
                return
            self._closing.clear()
            wakeup = self._ledger.watch()
            with self._changed:
                self._wakeup = wakeup
            self._thread = threading.Thread(
                target=self._run, args=(wakeup,), name="headrace-follow", daemon=True
            )
            self._thread.start()

    @override
    def stop(self, *, drain: bool = True) -> None:
        """Stop. All waiters fail with StoppedError, also with `drain`."""
        with self._life:
            with self._changed:
                self._closing.set()
                wakeup, self._wakeup = self._wakeup, None
                remaining, self._waiters = self._waiters, set()
                self._changed.notify_all()
            for waiter in remaining:
                _fail(waiter, StoppedError("the wait for a job ended: the server is stopping"))
            if self._thread is None or wakeup is None:
                return
            wakeup.wake()
            self._thread.join()
            self._thread = None
            wakeup.close()

    def follow(self, job_id: str, condition: JobCondition) -> JobWaiter:
        """Wait for a job to meet the condition; it may meet it already.

        Call `leave` to give up the future.

        Raise OverloadedError if there are too many waiters, and StoppedError if the service is not
        running.
        """
        waiter = JobWaiter(job_id, condition, Future())
        with self._changed:
            if self._wakeup is None:
                raise StoppedError("jobs cannot be waited for: the server is not running or is stopping")
            if len(self._waiters) >= self._followers_max:
                raise OverloadedError(
                    f"{self._followers_max} requests wait for jobs already: retry without waiting",
                    retry_after_s=RETRY_AFTER_S,
                )
            self._waiters.add(waiter)
            self._changed.notify_all()
            wakeup = self._wakeup
        wakeup.wake()
        return waiter

    def leave(self, waiter: JobWaiter) -> None:
        """Remove a waiter. A second call does nothing."""
        with self._changed:
            self._waiters.discard(waiter)
        waiter.job.cancel()

    @property
    def followers(self) -> int:
        """The number of waiters."""
        with self._changed:
            return len(self._waiters)

    def poll(self) -> None:
        """Read the ledger once for all waiters. Raise JobLedgerUnavailableError."""
        with self._changed:
            waiters = tuple(self._waiters)
        ids = sorted({waiter.job_id for waiter in waiters})
        jobs: dict[str, Job] = {}
        for first in range(0, len(ids), POLL_JOBS):
            jobs |= self._ledger.get_many(ids[first : first + POLL_JOBS])
        self._resolve(waiters, jobs)

    def _resolve(self, waiters: Sequence[JobWaiter], jobs: dict[str, Job]) -> None:
        for waiter in waiters:
            job = jobs.get(waiter.job_id)
            try:
                if job is not None and not waiter.condition(job):
                    continue
                error: Exception | None = None if job is not None else JobNotFoundError(waiter.job_id)
            except Exception as raised:  # noqa: BLE001 - one waiter must not affect others
                error = raised
            with self._changed:
                self._waiters.discard(waiter)
            if error is not None:
                _fail(waiter, error)
            elif job is not None and waiter.job.set_running_or_notify_cancel():
                waiter.job.set_result(job)

    def _run(self, wakeup: Wakeup) -> None:
        while not self._closing.is_set():
            with self._changed:
                while not self._waiters and not self._closing.is_set():
                    self._changed.wait()
            if self._closing.is_set():
                return
            wakeup.wait(POLL_S_MAX)
            if self._closing.is_set():
                return
            self._poll_and_rest()

    def _poll_and_rest(self) -> None:
        began_s = self._clock.now()
        try:
            self.poll()
        except JobLedgerUnavailableError:
            # Waiters time out by themselves; the ledger may be back by then.
            self._clock.sleep(OUTAGE_S, self._closing)
            return
        except Exception:  # noqa: BLE001 - the thread must continue
            _log.exception("reading followed jobs failed")
            self._clock.sleep(OUTAGE_S, self._closing)
            return
        # The pause is as long as the read, so that half of the ledger's time is left for others.
        self._clock.sleep(max(POLL_S_MIN, self._clock.now() - began_s), self._closing)


def _fail(waiter: JobWaiter, error: Exception) -> None:
    if waiter.job.set_running_or_notify_cancel():
        waiter.job.set_exception(error)
