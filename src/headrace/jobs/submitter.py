"""Group commit of submissions: all that arrive during one commit share the next.

A single submission never waits. Under load the commits grow in size instead of number.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Final

from typing_extensions import override

from headrace.core.errors import JobLedgerUnavailableError, OverloadedError, StoppedError
from headrace.core.predictor import Service
from headrace.jobs.job import NewJob
from headrace.jobs.ledger import JobLedger, SubmitReply

_log = logging.getLogger("headrace.jobs")

COMMIT_JOBS_MAX: Final = 256
"""The number of jobs in one commit, which limits how long the database holds its lock."""
WAITING_MAX: Final = 10_000
RETRY_AFTER_S: Final = 1.0


Announce = Callable[[str, Sequence[str]], None]
"""Announces committed jobs of a queue to workers; never raises and never waits."""


@dataclass(frozen=True, slots=True)
class _PendingSubmission:
    job: NewJob
    warnings: tuple[str, ...]
    future: "Future[SubmitReply]"


@dataclass(frozen=True, slots=True)
class SubmitterStatistics:
    """Cumulative counters of a submitter."""

    commits: int
    jobs: int
    pending: int


class Submitter(Service):
    """A service that commits submissions in groups. Any thread may call `submit`; it never blocks."""

    def __init__(
        self,
        ledger: JobLedger,
        *,
        commit_jobs_max: int = COMMIT_JOBS_MAX,
        waiting_max: int = WAITING_MAX,
        announce: Announce | None = None,
    ) -> None:
        self._ledger = ledger
        self._announce = announce
        self._commit_jobs_max = commit_jobs_max
        self._waiting_max = waiting_max
        self._pending: deque[_PendingSubmission] = deque()
        self._changed = threading.Condition()
        self._life = threading.Lock()
        self._thread: threading.Thread | None = None
        self._open = False
        self._commits = 0
        self._jobs = 0

    @override
    def start(self) -> None:
        with self._life:
            if self._thread is not None:
                return
            with self._changed:
                self._open = True
            self._thread = threading.Thread(target=self._run, name="headrace-submit", daemon=True)
            self._thread.start()

    @override
    def stop(self, *, drain: bool = True) -> None:
        with self._changed:
            self._open = False
            dropped = [] if drain else list(self._pending)
            if not drain:
                self._pending.clear()
            self._changed.notify_all()
        for pending in dropped:
            _fail(pending, StoppedError("the job was not submitted: the server is stopping"))
        with self._life:
            with self._changed:
                # The service may have been started again meanwhile.
                self._open = False
                self._changed.notify_all()
            if self._thread is not None:
                self._thread.join()
                self._thread = None

    def submit(self, job: NewJob, warnings: tuple[str, ...] = ()) -> "Future[SubmitReply]":
        """Submit a job. The future completes with the ledger's reply or error.

        The job of the reply has these warnings.

        Raise OverloadedError if too many submissions wait, and StoppedError before `start` and
        after `stop`.
        """
        future: Future[SubmitReply] = Future()
        # A running commit cannot be cancelled.
        with self._changed:
            if not self._open:
                raise StoppedError("jobs cannot be submitted: the server is not running or is stopping")
            if len(self._pending) >= self._waiting_max:
                raise OverloadedError(
                    f"{self._waiting_max} submissions wait for the ledger already: try again later",
                    retry_after_s=RETRY_AFTER_S,
                )
            self._pending.append(_PendingSubmission(job, warnings, future))
            self._changed.notify()
        return future

    def statistics(self) -> SubmitterStatistics:
        """Return a snapshot of the counters."""
        with self._changed:
            return SubmitterStatistics(self._commits, self._jobs, len(self._pending))

    def _run(self) -> None:
        while True:
            with self._changed:
                while self._open and not self._pending:
                    self._changed.wait()
                if not self._pending:
                    return
                batch = [
                    self._pending.popleft() for _ in range(min(len(self._pending), self._commit_jobs_max))
                ]
                self._commits += 1
                self._jobs += len(batch)
            self._commit(batch)

    def _commit(self, batch: Sequence[_PendingSubmission]) -> None:
        try:
            replies = self._ledger.submit([pending.job for pending in batch])
        except JobLedgerUnavailableError as error:
            for pending in batch:
                _fail(pending, error)
            return
        # If the database refuses one job, the others must still be submitted.
        except Exception as error:  # noqa: BLE001
            if len(batch) == 1:
                _fail(batch[0], error)
                return
            _log.exception("jobs could not be submitted together, submitting one by one")
            for pending in batch:
                self._commit([pending])
            return
        self._announce_new(replies)
        for pending, reply in zip(batch, replies, strict=True):
            if isinstance(reply, Exception):
                _fail(pending, reply)
            else:
                _resolve(pending, reply)

    def _announce_new(self, replies: Sequence[SubmitReply | Exception]) -> None:
        """Announce new due jobs; workers find jobs that become due later by themselves."""
        if self._announce is None:
            return
        queues: dict[str, list[str]] = {}
        for reply in replies:
            if isinstance(reply, SubmitReply) and reply.created and reply.job.spec.delay_ms <= 0:
                queues.setdefault(reply.job.spec.queue, []).append(reply.job.id)
        for queue, ids in queues.items():
            self._announce(queue, ids)


def _resolve(pending: _PendingSubmission, reply: SubmitReply) -> None:
    if pending.warnings:
        reply = replace(reply, job=replace(reply.job, warnings=pending.warnings))
    if pending.future.set_running_or_notify_cancel():
        pending.future.set_result(reply)


def _fail(pending: _PendingSubmission, error: Exception) -> None:
    if pending.future.set_running_or_notify_cancel():
        pending.future.set_exception(error)
