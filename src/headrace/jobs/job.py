"""The values of a job: submission, progress, result, outcome of an attempt; and their JSON.

The HTTP API writes the JSON documents, and its clients read them. Fields that an older API does not
send have their defaults. Times are integers, milliseconds since the epoch. Unknown values are null
or absent.
"""

import re
import secrets
import time
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from types import MappingProxyType
from typing import Any, Final, Literal, cast

import orjson

from headrace.jobs.fingerprint import fingerprint_of
from headrace.jobs.state import WITH_FINGERPRINT, WITH_RESULT, Cause, JobState

PRIORITY_FIRST: Final = 0
PRIORITY_LAST: Final = 9
PRIORITY_DEFAULT: Final = 5
ATTEMPTS_MAX_DEFAULT: Final = 3
CRASHES_TOGETHER_MAX: Final = 2
"""Crashes of a job after which it runs alone."""
QUEUE_DEFAULT: Final = "default"
AFTER_MAX: Final = 64
"""The number of jobs that one job may come after."""

Kind = Literal["infer", "transform", "stream"]
KINDS: Final[tuple[Kind, ...]] = ("infer", "transform", "stream")
IfExists = Literal["fail", "replace", "version", "rename"]
"""The treatment of an output name that another job owns:

``fail``: the submission is refused.
``replace``: the new job takes the name over; the tenant of both jobs must be the same.
``version``: the new job gets a name with its id; the tenant of both jobs must be the same.
``rename``: as ``version``, for any tenant; only for outputs that the server's operator configured.
"""
IF_EXISTS: Final[tuple[IfExists, ...]] = ("fail", "replace", "version")
"""The values that clients may request."""

_JOB_ID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
_SPEC: Final = (
    "model", "kind", "queue", "input_uri", "content_type", "accept", "output_uri", "key", "priority",
    "attempts_max", "time_limit_s", "time_to_live_s", "deadline_s", "correlation_id", "tenant",
)  # fmt: skip
_LATER: Final = ("region", "submitted_by", "endpoint", "endpoint_version")
"""Fields that older servers do not send."""
_TIMES: Final = (
    "created_at_ms", "due_at_ms", "started_at_ms", "ended_at_ms", "expires_at_ms", "deadline_at_ms",
)  # fmt: skip

Document = dict[str, Any]


def wall_ms() -> int:
    """Return this host's time, in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def new_job_id(now_ms: int) -> str:
    """Return a UUID of version 7 (RFC 9562).

    Ids sort by their creation time in milliseconds and cannot be guessed.
    """
    value = (now_ms & (1 << 48) - 1) << 80 | secrets.randbits(80)
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def is_job_id(text: str) -> bool:
    """Return True if `new_job_id` could have created this id."""
    return _JOB_ID.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job as it is submitted. Payloads are objects in a store; the job holds their URIs.

    If `id` is "", the ledger assigns one. Times given by the client are delays, so that the clocks
    of two hosts are never compared. The ledger's times are milliseconds since the epoch.
    """

    model: str = ""
    """The model's name, optionally with ``@`` and a version. "" for kinds that name it in
    `options`.
    """
    kind: Kind = "infer"
    queue: str = QUEUE_DEFAULT
    id: str = ""
    input_uri: str = ""
    """The payload (`infer`), or the source (`transform`, `stream`)."""
    content_type: str = ""
    """The payload's media type; "" uses the URI's suffix."""
    accept: str = ""
    """The result's media type; "" uses the payload's."""
    output_uri: str = ""
    """The output: a prefix (`infer`: ``KEY.out`` is written below it) or a destination. "" uses the
    server's own store.
    """
    key: str = ""
    """The KEY in ``KEY.out`` and ``KEY.error``; "" uses the job's id."""
    if_exists: IfExists = "fail"
    output_name: str = ""
    """The name in ``NAME.out`` and ``NAME.error`` if it differs from the KEY's; the ledger assigns
    it.
    """
    options: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    """Options of the kind; JSON."""
    priority: int = PRIORITY_DEFAULT
    """0 is claimed first, 9 last; jobs of one priority by due time."""
    region: str = ""
    """The data's region, a label as in `headrace.storage.regions`. "" if it has none or it is
    unknown.
    """
    delay_ms: int = 0
    """Time until the job becomes due."""
    attempts_max: int = ATTEMPTS_MAX_DEFAULT
    time_limit_s: float | None = None
    """The time limit of one attempt; a longer attempt is stopped and fails."""
    time_to_live_s: float | None = None
    """Time after which the job expires if no attempt has begun."""
    deadline_s: float | None = None
    """Time after which the job expires if it has not ended, even while it runs."""
    idempotency_key: str = ""
    body_digest: str = ""
    """The digest that the idempotency key stands for: another digest under the same key is refused.
    """
    correlation_id: str = ""
    trace: str = ""
    """The ``traceparent`` of the submission's span, or the client's without a tracer; "" for none."""
    tags: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    notify: tuple[Mapping[str, Any], ...] = ()
    """The notification targets, as in `headrace.jobs.notify.subscription`; JSON."""
    tenant: str = ""
    """The job's tenant. Idempotency keys and quotas are per tenant."""
    submitted_by: str = ""
    """The name of the API key that submitted the job."""
    endpoint: str = ""
    """The endpoint that the job was submitted to, if any; its settings are in the other fields."""
    endpoint_version: int = 0
    after: tuple[str, ...] = ()
    """The ids of jobs of the same tenant, at most `AFTER_MAX`. The job is blocked until all of them have
    completed, and fails if one ends otherwise. `delay_ms` counts from then on.
    """
    keep_s: float | None = None
    """Seconds for which the job is kept after its end; None is the server's retention."""
    owned_input: bool = False
    """True if the payload was stored for this job alone and is deleted with it."""

    @property
    def publishes_result(self) -> bool:
        """True if headrace copies the result to `output_uri`; other kinds write there themselves."""
        return self.kind == "infer" and bool(self.output_uri)


