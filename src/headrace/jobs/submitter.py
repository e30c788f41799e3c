"""Submissions of many callers, put into the ledger together: one commit for all that came while the last one was under way.

A lone one never waits: whatever is there goes at once. Under load the commits grow instead of their number.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

from headrace.core.errors import JobLedgerUnavailableError, OverloadedError, StoppedError
from headrace.jobs.job import NewJob
from headrace.jobs.ledger import JobLedger, Submitted

_log = logging.getLogger("headrace.jobs")

TOGETHER_MAX: Final = 256
"""Jobs of one commit: a database holds its lock no longer for one caller's sake."""
WAITING_MAX: Final = 10_000
RETRY_AFTER_S: Final = 1.0


Announce = Callable[[str, Sequence[str]], None]
"""Tells workers of a queue of jobs that are in the ledger now; never raises and never waits."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    job: NewJob
    answer: "Future[Submitted]"


@dataclass(frozen=True, slots=True)
class SubmitterStatistics:
    """Counts since the start."""

    commits: int
    jobs: int
    waiting: int


class Submitter:
    """Implements `Service`; `submit` may be called from any thread, and never blocks."""

    def __init__(
        self,
        ledger: JobLedger,
        *,
        together_max: int = TOGETHER_MAX,
        waiting_max: int = WAITING_MAX,
        announce: Announce | None = None,
    ) -> None:
        self._ledger = ledger
        self._announce = announce
        self._together_max = together_max
        self._waiting_max = waiting_max
        self._waiting: deque[_Waiting] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._open = False
        self._commits = 0
        self._jobs = 0

    def start(self) -> None:
        """See `Service`."""
        with self._changed:
            if self._open:
                return
            self._open = True
            self._thread = threading.Thread(target=self._run, name="headrace-submit", daemon=True)
            self._thread.start()

    def stop(self, *, drain: bool = True) -> None:
        """See `Service`: with `drain` what waits is submitted first."""
        with self._changed:
            self._open = False
            dropped = [] if drain else list(self._waiting)
            if not drain:
                self._waiting.clear()
            self._changed.notify_all()
            thread = self._thread
        for waiting in dropped:
            _fail(waiting, StoppedError("the job was not submitted: this server is going down"))
        if thread is not None:
            thread.join()
            self._thread = None

    def submit(self, job: NewJob) -> "Future[Submitted]":
        """Have a job submitted; the future gives the ledger's answer, or what it said in place of one.

        Raises OverloadedError where too many wait already, StoppedError before `start` and after `stop`.
        """
        answer: Future[Submitted] = Future()
        # What was begun is carried through: a commit cannot be called back.
        with self._changed:
            if not self._open:
                raise StoppedError("no jobs are taken: this server is not running, or going down")
            if len(self._waiting) >= self._waiting_max:
                raise OverloadedError(
                    f"{self._waiting_max} submissions wait for the ledger already",
                    retry_after_s=RETRY_AFTER_S,
                )
            self._waiting.append(_Waiting(job, answer))
            self._changed.notify()
        return answer

    def statistics(self) -> SubmitterStatistics:
        """How it has gone so far."""
        with self._changed:
            return SubmitterStatistics(self._commits, self._jobs, len(self._waiting))

    def _run(self) -> None:
        while True:
            with self._changed:
                while self._open and not self._waiting:
                    self._changed.wait()
                if not self._waiting:
                    return
                together = [
                    self._waiting.popleft() for _ in range(min(len(self._waiting), self._together_max))
                ]
                self._commits += 1
                self._jobs += len(together)
            self._commit(together)

    def _commit(self, together: Sequence[_Waiting]) -> None:
        try:
            answers = self._ledger.submit([waiting.job for waiting in together])
        except JobLedgerUnavailableError as error:
            for waiting in together:
                _fail(waiting, error)
            return
        # Whatever the job is that the database does not take, the others are innocent.
        except Exception as error:  # noqa: BLE001
            if len(together) == 1:
                _fail(together[0], error)
                return
            _log.exception("jobs could not be submitted together, and are submitted one by one")
            for waiting in together:
                self._commit([waiting])
            return
        self._tell(answers)
        for waiting, answer in zip(together, answers, strict=True):
            if isinstance(answer, Exception):
                _fail(waiting, answer)
            else:
                _give(waiting, answer)

    def _tell(self, answers: Sequence[Submitted | Exception]) -> None:
        """Announce what is new and due: what becomes due later, workers find by themselves."""
        if self._announce is None:
            return
        queues: dict[str, list[str]] = {}
        for answer in answers:
            if isinstance(answer, Submitted) and answer.created and answer.job.spec.delay_ms <= 0:
                queues.setdefault(answer.job.spec.queue, []).append(answer.job.id)
        for queue, ids in queues.items():
            self._announce(queue, ids)


def _give(waiting: _Waiting, answer: Submitted) -> None:
    if waiting.answer.set_running_or_notify_cancel():
        waiting.answer.set_result(answer)


def _fail(waiting: _Waiting, error: Exception) -> None:
    if waiting.answer.set_running_or_notify_cancel():
        waiting.answer.set_exception(error)
