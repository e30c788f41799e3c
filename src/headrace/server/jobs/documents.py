"""The JSON documents and the query parameters of the job API, for OpenAPI and for conversion.

`headrace.jobs.submission` parses submissions, with stricter checks.
"""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from headrace.jobs.audit import AUDIT_PAGE_MAX
from headrace.jobs.batch import BATCH_JOBS_MAX
from headrace.jobs.bulk import BULK_JOBS_DEFAULT, BULK_JOBS_MAX
from headrace.jobs.history import HistoryEvent
from headrace.jobs.job import AFTER_MAX, ATTEMPTS_MAX_DEFAULT, PRIORITY_DEFAULT
from headrace.jobs.pools import DECISION_PAGE_MAX
from headrace.jobs.service import PAGE_MAX
from headrace.jobs.state import Cause, JobState
from headrace.jobs.submission import KEY_CHARS_MAX, URI_CHARS_MAX, SubmissionLimits
from headrace.jobs.worker_registry import WorkerState
from headrace.server.routes import QUEUE_NAME, Json

KindName = Literal["infer", "transform", "stream"]
Milliseconds = Annotated[int, Meta(description="Milliseconds since the epoch, on the clock of the database.")]
WAIT_S_MAX: Final = 60.0
Moment = Annotated[int, Meta(ge=0, le=2**53)]
Name = Annotated[str, Meta(pattern=QUEUE_NAME)]
Text = Annotated[str, Meta(min_length=1, max_length=255, pattern=r"^[\x21-\x7e]+$")]
PagePosition = Annotated[
    str,
    Meta(max_length=512, pattern=r"^([0-9]{1,15}/.+)?$", description="`next_after` of the previous page."),
]
LogPosition = Annotated[str, Meta(pattern=r"^[0-9]{0,18}$", description="`next_after` of the previous page.")]
"""A position in the audit log or in the log of decisions."""
MODEL_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}(@[A-Za-z0-9._-]{1,64})?$"
Media = Annotated[str, Meta(min_length=3, max_length=255, pattern=r"^[\x20-\x7e]+$")]
_LIMITS: Final = SubmissionLimits()
PLAIN_TEXT: Final = r"^[^\x00-\x1f\x7f]*$"
Uri = Annotated[str, Meta(min_length=1, max_length=URI_CHARS_MAX, pattern=PLAIN_TEXT)]
JobId = Annotated[str, Meta(pattern="^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$")]
Period = Annotated[float, Meta(gt=0, le=_LIMITS.seconds_max)]
Tags = Annotated[
    dict[Name, Annotated[str, Meta(max_length=_LIMITS.tag_chars_max, pattern=PLAIN_TEXT)]],
    Meta(max_length=_LIMITS.tags_max),
]
TagCondition = Annotated[str, Meta(extra_json_schema={"pattern": "^[^=\x00]+=[^\x00]*$"})]
"""A condition on a tag. The handler checks it, with a clearer message than that of the pattern."""
_ONE_INPUT: Final[Json] = {
    "oneOf": [{"required": ["input"]}, {"required": ["upload"]}, {"required": ["input_uri"]}],
    "dependentRequired": {"upload": ["content_type"]},
}


