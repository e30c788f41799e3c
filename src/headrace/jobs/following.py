"""Whoever waits for jobs, all together: one thread looks at the ledger for all of them, when there is news.

A long poll and an event stream are both this: a job, and what of it would be news. Nobody who waits holds a thread.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import JobLedgerUnavailableError, JobNotFoundError, OverloadedError, StoppedError
from headrace.jobs.job import Job
from headrace.jobs.ledger import JobLedger, Wakeup

_log = logging.getLogger("headrace.jobs")

FOLLOWERS_MAX: Final = 10_000
LOOK_S_MAX: Final = 2.0
"""How late news may be at most, where the ledger's own is lost."""
LOOK_S_MIN: Final = 0.01
"""Between two looks: what happens meanwhile is seen in one."""
LOOK_JOBS: Final = 500
OUTAGE_S: Final = 0.5
RETRY_AFTER_S: Final = 5.0

Wanted = Callable[[Job], bool]


@dataclass(frozen=True, slots=True, eq=False)
class Waiting:
    """One who waits. `job` gives the job as soon as it is as wanted; JobNotFoundError once it is gone."""

    job_id: str
    wanted: Wanted
    job: "Future[Job]"


class Follower:
    """Implements `Service`. `follow` and `leave` may be called from any thread, and never block."""

    def __init__(
        self, ledger: JobLedger, *, followers_max: int = FOLLOWERS_MAX, clock: Clock | None = None
    ) -> None:
        self._ledger = ledger
        self._followers_max = followers_max
        self._clock = clock or SystemClock()
        self._waiting: set[Waiting] = set()
        self._changed = threading.Condition()
        self._life = threading.Lock()
        self._closing = threading.Event()
        self._wakeup: Wakeup | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """See `Service`. The ledger must have been started."""
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

    def stop(self, *, drain: bool = True) -> None:  # noqa: ARG002 - there is nothing to finish: who waits is told
        """See `Service`. Whoever waits gets StoppedError."""
        with self._life:
            with self._changed:
                self._closing.set()
                wakeup, self._wakeup = self._wakeup, None
                left, self._waiting = self._waiting, set()
                self._changed.notify_all()
            for waiting in left:
                _fail(waiting, StoppedError("nobody can wait here any more: this server is going down"))
            if self._thread is None or wakeup is None:
                return
            wakeup.wake()
            self._thread.join()
            self._thread = None
            wakeup.close()

    def follow(self, job_id: str, wanted: Wanted) -> Waiting:
        """Wait for a job to be as wanted; it may be so already. `leave` must follow where the future is given up.

        Raises OverloadedError where too many wait, StoppedError where nobody looks.
        """
        waiting = Waiting(job_id, wanted, Future())
        with self._changed:
            if self._wakeup is None:
                raise StoppedError("nobody can wait here: this server is not running, or going down")
            if len(self._waiting) >= self._followers_max:
                raise OverloadedError(
                    f"{self._followers_max} wait for jobs here already: ask without waiting",
                    retry_after_s=RETRY_AFTER_S,
                )
            self._waiting.add(waiting)
            self._changed.notify_all()
            wakeup = self._wakeup
        wakeup.wake()
        return waiting

    def leave(self, waiting: Waiting) -> None:
        """Wait no more. Twice does nothing."""
        with self._changed:
            self._waiting.discard(waiting)
        waiting.job.cancel()

    @property
    def followers(self) -> int:
        """How many wait."""
        with self._changed:
            return len(self._waiting)

    def look(self) -> None:
        """One look at the ledger for all who wait. JobLedgerUnavailableError."""
        with self._changed:
            all_waiting = tuple(self._waiting)
        ids = sorted({waiting.job_id for waiting in all_waiting})
        jobs: dict[str, Job] = {}
        for first in range(0, len(ids), LOOK_JOBS):
            jobs |= self._ledger.get_many(ids[first : first + LOOK_JOBS])
        self._tell(all_waiting, jobs)

    def _tell(self, all_waiting: Sequence[Waiting], jobs: dict[str, Job]) -> None:
        for waiting in all_waiting:
            job = jobs.get(waiting.job_id)
            try:
                if job is not None and not waiting.wanted(job):
                    continue
                error: Exception | None = None if job is not None else JobNotFoundError(waiting.job_id)
            except Exception as raised:  # noqa: BLE001 - what one asks must not cost the others
                error = raised
            with self._changed:
                self._waiting.discard(waiting)
            if error is not None:
                _fail(waiting, error)
            elif job is not None and waiting.job.set_running_or_notify_cancel():
                waiting.job.set_result(job)

    def _run(self, wakeup: Wakeup) -> None:
        while not self._closing.is_set():
            with self._changed:
                while not self._waiting and not self._closing.is_set():
                    self._changed.wait()
            if self._closing.is_set():
                return
            wakeup.wait(LOOK_S_MAX)
            if self._closing.is_set():
                return
            self._look_and_rest()

    def _look_and_rest(self) -> None:
        began_s = self._clock.now()
        try:
            self.look()
        except JobLedgerUnavailableError:
            # Who waits is told when the wait is over: by then it may be there again.
            self._clock.sleep(OUTAGE_S, self._closing)
            return
        except Exception:  # noqa: BLE001 - the thread must outlive whatever it is
            _log.exception("a look at followed jobs failed")
            self._clock.sleep(OUTAGE_S, self._closing)
            return
        # As long as the look took, so that half of the ledger's time is left for others.
        self._clock.sleep(max(LOOK_S_MIN, self._clock.now() - began_s), self._closing)


def _fail(waiting: Waiting, error: Exception) -> None:
    if waiting.job.set_running_or_notify_cancel():
        waiting.job.set_exception(error)
