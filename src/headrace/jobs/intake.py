"""The intake of jobs: the rights and the model of a submission, its payload, its way to the ledger."""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from math import isinf
from typing import Any, Final

from typing_extensions import override

from headrace.core.errors import (
    DataError,
    EndpointNotFoundError,
    IdempotencyError,
    JobStateError,
    ModelNotFoundError,
    OverloadedError,
    QueueFullError,
)
from headrace.core.predictor import Service
from headrace.jobs.access import Access, ApiKey, Scope
from headrace.jobs.access.endpoints import (
    Endpoint,
    EndpointSettings,
    apply_endpoint,
    require_payload_size,
)
from headrace.jobs.audit_log import AuditLog
from headrace.jobs.current_endpoints import CurrentEndpoints
from headrace.jobs.deliveries import Deliveries
from headrace.jobs.job import NewJob, new_job_id, wall_ms
from headrace.jobs.kinds.runners import check_options
from headrace.jobs.known_models import KnownModels
from headrace.jobs.ledger import JobLedger, SubmitReply
from headrace.jobs.notify.delivery import Outbox
from headrace.jobs.paths import output_location
from headrace.jobs.payloads import BoundedWriter, Payloads, Upload, check_upload_id
from headrace.jobs.schedule_operations import Schedules
from headrace.jobs.shared_calls import FOLLOWERS_MAX, WAITING_MAX, Announce, Follower, Submitter
from headrace.jobs.shared_outputs import SharedOutputs
from headrace.jobs.submission import Submission, SubmissionLimits
from headrace.jobs.tracing import JobTracer
from headrace.jobs.usage import ByteUsage
from headrace.storage import Stores

_log = logging.getLogger("headrace.jobs")

CLEANUPS_MAX: Final = 1_000
DEADLINE_S_DEFAULT: Final = 7 * 86_400.0
PrepareNotify = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Returns an entry of ``notify`` for the ledger, with its secret encrypted. It raises DataError,
ConfigError or ForbiddenError for a target that cannot, or may not, be notified.
"""

PrepareEndpoint = Callable[[EndpointSettings], EndpointSettings]
"""Returns the settings of an endpoint for the ledger, with its `notify` as `PrepareNotify` returns it.
It raises as `PrepareNotify` does, and ConfigError for options of another kind.
"""

RegionOf = Callable[[str], str | None]
"""Returns the region of a URI's data, None if unknown. It may wait for a server; it never raises.
"""


@dataclass(frozen=True, slots=True)
class JobServiceSettings:
    """The location of payloads, and limits."""

    store_uri: str
    """The prefix of payloads and uploads."""
    submission_limits: SubmissionLimits = field(default_factory=SubmissionLimits)
    slots_per_worker: int = 1
    """Concurrent jobs of a worker, to compute the number of workers."""
    upload_bytes_max: int = 16 << 30
    """The limit of an upload through the API. Uploads to the store itself have the store's limit.
    """
    upload_expires_s: float = 3600.0
    signed_urls: bool = True
    """Send clients to the object store itself if it can sign addresses. False if clients cannot
    reach it.
    """
    default_deadline_s: float = DEADLINE_S_DEFAULT
    """The deadline of jobs that name none, after their delay. Infinity gives them none, and a job
    whose store stays unavailable is then retried forever.
    """
    submissions_waiting_max: int = WAITING_MAX
    reserved_uris: tuple[str, ...] = ()
    """headrace's own locations, below which no endpoint writes."""
    followers_max: int = FOLLOWERS_MAX
    shared_outputs: tuple[str, ...] = ()
    """The prefixes at which the server publishes results of jobs of every tenant."""
    scaled_queues: frozenset[str] = frozenset()
    """Queues for which this process starts workers when jobs come."""


PASSING_REFUSALS: Final = (ModelNotFoundError, OverloadedError, QueueFullError)
"""Refusals that may pass: the same submission may be accepted at another time."""


@dataclass(frozen=True, slots=True)
class CheckedJob:
    """A job that its key may submit, as it is before its payload is stored."""

    job: NewJob
    submission: Submission
    endpoint: Endpoint | None
    warnings: tuple[str, ...] = ()

    def stored_uri(self, job: NewJob) -> str:
        """Return the URI of the payload that was stored for `job`, or ""."""
        return "" if self.submission.payload is None else job.input_uri