class SubmissionDocument(Struct, kw_only=True, forbid_unknown_fields=True):
    """A job as it is submitted. Exactly one of `input`, `upload` and `input_uri` names its input."""

    model: Annotated[str, Meta(pattern=MODEL_NAME)] = ""
    """The name of the model, optionally with @ and a version. Required for `infer` without an endpoint."""
    endpoint: Name | UnsetType = UNSET
    """The endpoint that the job is submitted to. Its settings replace fields that are left out."""
    kind: KindName = "infer"
    queue: Name = "default"
    input: Any = UNSET
    """The payload: any JSON, or a string with another `content_type`. headrace stores it for the job."""
    upload: Annotated[str, Meta(min_length=1)] | UnsetType = UNSET
    """The id of a finished upload (`POST /v1/uploads`), with its `content_type`. One upload makes one job."""
    input_uri: Uri | UnsetType = UNSET
    """The payload (`infer`) or the source (`transform`, `stream`), at an address that the client's
    key may read.
    """
    content_type: Media | UnsetType = UNSET
    accept: Media | UnsetType = UNSET
    output_uri: Uri | UnsetType = UNSET
    """The prefix under which the result is published as `KEY.out`."""
    key: Annotated[str, Meta(min_length=1, max_length=KEY_CHARS_MAX, pattern=PLAIN_TEXT)] | UnsetType = UNSET
    if_exists: Literal["fail", "replace", "version"] = "fail"
    """If another job of the tenant owns the name of the output: refuse the job, take the name over,
    or publish under a name with the job's id.
    """
    region: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")] | UnsetType = UNSET
    """The region of the data: its workers claim the job first. By default the server's rules decide."""
    options: dict[str, Any] = {}
    priority: Annotated[int, Meta(ge=0, le=9)] = PRIORITY_DEFAULT
    """0 is claimed first."""
    delay_s: Annotated[float, Meta(ge=0, le=_LIMITS.seconds_max)] = 0
    attempts_max: Annotated[int, Meta(ge=1, le=_LIMITS.attempts_max)] = ATTEMPTS_MAX_DEFAULT
    time_limit_s: Annotated[float, Meta(gt=0, le=_LIMITS.time_limit_s_max)] | UnsetType = UNSET
    time_to_live_s: Period | UnsetType = UNSET
    deadline_s: Period | UnsetType = UNSET
    after: Annotated[list[JobId], Meta(max_length=AFTER_MAX, extra_json_schema={"uniqueItems": True})] = []
    """Ids of jobs of the tenant. The job is `blocked` until all of them have completed, and fails if
    one ends otherwise. `delay_s` counts from then on.
    """
    tags: Tags = {}
    notify: Annotated[list[dict[str, Any]], Meta(max_length=_LIMITS.notify_max)] = []
    correlation_id: Text | UnsetType = UNSET


SUBMISSION: Final = Annotated[SubmissionDocument, Meta(extra_json_schema=_ONE_INPUT)]


class BatchJobDocument(SubmissionDocument, kw_only=True, forbid_unknown_fields=True):
    """A job of a batch."""

    idempotency_key: Annotated[str, Meta(pattern=r"^[!-~]{0,255}$")] | None = None
    """Repeated submissions with the same key and content make one job."""


class BatchDocument(Struct, kw_only=True, forbid_unknown_fields=True):
    """A batch of submissions."""

    jobs: Annotated[
        list[Annotated[BatchJobDocument, Meta(extra_json_schema=_ONE_INPUT)]],
        Meta(min_length=1, max_length=BATCH_JOBS_MAX),
    ]
    """Each job is checked on its own: an invalid one has its error at its place."""
    all_or_nothing: bool = False
    """Queue all jobs, or none if one of them is refused."""


class ProgressDocument(Struct, kw_only=True):
    """The progress of a running attempt."""

    done: int
    total: int | None
    unit: str
    note: str
    bytes_across_regions: int
    """Bytes of input that this attempt read from other regions."""


class ResultDocument(Struct, kw_only=True):
    """The location of a result."""

    uri: str
    """The address below the job's output; empty in headrace's own store."""
    size_bytes: int | None
    content_type: str
    published_uri: str
    """The address of the published object; empty without one."""
    digest: str
    """`sha256:` and the hash of the published object; empty without one."""


class PublishedCheckDocument(Struct, kw_only=True):
    """A comparison of a published object with the result of its job."""

    status: Literal["equal", "different", "missing"]
    uri: str
    digest: str
    """The digest of the result."""
    found_digest: str
    """The digest of the object; empty if it is missing."""
    found_job_id: str
    """The job that wrote the object, by its metadata; empty if unknown."""


class FailureDocument(Struct, kw_only=True):
    """The reason why a job, or its last attempt, failed."""

    cause: Cause
    message: str
    error: str
    uri: str
    times: int
    """Failures of this cause in a row, with this one."""