@dataclass(frozen=True, slots=True)
class JobProgress:
    """The progress of an attempt: `done` of `total` (None: unknown) in `unit`, such as "records"."""

    done: int = 0
    total: int | None = None
    unit: str = ""
    note: str = ""
    bytes_across_regions: int = 0
    """Input bytes that this attempt read from another region than its own."""


@dataclass(frozen=True, slots=True)
class ResultRef:
    """The reference to a job's result.

    `published_uri` is the requested URI, once the result is there too. `digest` is then
    ``sha256:`` and the hexadecimal hash of its bytes.
    """

    uri: str
    size_bytes: int | None = None
    content_type: str = ""
    published_uri: str = ""
    digest: str = ""


@dataclass(frozen=True, slots=True)
class JobFailure:
    """The failure of an attempt or job, in words for the client that submitted the job."""

    cause: Cause
    message: str
    error: str = ""
    """The class name of the raised error."""
    uri: str = ""
    """The object with details, if one was written (``KEY.error``)."""
    times: int = 1
    """Failures of this cause in a row, with this one."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job as the ledger stores it."""

    id: str
    state: JobState
    spec: NewJob
    attempt: int = 0
    """Attempts begun and counted so far, including the current one."""
    lease: int = 0
    """The number of the last claim. It only grows; writes with an older number are refused."""
    crashes: int = 0
    """How often the worker, or the model's process, died while the job ran."""
    worker: str = ""
    worker_region: str = ""
    """The worker's declared region, or ""."""
    created_at_ms: int = 0
    due_at_ms: int = 0
    started_at_ms: int | None = None
    """The start of the current or last attempt."""
    ended_at_ms: int | None = None
    expires_at_ms: int | None = None
    """The time at which the job expires if no attempt has begun."""
    deadline_at_ms: int | None = None
    lease_until_ms: int | None = None
    cancel_requested: bool = False
    progress: JobProgress | None = None
    cursor: Mapping[str, Any] | None = None
    """The position at which the next attempt resumes, as its kind wrote it; JSON."""
    result: ResultRef | None = None
    failure: JobFailure | None = None
    """The failure of a failed job; of a pending or publishing one, that of the last attempt."""
    has_dependents: bool = field(default=False, compare=False)
    """True if another job was blocked until this one completes. The end of this job changes that one."""
    publish_tries: int = 0
    """How often maintenance tried to publish the job's end."""
    warnings: tuple[str, ...] = field(default=(), compare=False)
    """Reasons why the job may wait for long; only in the reply to its submission."""

    @property
    def needs_publication(self) -> bool:
        """True while a result is published, and for each end without one: its reason is, too."""
        if not self.spec.output_uri:
            return False
        return self.state is JobState.PUBLISHING or (self.state.ended and self.state not in WITH_RESULT)

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the failure of a failed job, also of a failed publication; else ""."""
        if self.failure is None or self.state not in WITH_FINGERPRINT:
            return ""
        failure = self.failure
        return fingerprint_of(self.spec.model, failure.cause.value, failure.error, failure.message)

    @property
    def across_regions(self) -> bool:
        """True if the last attempt ran in another region than the data's, as far as both are known."""
        return bool(self.spec.region and self.worker_region) and self.spec.region != self.worker_region

    @property
    def alone(self) -> bool:
        """True if the job crashed so many processes that no other job may run beside it."""
        return self.crashes >= CRASHES_TOGETHER_MAX


# Outcomes of an attempt: the worker settles them, the ledger derives the job's next state.


@dataclass(frozen=True, slots=True)
class Completed:
    """The attempt completed. Its result is durable."""

    result: ResultRef


