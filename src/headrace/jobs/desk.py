"""The desk: everything between a door and the ledger. Doors translate; what may be done, and what must be done for it, is here.

All of it blocks, but for what gives a future, and may be called from any thread.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any, Final

from headrace.core.errors import DataError, IdempotencyError, JobStateError, LimitError, QueueFullError
from headrace.jobs.access import JobKey, Scope
from headrace.jobs.documents import oldest_seconds
from headrace.jobs.following import FOLLOWERS_MAX, Follower, Waiting, Wanted
from headrace.jobs.intake import Submission
from headrace.jobs.intake_fields import IntakeLimits
from headrace.jobs.job import QUEUE_DEFAULT, HistoryEntry, Job, NewJob, new_job_id
from headrace.jobs.kinds.words import check_words
from headrace.jobs.ledger import JobFilter, JobLedger, Page, QueueCounts, QueueSettings, Submitted
from headrace.jobs.payloads import BoundedWriter, Payloads, ResultStream, Upload
from headrace.jobs.state import JobState
from headrace.jobs.submitter import WAITING_MAX, Announce, Submitter
from headrace.storage import Stores

_log = logging.getLogger("headrace.jobs")

PAGE_MAX: Final = 500
CLEANUPS_MAX: Final = 1_000
DECIDE: Final = (Scope.SUBMIT, Scope.OPERATE)
"""Who may cancel a job or have it tried again: its tenant, and whoever operates all of this."""


CheckNotify = Callable[[Mapping[str, Any]], None]
"""Raises DataError, ConfigError or ForbiddenError for somebody who cannot, or may not, be told of a job."""

RegionOf = Callable[[str], str | None]
"""Where a URI's data lives, None where that is not known. May wait for a server; never raises."""


@dataclass(frozen=True, slots=True)
class DeskSettings:
    """Where a desk puts payloads, and its bounds."""

    store_uri: str
    """Payloads and uploads go below it."""
    intake: IntakeLimits = field(default_factory=IntakeLimits)
    slots_per_worker: int = 1
    """How many jobs a worker runs at once: for whoever counts how many workers are wanted."""
    upload_bytes_max: int = 16 << 30
    """An upload through the API. What goes to the store itself is bounded by that."""
    upload_expires_s: float = 3600.0
    sign: bool = True
    """Whether callers are sent to the object store itself, where it can sign addresses. Not where they cannot reach it."""
    submissions_waiting_max: int = WAITING_MAX
    followers_max: int = FOLLOWERS_MAX


@dataclass(frozen=True, slots=True)
class QueueLook:
    """A queue, and what is in it."""

    settings: QueueSettings
    counts: QueueCounts


@dataclass(frozen=True, slots=True)
class Scale:
    """How many workers a queue wants. `backlog` is due and running: whoever scales goes by that, never by `queued` alone."""

    queue: str
    queued: int
    running: int
    backlog: int
    slots_per_worker: int
    desired: int
    oldest_seconds: float


def allowed(caller: JobKey, job: NewJob, *, output_is_ours: bool = False) -> NewJob:
    """The caller's own job, each place that it names in its one spelling.

    Raises ForbiddenError for a queue, a model or a place that is not theirs to name, ConfigError for one that is nobody's.
    """
    caller.require_queue(job.queue)
    caller.require_model(job.model)
    output_uri = job.output_uri
    if output_uri and not output_is_ours:
        output_uri = caller.outputs.require(output_uri, "output")
    return replace(
        job,
        tenant=caller.tenant,
        input_uri=caller.inputs.require(job.input_uri, "input") if job.input_uri else "",
        output_uri=output_uri,
    )