class JobDocument(Struct, kw_only=True):
    """A job in its current state."""

    id: str
    state: JobState
    model: str
    kind: KindName
    queue: str
    input_uri: str
    """Empty for a payload in headrace's own store."""
    content_type: str
    accept: str
    output_uri: str
    key: str
    priority: int
    attempts_max: int
    time_limit_s: float | None
    time_to_live_s: float | None
    deadline_s: float | None
    correlation_id: str
    tenant: str
    region: str
    """The region of the data; empty if unknown."""
    submitted_by: str
    """The name of the API key that submitted the job; empty without keys."""
    endpoint: str
    """The endpoint that the job was submitted to; empty without one."""
    endpoint_version: int
    options: dict[str, Any]
    tags: dict[str, str]
    after: list[str]
    """Ids of the jobs that this one comes after."""
    attempt: int
    lease: int
    crashes: int
    worker: str
    worker_region: str
    """The region of the worker; empty if unknown."""
    created_at_ms: Milliseconds
    due_at_ms: Milliseconds
    started_at_ms: Milliseconds | None
    ended_at_ms: Milliseconds | None
    expires_at_ms: Milliseconds | None
    deadline_at_ms: Milliseconds | None
    cancel_requested: bool
    progress: ProgressDocument | None
    result: ResultDocument | None
    failure: FailureDocument | None
    fingerprint: str
    """Equal for equal failures of a model; empty unless the job, or its publication, failed."""
    warnings: list[str]
    """Reasons why the job may wait for long. Only the response to a submission has any."""


class BatchResultDocument(Struct, kw_only=True):
    """The result of a job of a batch: the job, or the members of an error."""

    status: int
    """The status of the response to a submission of this job alone."""
    job: JobDocument | UnsetType = UNSET
    error: str | UnsetType = UNSET
    type: str | UnsetType = UNSET


class BatchReplyDocument(Struct, kw_only=True):
    """The results of a batch, in the order of its jobs."""

    results: list[BatchResultDocument]


class PageDocument(Struct, kw_only=True):
    """A page of jobs, newest first. Only the last page has the `next_after` ""; any page may be short."""

    jobs: list[JobDocument]
    next_after: str


class HistoryEntryDocument(Struct, kw_only=True):
    """One claim, failure, manual change or end of a job."""

    at_ms: Milliseconds
    event: HistoryEvent
    attempt: int
    lease: int
    worker: str
    cause: str
    message: str
    by: str


class HistoryDocument(Struct, kw_only=True):
    """The history of a job, oldest first."""

    history: list[HistoryEntryDocument]


class FailureGroupDocument(Struct, kw_only=True):
    """Failed jobs with equal failures."""

    fingerprint: str
    jobs: int
    first_at_ms: Milliseconds
    last_at_ms: Milliseconds
    job_id: str
    """The job of the group that was submitted last; the following members are its own."""
    queue: str
    model: str
    cause: str
    error: str
    message: str


class FailureGroupsDocument(Struct, kw_only=True):
    """Groups of failed jobs, the largest first."""

    failures: list[FailureGroupDocument]


class DeliveryDocument(Struct, kw_only=True):
    """The delivery of one notification to one receiver."""

    id: str
    receiver: str
    event_id: str
    state: Literal["waiting", "claimed", "delivered", "dead"]
    attempts: int
    due_at_ms: Milliseconds
    """The time of the next attempt of a waiting delivery."""
    why: str
    """The result of the last attempt; empty before the first."""
    job_id: str
    type: str
    at_ms: Milliseconds
    """The time of the event."""


class DeliveriesDocument(Struct, kw_only=True):
    """Deliveries of notifications."""

    deliveries: list[DeliveryDocument]


class ReceiverDocument(Struct, kw_only=True):
    """A receiver of notifications and its health."""

    receiver: str
    kind: Literal["webhook", "sns", "email"]
    address: str
    failures: int
    """Failed deliveries in a row."""
    failing_since_at_ms: int
    """The time of the first of them; 0 without any."""
    rests_until_at_ms: int
    disabled_why: str
    """The reason why nothing is delivered; empty for an enabled receiver."""


class ReceiversDocument(Struct, kw_only=True):
    """Receivers of notifications, by id."""

    receivers: list[ReceiverDocument]


