"""The API's JSON as pydantic models: what OpenAPI tells of it. What is sent is read by `headrace.jobs.intake`, which is exact."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from headrace.jobs.cause import Cause
from headrace.jobs.job import ATTEMPTS_MAX_DEFAULT, PRIORITY_DEFAULT, HistoryEvent
from headrace.jobs.state import JobState

Kind = Literal["infer", "transform", "stream"]
Milliseconds = Annotated[int, Field(description="Milliseconds since the epoch, by the database's clock.")]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
Text = Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[\x21-\x7e]+$")]
Media = Annotated[str, Field(min_length=3, max_length=255, pattern=r"^[\x20-\x7e]+$")]


class SubmissionModel(BaseModel):
    """A job as it is submitted. Exactly one of `input`, `upload` and `input_uri` says what it works on."""

    model_config = ConfigDict(extra="forbid")

    model: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}(@[A-Za-z0-9._-]{1,64})?$")] = ""
    """With @ and a version where one is meant. Needed for `infer`."""
    kind: Kind = "infer"
    queue: Name = "default"
    input: Any = None
    """The payload itself: any JSON; with another `content_type` a string. It is stored for the job."""
    upload: str | None = None
    """The id of an upload (`POST /v1/uploads`) that has come. It makes one job."""
    input_uri: str | None = None
    """The payload (`infer`) or the source (`transform`, `stream`), where the caller's key may read it."""
    content_type: Media | None = None
    accept: Media | None = None
    output_uri: str | None = None
    """Where the result is published: a prefix; `KEY.out` is put below it."""
    key: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    region: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")] | None = None
    """Where its data lives: workers of that region take it first. Else told by the server's rules, where it has some."""
    options: dict[str, Any] = {}
    priority: Annotated[int, Field(ge=0, le=9)] = PRIORITY_DEFAULT
    """0 is taken first."""
    delay_s: Annotated[float, Field(ge=0)] = 0
    attempts_max: Annotated[int, Field(ge=1)] = ATTEMPTS_MAX_DEFAULT
    time_limit_s: Annotated[float, Field(gt=0)] | None = None
    time_to_live_s: Annotated[float, Field(gt=0)] | None = None
    deadline_s: Annotated[float, Field(gt=0)] | None = None
    tags: dict[str, str] = {}
    notify: list[dict[str, Any]] = []
    correlation_id: Text | None = None


class ProgressModel(BaseModel):
    """How far a running attempt is."""

    done: int
    total: int | None
    unit: str
    note: str
    bytes_across_regions: int
    """Bytes of the input that this attempt read although they live in another region."""


class ResultModel(BaseModel):
    """Where the result is."""

    uri: str
    size_bytes: int | None
    content_type: str
    published_uri: str


class FailureModel(BaseModel):
    """Why a job, or its last attempt, failed."""

    cause: Cause
    message: str
    error: str
    uri: str


class JobModel(BaseModel):
    """A job as it is."""

    id: str
    state: JobState
    model: str
    kind: Kind
    queue: str
    input_uri: str
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
    """Where its data lives; empty where that is not known."""
    options: dict[str, Any]
    tags: dict[str, str]
    attempt: int
    lease: int
    crashes: int
    worker: str
    worker_region: str
    """Where that worker is; empty where it did not say."""
    created_at_ms: Milliseconds
    due_at_ms: Milliseconds
    started_at_ms: Milliseconds | None
    ended_at_ms: Milliseconds | None
    expires_at_ms: Milliseconds | None
    deadline_at_ms: Milliseconds | None
    cancel_requested: bool
    progress: ProgressModel | None
    result: ResultModel | None
    failure: FailureModel | None


class PageModel(BaseModel):
    """Jobs, newest first; `next_after` is "" on the last page."""

    jobs: list[JobModel]
    next_after: str


class HistoryEntryModel(BaseModel):
    """One thing that went wrong with a job, or was done to it by hand."""

    at_ms: Milliseconds
    event: HistoryEvent
    attempt: int
    lease: int
    worker: str
    cause: str
    message: str
    by: str


class HistoryModel(BaseModel):
    """A job's history, oldest first."""

    history: list[HistoryEntryModel]


class QueueModel(BaseModel):
    """A queue, and how many jobs are in it: due (`queued`), due later, running."""

    queue: str
    paused: bool
    draining: bool
    pending_max: int | None
    queued: int
    queued_by_region: dict[str, int]
    """Of these, how many each region has; those without one are left out."""
    later: int
    running: int
    oldest_seconds: float


class QueuesModel(BaseModel):
    """All queues, by name."""

    queues: list[QueueModel]


class QueueChangeModel(BaseModel):
    """What to change of a queue."""

    model_config = ConfigDict(extra="forbid")

    pending_max: Annotated[int, Field(ge=0, le=2**31 - 1, strict=True)] | None
    """How many jobs may wait in it; null for no bound."""


class ScaleModel(BaseModel):
    """How many workers a queue wants: `desired` is `backlog` (due and running) over the jobs that a worker runs at once."""

    queue: str
    queued: int
    running: int
    backlog: int
    slots_per_worker: int
    desired: int
    oldest_seconds: float


class UploadModel(BaseModel):
    """A place for a large payload: PUT it to `url` (relative to this API where it has no host) before `expires_in_s`."""

    id: str
    method: Literal["PUT"]
    url: str
    expires_in_s: float


class UploadedModel(BaseModel):
    """An upload that has come."""

    id: str
    size_bytes: int


class EventOutcomeModel(BaseModel):
    """What became of one object event."""

    uri: str
    job_id: str = Field(description="The job that it made, or had made before; empty where it makes none.")
    created: bool
    reason: str = Field(description="Why it makes none.")


class EventOutcomesModel(BaseModel):
    """What became of a notice, event by event."""

    outcomes: list[EventOutcomeModel]


class HealthModel(BaseModel):
    """A probe's answer."""

    status: Literal["ok"]


class ProblemModel(BaseModel):
    """An error. `type` is the kind of error, as headrace's own client raises it."""

    model_config = ConfigDict(extra="allow")

    error: str
    type: str = ""
    request_id: str