class JobDesk:
    """Implements `Service`. The ledger and the stores are somebody else's: started before, stopped after."""

    def __init__(
        self,
        ledger: JobLedger,
        stores: Stores,
        settings: DeskSettings,
        *,
        check_notify: CheckNotify | None = None,
        announce: Announce | None = None,
        region_of: RegionOf | None = None,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.settings = settings
        # For ids, which sort by it; nothing is decided by it.
        self._now_ms = now_ms
        self._check_notify = check_notify
        self._region_of = region_of
        self._ledger = ledger
        self._payloads = Payloads(
            stores, settings.store_uri, upload_bytes_max=settings.upload_bytes_max, sign=settings.sign
        )
        self._submitter = Submitter(ledger, waiting_max=settings.submissions_waiting_max, announce=announce)
        self._follower = Follower(ledger, followers_max=settings.followers_max)
        self._life = threading.Lock()
        self._lock = threading.Lock()
        self._arriving: Counter[str] = Counter()
        """Submissions of each tenant that are on their way to the ledger: they count against its quota."""
        self._cleaner: ThreadPoolExecutor | None = None
        self._cleanups = threading.BoundedSemaphore(CLEANUPS_MAX)
        self._queues = threading.Lock()

    def start(self) -> None:
        """See `Service`."""
        with self._life:
            with self._lock:
                if self._cleaner is not None:
                    return
                self._cleaner = ThreadPoolExecutor(1, "headrace-cleanup")
            self._submitter.start()
            self._follower.start()

    def stop(self, *, drain: bool = True) -> None:
        """See `Service`: with `drain` what was taken is in the ledger then. Whoever waits gets StoppedError."""
        with self._life:
            self._follower.stop()
            self._submitter.stop(drain=drain)
            with self._lock:
                cleaner, self._cleaner = self._cleaner, None
            if cleaner is not None:
                cleaner.shutdown(wait=True, cancel_futures=not drain)

    def check_ready(self) -> None:
        """JobLedgerUnavailableError unless the ledger answers."""
        self._ledger.queue(QUEUE_DEFAULT)

    # Submitting

    def submit(
        self, caller: JobKey, submission: Submission, *, output_is_ours: bool = False
    ) -> "Future[Submitted]":
        """Store the payload, and have the job queued together with others'.

        With `output_is_ours` the output was named by whoever runs the door, and not by the caller.

        Raises, or gives: ForbiddenError; QueueFullError for a queue or a tenant with too many waiting; QueueClosedError;
        IdempotencyError; UnavailableError where the payload cannot be stored; JobLedgerUnavailableError. Whatever it is
        but the last, nothing was queued; the same submission with the same idempotency key is never queued twice.
        """
        caller.require(Scope.SUBMIT)
        if submission.payload is not None:
            caller.require_inline(len(submission.payload))
        check_words(submission.job)
        self._check_notified(submission.job)
        job = allowed(caller, submission.job, output_is_ours=output_is_ours)
        try:
            self._admit(caller)
        except QueueFullError:
            # What is there already needs no room: whoever asks again, since an answer was lost, gets it.
            known = self._known(job, submission.upload)
            if known is None:
                raise
            return known
        stored = ""
        try:
            if submission.upload:
                # The upload is the key: it makes one job, by whatever other key it is asked for.
                uri = self._payloads.check_upload(caller.tenant, submission.upload)
                job = replace(job, id=submission.upload, input_uri=uri, idempotency_key="")
            elif submission.payload is not None:
                job_id = new_job_id(self._now_ms())
                stored = self._payloads.keep(job_id, submission.payload)
                job = replace(job, id=job_id, input_uri=stored)
            # What came with the submission is small, and as well sent to any region.
            answer = self._submitter.submit(job if stored else self._placed(job))
        except BaseException:
            self._arrived(caller)
            if stored:
                self._clean(stored)
            raise
        answer.add_done_callback(lambda done: self._submitted(caller, done, stored))
        return answer

    def _known(self, job: NewJob, upload: str) -> "Future[Submitted] | None":
        """The answer to a submission that is in the ledger already, None where it is not."""
        if upload:
            found = self._ledger.get_many([upload]).get(upload)
        else:
            found = self._ledger.keyed(job.tenant, job.idempotency_key)
        if found is None or found.spec.tenant != job.tenant:
            return None
        answer: Future[Submitted] = Future()
        if found.spec.body_digest != job.body_digest:
            answer.set_exception(IdempotencyError(upload or job.idempotency_key, found.id))
        else:
            answer.set_result(Submitted(found, created=False))
        return answer

    def _check_notified(self, job: NewJob) -> None:
        if not job.notify:
            return
        if self._check_notify is None:
            raise DataError("notify: this server notifies nobody; leave it out, and ask for the job")
        for whom in job.notify:
            self._check_notify(whom)

    def submit_ours(self, job: NewJob) -> "Future[Submitted]":
        """Have a job queued that whoever runs the server has asked for, such as one that a trigger makes."""
        return self._submitter.submit(self._placed(job))

    def _placed(self, job: NewJob) -> NewJob:
        """The job with its region: the one that it came with, else that in which its input lives."""
        if job.region or self._region_of is None:
            return job
        return replace(job, region=self._region_of(job.input_uri) or "")

    def _admit(self, caller: JobKey) -> None:
        with self._lock:
            arriving = self._arriving[caller.tenant]
            self._arriving[caller.tenant] += 1
        try:
            pending = self._ledger.pending_of(caller.tenant, at_most=caller.pending_max)
            caller.require_room(pending + arriving)
        except BaseException:
            self._arrived(caller)
            raise

    def _arrived(self, caller: JobKey) -> None:
        with self._lock:
            self._arriving[caller.tenant] -= 1
            if not self._arriving[caller.tenant]:
                del self._arriving[caller.tenant]

    def _submitted(self, caller: JobKey, done: "Future[Submitted]", stored: str) -> None:
        """On the submitter's thread: must not block."""
        self._arrived(caller)
        # Where it is not known whether the job was queued, its payload stays, and is swept if no job names it.
        if stored and not done.cancelled() and done.exception() is None and not done.result().created:
            self._clean(stored)

    def _clean(self, uri: str) -> None:
        if not self._cleanups.acquire(blocking=False):
            return
        with self._lock:
            if self._cleaner is not None:
                done = self._cleaner.submit(self._payloads.forget, uri)
                done.add_done_callback(lambda _: self._cleanups.release())
                return
        self._cleanups.release()

    # Looking

    def get(self, caller: JobKey, job_id: str) -> Job:
        """One job. JobNotFoundError, also where it is another tenant's."""
        caller.require(Scope.READ)
        return self._ledger.get(job_id, tenant=caller.sees)

    def history(self, caller: JobKey, job_id: str) -> list[HistoryEntry]:
        """What went wrong with a job, and what was done to it by hand."""
        self.get(caller, job_id)
        return self._ledger.history(job_id)

    def find(self, caller: JobKey, wanted: JobFilter, *, after: str, limit: int) -> Page:
        """Jobs that the caller sees and that fit, newest first. LimitError for more than PAGE_MAX at once."""
        caller.require(Scope.READ)
        if not 0 < limit <= PAGE_MAX:
            raise LimitError(f"limit: must be from 1 to {PAGE_MAX}, not {limit}")
        if caller.sees is not None:
            wanted = replace(wanted, tenant=caller.sees)
        return self._ledger.find(wanted, after=after, limit=limit)

    def follow(self, caller: JobKey, job_id: str, wanted: Wanted) -> Waiting:
        """Wait for a job that the caller may see; whoever gives up calls `leave`. Raises as `get`, and OverloadedError."""
        self.get(caller, job_id)
        return self._follower.follow(job_id, wanted)

    def follow_on(self, job_id: str, wanted: Wanted) -> Waiting:
        """Wait once more for a job that `follow` was asked for. Never blocks."""
        return self._follower.follow(job_id, wanted)

    def leave(self, waiting: Waiting) -> None:
        """Wait no more."""
        self._follower.leave(waiting)

    # Deciding by hand

    def cancel(self, caller: JobKey, job_id: str) -> Job:
        """See `JobLedger.cancel`."""
        caller.require(*DECIDE)
        return self._ledger.cancel(job_id, tenant=caller.sees, by=caller.name)

    def retry(self, caller: JobKey, job_id: str) -> Job:
        """Put a job back that ended without a result. JobStateError for one that has one, or has not ended."""
        caller.require(*DECIDE)
        job = self._ledger.get(job_id, tenant=caller.sees)
        if job.state is JobState.COMPLETED:
            raise JobStateError(
                job_id, job.state.value, "it has its result; to do the work anew, submit it anew"
            )
        return self._ledger.requeue(job_id, tenant=caller.sees, by=caller.name)

    def delete(self, caller: JobKey, job_id: str) -> Job:
        """Remove an ended job, with what was stored for it alone. What was published where it was asked for stays.

        JobNotFoundError where it is another tenant's, unless the caller may all.
        """
        caller.require(Scope.SUBMIT)
        job = self._ledger.delete(job_id, tenant=caller.removes)
        self._payloads.forget_job(job)
        return job

    # Payloads

    def open_result(
        self, caller: JobKey, job_id: str, start: int = 0, *, etag: str | None = None
    ) -> ResultStream:
        """A completed job's result. See `Payloads.open_result`."""
        return self._payloads.open_result(self.get(caller, job_id), start, etag=etag)

    def result_url(self, caller: JobKey, job_id: str) -> str:
        """Where the result can be read without a key for a while, or ""."""
        return self._payloads.result_url(self.get(caller, job_id), self.settings.upload_expires_s)

    def begin_upload(self, caller: JobKey) -> Upload:
        """A place for a payload that is too large for a submission."""
        caller.require(Scope.SUBMIT)
        return self._payloads.begin_upload(caller.tenant, self._now_ms(), self.settings.upload_expires_s)

    def open_upload(self, caller: JobKey, upload_id: str) -> BoundedWriter:
        """Write an upload of the caller's own through here. JobStateError once a job names it."""
        caller.require(Scope.SUBMIT)
        found = self._ledger.get_many([upload_id]).get(upload_id)
        if found is not None and found.spec.tenant == caller.tenant:
            raise JobStateError(upload_id, found.state.value, "its payload cannot be replaced any more")
        return self._payloads.open_upload(caller.tenant, upload_id)

    # Queues

    def queues(self, caller: JobKey) -> Sequence[QueueLook]:
        """All queues."""
        caller.require(Scope.READ)
        return [QueueLook(settings, self._ledger.counts(settings.name)) for settings in self._ledger.queues()]

    def queue(self, caller: JobKey, name: str) -> QueueLook:
        """One queue; an empty one where it is not known."""
        caller.require(Scope.READ)
        return QueueLook(self._ledger.queue(name), self._ledger.counts(name))

    def change_queue(self, caller: JobKey, name: str, changes: Mapping[str, Any]) -> QueueLook:
        """Pause, resume, drain or bound a queue: `changes` are fields of `QueueSettings`."""
        caller.require(Scope.OPERATE)
        with self._queues:
            settings = replace(self._ledger.queue(name), **changes)
            self._ledger.set_queue(settings)
        _log.info("a queue was changed", extra={"queue": name, "by": caller.name, **changes})
        return QueueLook(settings, self._ledger.counts(name))

    def scale(self, caller: JobKey, name: str, slots_per_worker: int | None = None) -> Scale:
        """How many workers a queue wants. JobLedgerUnavailableError, never 0, where that is not known."""
        caller.require(Scope.READ)
        slots = self.settings.slots_per_worker if slots_per_worker is None else slots_per_worker
        if slots < 1:
            raise DataError(f"slots_per_worker: must be at least 1, not {slots}")
        counts = self._ledger.counts(name)
        return Scale(
            queue=name,
            queued=counts.due,
            running=counts.running,
            backlog=counts.backlog,
            slots_per_worker=slots,
            desired=ceil(counts.backlog / slots),
            oldest_seconds=oldest_seconds(counts),
        )