class EndpointDocument(Struct, kw_only=True):
    """One version of an endpoint."""

    name: str
    version: int
    settings: dict[str, Any]
    """The settings as they are sent, without the secrets of webhooks. `notify` is empty for keys without
    `operate`.
    """
    created_at_ms: Milliseconds
    created_by: str
    """The name of the API key that wrote this version, or `settings file`."""
    deleted: bool
    """True for the version that ended the endpoint."""


class EndpointsDocument(Struct, kw_only=True):
    """Endpoints by name, or the versions of one endpoint, newest first."""

    endpoints: list[EndpointDocument]


class EndpointQuery(Struct, kw_only=True):
    """The query of an endpoint."""

    version: (
        Annotated[int, Meta(ge=1, le=2**53, description="Number of a version; by default the current one.")]
        | None
    ) = None


class ScheduleSettingsDocument(Struct, kw_only=True, forbid_unknown_fields=True):
    """The settings of a schedule."""

    cron: Annotated[str, Meta(max_length=200)]
    """Five fields: minute, hour, day of the month, month, day of the week."""
    time_zone: Annotated[str, Meta(max_length=100)] = "UTC"
    """The name of a time zone in the IANA database, such as Europe/Berlin."""
    overlap: Literal["allow", "skip"] = "allow"
    """With `skip` no job is submitted while the last one of the schedule has not ended."""
    job: dict[str, Any]
    """The body of `POST /v1/jobs`, without `upload`. `{time:%Y-%m-%d}` in `input_uri`, `output_uri`, `key`,
    `options` and `tags` is replaced by the time of the run, in the schedule's time zone.
    """


class ScheduleDocument(Struct, kw_only=True):
    """A schedule and its last run."""

    tenant: str
    name: str
    settings: dict[str, Any]
    """The settings as they are sent. A list leaves out `job`; `notify` of the job is left out for keys
    without `submit` and `operate`.
    """
    version: int
    changed_at_ms: Milliseconds
    changed_by: str
    """The name of the API key that wrote the settings. Jobs are submitted with its rights."""
    paused: bool
    next_at_ms: Milliseconds | None
    """The next time to submit a job; null while the schedule is paused."""
    next_times: list[str]
    """The next five times in the schedule's time zone (ISO 8601). A list has only the first."""
    last_at_ms: Milliseconds | None
    """The time of the last run, whether or not it made a job."""
    last_job_id: str
    last_error: str
    """The reason why the last run made no job; empty if it made one."""
    missed: int
    """Earlier times without a run that the last run stands for, counted up to 100."""


class SchedulesDocument(Struct, kw_only=True):
    """Schedules by tenant and name."""

    schedules: list[ScheduleDocument]


class ScheduleQuery(Struct, kw_only=True):
    """The query of schedules."""

    tenant: (
        Annotated[str, Meta(max_length=256, description="Tenant; for keys with `operate`, any.")] | None
    ) = None


class QueueDocument(Struct, kw_only=True):
    """A queue and its numbers of jobs: due (`queued`), due later, blocked, running."""

    queue: str
    paused: bool
    draining: bool
    pending_max: int | None
    queued: int
    queued_by_region: dict[str, int]
    """The queued jobs of each region, without jobs that have no region."""
    later: int
    blocked: int
    """Jobs that wait for those of their `after`."""
    running: int
    oldest_seconds: float


class QueuesDocument(Struct, kw_only=True):
    """All queues, sorted by name."""

    queues: list[QueueDocument]


class QueueChangeDocument(Struct, kw_only=True, forbid_unknown_fields=True):
    """A change of a queue."""

    pending_max: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None
    """The maximum number of waiting jobs of each tenant; null removes the limit."""


class ScaleDocument(Struct, kw_only=True):
    """The number of workers that a queue needs for its due and running jobs, the `backlog`."""

    queue: str
    queued: int
    running: int
    backlog: int
    slots_per_worker: int
    desired: int
    """`backlog` divided by `slots_per_worker`, rounded up. The limit is 1000."""
    oldest_seconds: float
    reason: str
    """The figures, and the limit if it applies, in words."""


class GpuDocument(Struct, kw_only=True):
    """The memory of a GPU, used by all processes together."""

    index: int
    name: str
    used_bytes: int
    total_bytes: int


