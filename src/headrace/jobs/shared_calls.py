"""Ledger calls that many requests share, each by one thread: commits of submissions, reads of jobs.

`Submitter` commits all submissions that arrive during one commit by the next. A single submission
never waits; under load the commits grow in size instead of number. `Follower` reads the ledger
after each change, for all requests that wait for a job.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from typing_extensions import override

from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import (
    HeadraceError,
    JobLedgerUnavailableError,
    JobNotFoundError,
    OverloadedError,
    StoppedError,
)
from headrace.core.predictor import Service
from headrace.jobs.job import Job, NewJob
from headrace.jobs.ledger import JobLedger, SubmitReply, Wakeup
from headrace.jobs.state import JobState
from headrace.jobs.tracing import JobTracer, SubmissionSpan

_log = logging.getLogger("headrace.jobs")

COMMIT_JOBS_MAX: Final = 256
"""The number of jobs in one commit, which limits how long the database holds its lock."""
WAITING_MAX: Final = 10_000
SUBMIT_RETRY_AFTER_S: Final = 1.0
FOLLOWERS_MAX: Final = 10_000
POLL_S_MAX: Final = 2.0
"""The largest delay of a change if the ledger's notification is lost."""
POLL_S_MIN: Final = 0.01
"""The shortest time between two reads; changes meanwhile are seen together."""
POLL_JOBS: Final = 500
OUTAGE_S: Final = 0.5
FOLLOW_RETRY_AFTER_S: Final = 5.0


Announce = Callable[[str, Sequence[str]], None]
"""Announces committed jobs of a queue to workers; never raises and never waits."""
JobCondition = Callable[[Job], bool]


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
        tracer: JobTracer | None = None,
    ) -> None:
        self._ledger = ledger
        self._announce = announce
        self._tracer = tracer
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
            _fail(pending.future, StoppedError("the job was not submitted: the server is stopping"))
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

        The job of the reply has these warnings, and with a tracer the trace context of its submission.

        Raise OverloadedError if too many submissions wait, and StoppedError before `start` and
        after `stop`.
        """
        if self._tracer is None:
            return self._enqueue(job, warnings)
        span = SubmissionSpan(self._tracer, job)
        try:
            future = self._enqueue(span.job, warnings)
        except HeadraceError as error:
            span.fail(error)
            raise
        future.add_done_callback(partial(_end_span_of_future, span))
        return future

    def _enqueue(self, job: NewJob, warnings: tuple[str, ...]) -> "Future[SubmitReply]":
        future: Future[SubmitReply] = Future()
        # A running commit cannot be cancelled.
        with self._changed:
            if not self._open:
                raise StoppedError("jobs cannot be submitted: the server is not running or is stopping")
            if len(self._pending) >= self._waiting_max:
                raise OverloadedError(
                    f"{self._waiting_max} submissions wait for the ledger already: try again later",
                    retry_after_s=SUBMIT_RETRY_AFTER_S,
                )
            self._pending.append(_PendingSubmission(job, warnings, future))
            self._changed.notify()
        return future

    def submit_together(
        self, jobs: Sequence[NewJob], warnings: Sequence[tuple[str, ...]], *, all_or_nothing: bool
    ) -> list[SubmitReply | Exception]:
        """Submit jobs in a commit of their own. Block until the ledger's replies are there."""
        spans = [] if self._tracer is None else [SubmissionSpan(self._tracer, job) for job in jobs]
        try:
            replies = self._ledger.submit([span.job for span in spans] or jobs, all_or_nothing=all_or_nothing)
        except Exception as error:
            for span in spans:
                span.fail(error)
            raise
        refusal = next((reply for reply in replies if isinstance(reply, Exception)), None)
        if all_or_nothing and refusal is not None:
            for span, reply in zip(spans, replies, strict=False):
                span.fail(reply if isinstance(reply, Exception) else refusal)
            return replies
        for span, reply in zip(spans, replies, strict=False):
            _end_span(span, reply)
        self._announce_new(replies)
        return [
            reply if isinstance(reply, Exception) else _with_warnings(reply, texts)
            for reply, texts in zip(replies, warnings, strict=True)
        ]

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
                _fail(pending.future, error)
            return
        # If the database refuses one job, the others must still be submitted.
        except Exception as error:  # noqa: BLE001
            if len(batch) == 1:
                _fail(batch[0].future, error)
                return
            _log.exception("jobs could not be submitted together, submitting one by one")
            for pending in batch:
                self._commit([pending])
            return
        self._announce_new(replies)
        for pending, reply in zip(batch, replies, strict=True):
            if isinstance(reply, Exception):
                _fail(pending.future, reply)
            elif pending.future.set_running_or_notify_cancel():
                pending.future.set_result(_with_warnings(reply, pending.warnings))

    def _announce_new(self, replies: Sequence[SubmitReply | Exception]) -> None:
        """Announce new due jobs; workers find jobs that become due later by themselves."""
        if self._announce is None:
            return
        queues: dict[str, list[str]] = {}
        for reply in replies:
            if isinstance(reply, SubmitReply) and reply.created and _is_due(reply.job):
                queues.setdefault(reply.job.spec.queue, []).append(reply.job.id)
        for queue, ids in queues.items():
            self._announce(queue, ids)


def _is_due(new: Job) -> bool:
    return new.state is JobState.PENDING and new.spec.delay_ms <= 0


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
                _fail(waiter.job, StoppedError("the wait for a job ended: the server is stopping"))
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
                    retry_after_s=FOLLOW_RETRY_AFTER_S,
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
                _fail(waiter.job, error)
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


def _with_warnings(reply: SubmitReply, warnings: tuple[str, ...]) -> SubmitReply:
    return SubmitReply(replace(reply.job, warnings=warnings), reply.created) if warnings else reply


def _end_span_of_future(span: SubmissionSpan, future: "Future[SubmitReply]") -> None:
    error = CancelledError() if future.cancelled() else future.exception()
    _end_span(span, error or future.result())


def _end_span(span: SubmissionSpan, reply: SubmitReply | BaseException) -> None:
    if isinstance(reply, SubmitReply):
        span.end(reply.job.id, created=reply.created)
    else:
        span.fail(reply)


def _fail(future: "Future[Any]", error: Exception) -> None:
    if future.set_running_or_notify_cancel():
        future.set_exception(error)