def authorize_job(key: ApiKey, job: NewJob, *, trusted_output: bool = False) -> NewJob:
    """Return the job for this client's tenant, with normalized URIs.

    Raise ForbiddenError for a queue, model or URI that the key may not name, and ConfigError for a
    URI that nobody may name, or a result's URI that is too long.
    """
    key.require_queue(job.queue)
    key.require_model(job.model)
    output_uri = job.output_uri
    if output_uri and not trusted_output:
        output_uri = key.require_output(output_uri)
    authorized = replace(
        job,
        tenant=key.tenant,
        submitted_by=key.name,
        input_uri=key.require_input(job.input_uri) if job.input_uri else "",
        output_uri=output_uri,
    )
    if output_uri and job.key:
        output_location(authorized)
    return authorized


class JobIntake(Service):
    """The part of `JobService` that has its life cycle, and accepts jobs and payloads.

    The ledger and the stores are owned by the caller: started before, stopped after.
    """

    def __init__(
        self,
        ledger: JobLedger,
        stores: Stores,
        settings: JobServiceSettings,
        *,
        prepare_notify: PrepareNotify | None = None,
        prepare_endpoint: PrepareEndpoint | None = None,
        announce: Announce | None = None,
        region_of: RegionOf | None = None,
        outbox: Outbox | None = None,
        tracer: JobTracer | None = None,
        access: Access | None = None,
        now_ms: Callable[[], int] = wall_ms,
    ) -> None:
        self.settings = settings
        # Used for ids, which sort by it; no decision depends on it.
        self._now_ms = now_ms
        self._prepare_notify = prepare_notify
        self._prepare_endpoint = prepare_endpoint
        self._region_of = region_of
        self._ledger = ledger
        self._payloads = Payloads(
            stores,
            settings.store_uri,
            upload_bytes_max=settings.upload_bytes_max,
            signed_urls=settings.signed_urls,
        )
        self._submitter = Submitter(
            ledger, waiting_max=settings.submissions_waiting_max, announce=announce, tracer=tracer
        )
        self.follower: Final = Follower(ledger, followers_max=settings.followers_max)
        """Waits for jobs; it checks no rights."""
        self._known_models = KnownModels(ledger, scaled_queues=settings.scaled_queues)
        self._usage = ByteUsage(ledger)
        self._endpoints = CurrentEndpoints(ledger)
        self._shared_outputs = SharedOutputs(access or Access(), self._endpoints, settings.shared_outputs)
        self.audit: Final = AuditLog(ledger)
        self.deliveries: Final = Deliveries(ledger, outbox, self.audit)
        self.schedules: Final = Schedules(
            ledger, self.audit, settings.submission_limits, check=self.check_submission, submit=self.submit
        )
        self._life = threading.Lock()
        self._lock = threading.Lock()
        self._changing_queue = threading.Lock()
        self._changing_endpoint = threading.Lock()
        self._arriving: Counter[str] = Counter()
        """Each tenant's submissions on their way to the ledger, which count against its quota."""
        self._cleaner: ThreadPoolExecutor | None = None
        self._cleanups = threading.BoundedSemaphore(CLEANUPS_MAX)

    @override
    def start(self) -> None:
        with self._life:
            with self._lock:
                if self._cleaner is None:
                    self._cleaner = ThreadPoolExecutor(1, "headrace-cleanup")
            self._submitter.start()
            self.follower.start()

    @override
    def stop(self, *, drain: bool = True) -> None:
        """Stop.

        With `drain`, accepted submissions are in the ledger afterwards. All waiters fail with
        StoppedError.
        """
        with self._life:
            self.follower.stop()
            self._submitter.stop(drain=drain)
            with self._lock:
                cleaner, self._cleaner = self._cleaner, None
            if cleaner is not None:
                cleaner.shutdown(wait=True, cancel_futures=not drain)

    def submit(
        self, key: ApiKey, submission: Submission, *, trusted_output: bool = False
    ) -> "Future[SubmitReply]":
        """Store the payload and queue the job, in a group commit with other submissions.

        With `trusted_output` the server's operator named the output, not the client.

        A job of an endpoint has the endpoint's settings, and its key's own lists do not count, except
        for inputs.

        The job of the reply has `warnings` if no worker serves its queue.

        Raises, or completes the future with: ForbiddenError; EndpointNotFoundError; ModelNotFoundError
        for a model that no worker of the queue has reported; QueueFullError for a queue or tenant with
        too many pending jobs; OverloadedError and LimitError for a payload beyond the key's bytes of a
        day; QueueClosedError; IdempotencyError; OutputTakenError if another job owns the name of the
        output; UnavailableError if the payload cannot be stored; JobLedgerUnavailableError. Except for
        the last, nothing was queued. A submission that is repeated with its idempotency key is never
        queued twice.
        """
        key.require(Scope.SUBMIT)
        checked = self._check(key, submission, trusted_output=trusted_output)
        try:
            checked = self._use(key, checked)
            self._admit(key)
        except PASSING_REFUSALS:
            existing = self._existing_reply(checked)
            if existing is None:
                raise
            return _completed(existing)
        stored = ""
        try:
            job = self._with_input(key, checked)
            stored = checked.stored_uri(job)
            future = self._submitter.submit(job, checked.warnings)
        except BaseException:
            self._arrived(key)
            if stored:
                self._clean(stored)
            raise
        future.add_done_callback(partial(self._submitted, key, stored))
        return future

    def check_submission(self, key: ApiKey, submission: Submission) -> None:
        """Raise the error with which `submit` refuses a submission for its rights or fields."""
        key.require(Scope.SUBMIT)
        self._check(key, submission)

    def _check(self, key: ApiKey, submission: Submission, *, trusted_output: bool = False) -> CheckedJob:
        """Return the job with the settings of its endpoint, if the key may submit it."""
        endpoint = self._endpoint_of(key, submission.job.endpoint)
        if submission.payload is not None:
            key.require_inline(len(submission.payload))
            require_payload_size(endpoint, len(submission.payload))
        job = self._authorize(key, submission, endpoint, trusted_output=trusted_output)
        self._shared_outputs.check(job)
        return CheckedJob(job, submission, endpoint)

    def _use(self, key: ApiKey, checked: CheckedJob) -> CheckedJob:
        """Count the bytes of the payload, and check the model. Return the job with its warnings."""
        if checked.submission.payload is not None:
            self._usage.use(key, len(checked.submission.payload))
        warnings = self._known_models.check(checked.job, _limited_to(checked.endpoint, key))
        return replace(checked, warnings=warnings)

    def _with_input(self, key: ApiKey, checked: CheckedJob) -> NewJob:
        """Store the payload, or find the upload. Return the job as the ledger has it."""
        job, submission = checked.job, checked.submission
        if submission.payload is not None:
            job_id = new_job_id(self._now_ms())
            uri = self._payloads.store_payload(job_id, submission.payload)
            # An inline payload is small and may be processed in any region.
            return self._with_deadline(replace(job, id=job_id, input_uri=uri))
        if submission.upload:
            # The upload id replaces the idempotency key: an upload creates one job.
            uri, size_bytes = self._payloads.check_upload(key.tenant, submission.upload)
            require_payload_size(checked.endpoint, size_bytes)
            job = replace(job, id=submission.upload, input_uri=uri, idempotency_key="")
        return self._with_deadline(self._with_region(job))

    def _endpoint_of(self, key: ApiKey, name: str) -> Endpoint | None:
        """Return the endpoint of a submission that names `name`, or None for a direct one."""
        chosen = key.choose_endpoint(name)
        if not chosen:
            return None
        endpoint = self._endpoints.find(chosen)
        if endpoint is None:
            raise EndpointNotFoundError(chosen)
        return endpoint

    def _authorize(
        self, key: ApiKey, submission: Submission, endpoint: Endpoint | None, *, trusted_output: bool
    ) -> NewJob:
        """Return the job for this client's tenant, with the settings of its endpoint if it has one."""
        if endpoint is None:
            key.require_targets(submission.job.notify)
            check_options(submission.job)
            return authorize_job(key, self._with_notify(submission.job), trusted_output=trusted_output)
        job = apply_endpoint(
            endpoint,
            submission.job,
            submission.given,
            reserved=self.settings.reserved_uris,
            trusted_output=trusted_output,
        )
        check_options(job)
        # The ledger's entries of the endpoint are prepared already.
        of_endpoint = endpoint.settings.notify
        own = self._with_notify(replace(job, notify=job.notify[len(of_endpoint) :])).notify
        job = replace(job, notify=(*of_endpoint, *own))
        return authorize_job(_limited_to(endpoint, key), job, trusted_output=True)

    def _existing_reply(self, checked: CheckedJob) -> SubmitReply | IdempotencyError | None:
        """Return the reply to a submission that is in the ledger already, or None.

        Such a job is not refused for passing reasons: a client that lost the response and retries
        receives it.
        """
        job, upload = checked.job, checked.submission.upload
        if upload:
            found = self._ledger.get_many([upload]).get(upload)
        else:
            found = self._ledger.get_by_key(job.tenant, job.idempotency_key)
        if found is None or found.spec.tenant != job.tenant:
            return None
        if found.spec.body_digest != job.body_digest:
            return IdempotencyError(upload or job.idempotency_key, found.id)
        return SubmitReply(found, created=False)

    def _with_notify(self, job: NewJob) -> NewJob:
        """Return the job with its ``notify`` entries as the ledger has them."""
        if not job.notify:
            return job
        if self._prepare_notify is None:
            raise DataError("notify: this server has no notifications; leave it out and poll the job")
        return replace(job, notify=tuple(map(self._prepare_notify, job.notify)))

    def submit_internal(self, job: NewJob) -> "Future[SubmitReply]":
        """Queue a job on behalf of the server's operator, such as one that a trigger creates.

        A job of an unknown model or queue is queued too, because its event is not repeated, and the
        log has a warning.
        """
        try:
            warnings = self._known_models.check(job)
        except ModelNotFoundError as error:
            warnings = (str(error),)
        for warning in warnings:
            _log.warning(
                "a job of the server's configuration may wait or fail: %s",
                warning,
                extra={"correlation_id": job.correlation_id},
            )
        return self._submitter.submit(self._with_deadline(self._with_region(job)), warnings)

    def _with_deadline(self, job: NewJob) -> NewJob:
        """Return the job with its deadline: the submitted one, else the default after its delay."""
        default_s = self.settings.default_deadline_s
        if job.deadline_s is not None or isinf(default_s):
            return job
        return replace(job, deadline_s=default_s + job.delay_ms / 1000)

    def _with_region(self, job: NewJob) -> NewJob:
        """Return the job with its region: the submitted one, else the region of its input."""
        if job.region or self._region_of is None:
            return job
        return replace(job, region=self._region_of(job.input_uri) or "")

    def _admit(self, key: ApiKey, jobs: int = 1) -> None:
        with self._lock:
            arriving = self._arriving[key.tenant]
            self._arriving[key.tenant] += jobs
        try:
            pending = self._ledger.count_pending(key.tenant, limit=key.pending_max)
            key.require_quota(pending + arriving, jobs)
        except BaseException:
            self._arrived(key, jobs)
            raise

    def _arrived(self, key: ApiKey, jobs: int = 1) -> None:
        with self._lock:
            self._arriving[key.tenant] -= jobs
            if not self._arriving[key.tenant]:
                del self._arriving[key.tenant]

    def _submitted(self, key: ApiKey, stored: str, done: "Future[SubmitReply]") -> None:
        """Release the quota and delete an unused payload.

        Runs on the submitter's thread: must not block.
        """
        self._arrived(key)
        # If it is unknown whether the job was queued, the payload stays; the sweeper deletes
        # orphans.
        if stored and not done.cancelled() and done.exception() is None and not done.result().created:
            self._clean(stored)

    def _clean(self, uri: str) -> None:
        if not self._cleanups.acquire(blocking=False):
            return
        with self._lock:
            if self._cleaner is not None:
                done = self._cleaner.submit(self._payloads.delete_payload, uri)
                done.add_done_callback(lambda _: self._cleanups.release())
                return
        self._cleanups.release()

    def begin_upload(self, key: ApiKey) -> Upload:
        """Return a location for a payload that is too large for a submission.

        A key with a limit of bytes sends it through the API, which counts them.
        """
        key.require(Scope.SUBMIT)
        return self._payloads.begin_upload(
            key.tenant,
            self._now_ms(),
            self.settings.upload_expires_s,
            through_api=key.bytes_per_day_max is not None,
        )

    def open_upload(self, key: ApiKey, upload_id: str, declared_bytes: int | None = None) -> BoundedWriter:
        """Open one of the client's uploads for writing.

        `declared_bytes`, if the client declared them, are counted before they arrive. Raise
        ResourceNotFoundError for an unknown upload, JobStateError once a job uses it, and
        OverloadedError or LimitError for bytes beyond the key's limit of a day.
        """
        key.require(Scope.SUBMIT)
        # The id may be any text, also one that a database refuses.
        check_upload_id(key.tenant, upload_id)
        found = self._ledger.get_many([upload_id]).get(upload_id)
        if found is not None and found.spec.tenant == key.tenant:
            raise JobStateError(upload_id, found.state.value, "its payload can no longer be replaced")
        reservation = self._usage.reserve(key, declared_bytes)
        try:
            return self._payloads.open_upload(key.tenant, upload_id, reservation)
        except BaseException:
            if reservation is not None:
                reservation.close()
            raise


def _completed(reply: SubmitReply | IdempotencyError) -> "Future[SubmitReply]":
    future: Future[SubmitReply] = Future()
    if isinstance(reply, IdempotencyError):
        future.set_exception(reply)
    else:
        future.set_result(reply)
    return future


def _limited_to(endpoint: Endpoint | None, key: ApiKey) -> ApiKey:
    """Return the key with the queue and the model of an endpoint alone; without one, the key itself."""
    if endpoint is None:
        return key
    settings = endpoint.settings
    model = settings.model.partition("@")[0]
    return replace(key, queues=frozenset({settings.queue}), models=frozenset({model}))