class CrashDocument(Struct, kw_only=True):
    """The last death of a model's process in a worker."""

    model: str
    cause: str
    """`crash`, `oom`, `killed`, `timeout`, `exit` or `unrecoverable`; empty if unknown."""
    message: str
    """Empty for keys without `operate`."""
    at_ms: Annotated[int, Meta(description="Milliseconds since the epoch, on the clock of the worker.")]


class WorkerDocument(Struct, kw_only=True):
    """A worker: what it stated at its start, what its last heartbeat reported, and its jobs."""

    name: str
    state: WorkerState
    host: str
    pid: int
    version: str
    region: str
    queues: list[str]
    models: list[str]
    slots: int
    """The maximum number of concurrent jobs."""
    running: int
    job_ids: list[str]
    """Ids of running jobs, at most 100. Empty in lists, and for keys without `operate`."""
    ready: bool
    """False while a model of the worker cannot be called."""
    memory_bytes: int | None
    """The memory of the worker's process and of all processes below it; null if unknown."""
    gpus: list[GpuDocument]
    last_crash: CrashDocument | None
    draining: bool
    draining_by: str
    """The name of the API key that drained the worker. Empty for keys without `operate`."""
    lease_ms: int
    """The time without a heartbeat after which the worker is lost."""
    started_at_ms: Milliseconds
    seen_at_ms: Milliseconds
    stopped_at_ms: Milliseconds | None


class WorkersDocument(Struct, kw_only=True):
    """Workers, sorted by name."""

    workers: list[WorkerDocument]


class ScalingDecisionDocument(Struct, kw_only=True):
    """A decision about the number of workers of a pool."""

    number: int
    """Greater numbers are later decisions, of any pool."""
    at_ms: Milliseconds
    pool: str
    controller: str
    """The controller that decided."""
    workers: int
    """The number of workers that the pool had."""
    wanted: int
    """The number of workers that the pool is to have."""
    reason: str
    observed: dict[str, Any]
    """The figures behind the decision."""


class PoolDocument(Struct, kw_only=True):
    """A pool of workers with its last decision."""

    pool: str
    controller: str
    """The controller that held the lease of the pool last."""
    controlled: bool
    """True while this controller holds the lease."""
    lease_until_ms: Milliseconds
    decision: ScalingDecisionDocument | None
    """The last decision; null without one in the last 30 days."""


class PoolsDocument(Struct, kw_only=True):
    """Pools of workers, sorted by name."""

    pools: list[PoolDocument]


class PoolScaleDocument(Struct, kw_only=True):
    """The number of workers that a pool is to have, by the last decision of its controller."""

    pool: str
    wanted: int
    active: bool
    """True if the pool is to have workers."""
    reason: str
    at_ms: Milliseconds
    """The time of the decision. A decision that does not change is recorded once a day."""


class DecisionsQuery(Struct, kw_only=True):
    """The query of the decisions about a pool."""

    after: LogPosition = ""
    limit: Annotated[int, Meta(ge=1, le=DECISION_PAGE_MAX)] = 100


class DecisionPageDocument(Struct, kw_only=True):
    """A page of decisions, newest first. Any page may be short; only the last has the `next_after` ""."""

    decisions: list[ScalingDecisionDocument]
    next_after: str


class UploadDocument(Struct, kw_only=True):
    """A URL for a large payload.

    PUT the payload to `url` within `expires_in_s` seconds. A `url` without a host is relative to
    this API.
    """

    id: str
    method: Literal["PUT"]
    url: str
    expires_in_s: float


class UploadedDocument(Struct, kw_only=True):
    """A finished upload."""

    id: str
    size_bytes: int


class EventOutcomeDocument(Struct, kw_only=True):
    """The outcome of one object event."""

    uri: str
    job_id: Annotated[str, Meta(description="The new or earlier job of the event; empty if it makes none.")]
    created: bool
    reason: Annotated[str, Meta(description="The reason why the event makes no job.")]


class EventOutcomesDocument(Struct, kw_only=True):
    """The outcome of each event of a notification."""

    outcomes: list[EventOutcomeDocument]