@dataclass(frozen=True, slots=True)
class Failed:
    """The attempt failed. It is retried in `retry_ms`, or never if `retry_ms` is None.

    `crashed`: the model's process died while only this job used it; the job's crash count grows.
    `counted`: the attempt is used up; False for failures that the job did not cause, such as an
    outage. Without an attempt left, the job is not retried.
    """

    failure: JobFailure
    retry_ms: int | None = None
    crashed: bool = False
    counted: bool = True


@dataclass(frozen=True, slots=True)
class Released:
    """The job is returned: due in `delay_ms`, the attempt not counted, resumable at `cursor`."""

    cursor: Mapping[str, Any] | None = None
    delay_ms: int = 0


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The attempt was stopped because the job was cancelled."""


@dataclass(frozen=True, slots=True)
class Expired:
    """The attempt was stopped because the job's deadline had passed."""


Outcome = Completed | Failed | Released | Cancelled | Expired


@dataclass(frozen=True, slots=True)
class Settlement:
    """The outcome of the attempt under lease number `lease`."""

    job_id: str
    lease: int
    outcome: Outcome
    progress: JobProgress | None = None
    """The final progress; None keeps that of the last heartbeat."""


def job_document(job: Job, *, hide: str = "") -> Document:
    """Return a job as JSON. Its notification targets are left out because they contain secrets.

    Addresses below the prefix `hide`, the server's own store, are empty.
    """
    document = _document(job)
    places = (document, "input_uri"), (document["result"], "uri"), (document["failure"], "uri")
    for holder, name in places:
        if hide and holder is not None and holder[name].startswith(hide):
            holder[name] = ""
    return document


def _document(job: Job) -> Document:
    spec = job.spec
    return {
        "id": job.id,
        "state": job.state.value,
        **{name: getattr(spec, name) for name in _SPEC},
        **{name: getattr(spec, name) for name in _LATER},
        "options": dict(spec.options),
        "tags": dict(spec.tags),
        "after": list(spec.after),
        "attempt": job.attempt,
        "lease": job.lease,
        "crashes": job.crashes,
        "worker": job.worker,
        "worker_region": job.worker_region,
        **{name: getattr(job, name) for name in _TIMES},
        "cancel_requested": job.cancel_requested,
        "progress": None if job.progress is None else asdict(job.progress),
        "result": None if job.result is None else asdict(job.result),
        "failure": None if job.failure is None else asdict(job.failure),
        "fingerprint": job.fingerprint,
        "warnings": list(job.warnings),
    }


def read_job(document: Mapping[str, Any]) -> Job:
    """Return the job of a document. Raise KeyError, TypeError or ValueError for an invalid one."""
    spec = NewJob(
        **{name: document[name] for name in _SPEC},
        id=document["id"],
        **{name: document[name] for name in _LATER if name in document},
        options=document["options"],
        tags=document["tags"],
        after=tuple(document.get("after", ())),
    )
    return Job(
        id=document["id"],
        state=JobState(document["state"]),
        spec=spec,
        attempt=document["attempt"],
        lease=document["lease"],
        crashes=document["crashes"],
        worker=document["worker"],
        worker_region=document.get("worker_region", ""),
        **{name: document[name] for name in _TIMES},
        cancel_requested=document["cancel_requested"],
        progress=_maybe(document["progress"], _read_progress),
        result=_maybe(document["result"], _read_result),
        failure=_maybe(document["failure"], _read_failure),
        warnings=tuple(document.get("warnings", ())),
    )


def change_tag(job: Job) -> str:
    """Return a short tag of the followed parts of a job: equal tags mean that nothing changed."""
    message = "" if job.failure is None else job.failure.message
    parts = (job.lease, job.attempt, job.cancel_requested, job.due_at_ms, job.ended_at_ms, message)
    progress = None if job.progress is None else asdict(job.progress)
    return f"{job.state.value}.{_sum(parts)}.{_sum(progress)}"


def same_state(mark: str, other: str) -> bool:
    """Return True if two tags differ by progress alone."""
    return mark.rpartition(".")[0] == other.rpartition(".")[0]


def _sum(value: Any) -> str:
    return f"{zlib.crc32(orjson.dumps(value)):08x}"


def _read_progress(document: Mapping[str, Any]) -> JobProgress:
    return JobProgress(
        document["done"],
        document["total"],
        document["unit"],
        document["note"],
        document.get("bytes_across_regions", 0),
    )


def _read_result(document: Mapping[str, Any]) -> ResultRef:
    return ResultRef(**{f.name: document[f.name] for f in fields(ResultRef) if f.name in document})


def _read_failure(document: Mapping[str, Any]) -> JobFailure:
    values = (document[name] for name in ("message", "error", "uri"))
    return JobFailure(Cause(document["cause"]), *values, times=document.get("times", 1))


def _maybe(document: Any, read: Any) -> Any:
    return None if document is None else read(cast("Mapping[str, Any]", document))