class HealthDocument(Struct, kw_only=True):
    """The response of a probe."""

    status: Literal["ok"]


class LimitQuery(Struct, kw_only=True):
    """The query of a list without pages."""

    limit: Annotated[int, Meta(ge=1, le=500, description="Limit of the list.")] = 100


class WaitQuery(Struct, kw_only=True):
    """The query of a job."""

    wait: Annotated[
        float, Meta(ge=0, le=WAIT_S_MAX, description="Seconds to wait for the end of the job.")
    ] = 0


class ResultQuery(WaitQuery, kw_only=True):
    """The query of a result."""

    redirect: Annotated[
        bool, Meta(description="Redirect to the object store if it supports signed URLs.")
    ] = False


class JobConditions(Struct, kw_only=True):
    """Conditions on jobs; those that are left out match every job."""

    queue: str = ""
    state: list[JobState] = []
    model: str = ""
    kind: str = ""
    correlation_id: str = ""
    fingerprint: Annotated[str, Meta(description="Fingerprint of the failure.")] = ""
    tag: Annotated[list[TagCondition], Meta(description="NAME=VALUE; a job must have all given tags.")] = []
    tenant: (
        Annotated[str, Meta(description="Tenant of the jobs; only for keys that see all tenants.")] | None
    ) = None
    created_from_ms: Moment | None = None
    created_before_ms: Moment | None = None


class JobsQuery(JobConditions, kw_only=True):
    """The query of a list of jobs."""

    after: PagePosition = ""
    limit: Annotated[int, Meta(ge=1, le=PAGE_MAX)] = 100


class FilterDocument(JobConditions, kw_only=True, forbid_unknown_fields=True):
    """The conditions on the jobs of an action, as in the query of a list."""


class BulkDocument(Struct, kw_only=True, forbid_unknown_fields=True):
    """An action on all jobs that match a filter."""

    action: Literal["cancel", "retry", "requeue", "delete"]
    filter: FilterDocument = msgspec.field(default_factory=FilterDocument)
    all: Annotated[bool, Meta(description="Required with a filter without conditions.")] = False
    dry_run: Annotated[bool, Meta(description="Count the jobs and change nothing.")] = False
    limit: Annotated[int, Meta(ge=1, le=BULK_JOBS_MAX)] = BULK_JOBS_DEFAULT
    after: PagePosition = ""


class BulkReplyDocument(Struct, kw_only=True):
    """The numbers of jobs of an action. `next_after` is "" if no job is left."""

    action: Literal["cancel", "retry", "requeue", "delete"]
    dry_run: bool
    matched: int
    changed: int
    skipped: dict[str, int]
    """The jobs that matched and were not changed, by reason: `gone`, `state`, `requested` (the
    cancellation), `output_taken`, `prerequisite` (a job of its `after` did not complete).
    """
    next_after: str


class AuditQuery(Struct, kw_only=True):
    """The query of the audit log."""

    done_by: Annotated[str, Meta(max_length=255, description="Name of an API key.")] = ""
    action: Annotated[str, Meta(max_length=255, description="Action, such as `queue.change`.")] = ""
    after: LogPosition = ""
    limit: Annotated[int, Meta(ge=1, le=AUDIT_PAGE_MAX)] = 100


class AuditEntryDocument(Struct, kw_only=True):
    """One action."""

    number: int
    at_ms: Milliseconds
    by: str
    """The name of the API key; empty without keys."""
    tenant: str
    """The tenant of the key."""
    action: str
    subject: str
    """The name or the id of the changed thing."""
    details: dict[str, Any]
    jobs: int | None
    """The number of changed jobs."""


class AuditPageDocument(Struct, kw_only=True):
    """A page of the audit log, newest first. `next_after` is "" on the last page."""

    entries: list[AuditEntryDocument]
    next_after: str


class ScaleQuery(Struct, kw_only=True):
    """The query of the number of workers."""

    slots_per_worker: (
        Annotated[
            int,
            Meta(
                ge=1, le=10_000, description="Concurrent jobs of one worker; by default the server's setting."
            ),
        ]
        | None
    ) = None
