"""What a job is, for whoever submits, works on, or looks at one. Values only; the ledger keeps them."""

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, Literal

from headrace.jobs.cause import Cause
from headrace.jobs.state import JobState

PRIORITY_FIRST: Final = 0
PRIORITY_LAST: Final = 9
PRIORITY_DEFAULT: Final = 5
ATTEMPTS_MAX_DEFAULT: Final = 3
CRASHES_TOGETHER_MAX: Final = 2
"""A job whose worker died so often under it is worked on by itself from then on."""
QUEUE_DEFAULT: Final = "default"

Kind = Literal["infer", "transform", "stream"]
KINDS: Final[tuple[Kind, ...]] = ("infer", "transform", "stream")

_JOB_ID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


def new_job_id(now_ms: int) -> str:
    """A UUID of version 7 (RFC 9562): ids sort by the millisecond in which they were made, and cannot be guessed."""
    value = (now_ms & (1 << 48) - 1) << 80 | secrets.randbits(80)
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def is_job_id(text: str) -> bool:
    """Whether `new_job_id` could have made it."""
    return _JOB_ID.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job as it is submitted. Payloads are not in it: they are objects, and it names them.

    The ledger gives it its id where `id` is "". Times are milliseconds since the epoch on the ledger's own clock;
    those that a submitter gives are delays, so that no two hosts' clocks are compared.
    """

    model: str = ""
    """The model's name; with ``@`` and a version where one is asked for. "" for what names its own, in `options`."""
    kind: Kind = "infer"
    queue: str = QUEUE_DEFAULT
    id: str = ""
    input_uri: str = ""
    """The payload (`infer`), or the source (`transform`, `stream`)."""
    content_type: str = ""
    """How to read the payload; "" goes by the URI's ending."""
    accept: str = ""
    """How to write the result; "" takes what fits the payload."""
    output_uri: str = ""
    """Where results go: a prefix (`infer`: ``KEY.out`` is put below it) or a destination. "" leaves it to the server."""
    key: str = ""
    """The KEY in ``KEY.out`` and ``KEY.error``; "" takes the job's id."""
    options: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    """What its kind takes beside all this; JSON."""
    priority: int = PRIORITY_DEFAULT
    """0 is taken first, 9 last; jobs of one priority by due time."""
    region: str = ""
    """Where its data lives: a label, see `headrace.storage.regions`. "" for what is nowhere, or for which nobody knows."""
    delay_ms: int = 0
    """How long from now it becomes due."""
    attempts_max: int = ATTEMPTS_MAX_DEFAULT
    time_limit_s: float | None = None
    """The longest that one attempt may take; then it is stopped, and counts as failed."""
    time_to_live_s: float | None = None
    """A job that no worker has begun after so long expires."""
    deadline_s: float | None = None
    """A job that has not ended after so long expires, also while it runs."""
    idempotency_key: str = ""
    body_digest: str = ""
    """What the key stands for: another digest under the same key is refused."""
    correlation_id: str = ""
    trace: str = ""
    """The submitter's ``traceparent``."""
    tags: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    notify: tuple[Mapping[str, Any], ...] = ()
    """Whom to tell; see `headrace.jobs.notifier`. JSON."""
    tenant: str = ""
    """Whose it is: idempotency keys and quotas are a tenant's own."""
    owned_input: bool = False
    """Whether the payload was stored for this job alone, so that it is removed with it."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a running attempt is: `done` of `total` (None where that is not known) in `unit`, such as "records"."""

    done: int = 0
    total: int | None = None
    unit: str = ""
    note: str = ""
    bytes_across_regions: int = 0
    """How many bytes of the input this attempt has read although they live in another region than it works in."""


@dataclass(frozen=True, slots=True)
class ResultRef:
    """Where the result is: the one truth about it. `published_uri` is where it was asked for, once it is there too."""

    uri: str
    size_bytes: int | None = None
    content_type: str = ""
    published_uri: str = ""


@dataclass(frozen=True, slots=True)
class JobFailure:
    """Why an attempt, or the job, failed, in words fit for whoever submitted it."""

    cause: Cause
    message: str
    error: str = ""
    """The class of what was raised, by its name."""
    uri: str = ""
    """The object that tells more, where one was written (``KEY.error``)."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job as the ledger has it."""

    id: str
    state: JobState
    spec: NewJob
    attempt: int = 0
    """Attempts begun and counted so far; the one under way is this one."""
    lease: int = 0
    """The number of its last claim. It only grows: whoever writes with an older one is refused."""
    crashes: int = 0
    """How often the worker, or the model's process, died under it."""
    worker: str = ""
    worker_region: str = ""
    """Where that worker is, as it declared; "" where it did not."""
    created_at_ms: int = 0
    due_at_ms: int = 0
    started_at_ms: int | None = None
    """When the attempt that runs, or ran last, was begun."""
    ended_at_ms: int | None = None
    expires_at_ms: int | None = None
    """When it expires if no worker has begun it."""
    deadline_at_ms: int | None = None
    lease_until_ms: int | None = None
    cancel_requested: bool = False
    progress: Progress | None = None
    cursor: Mapping[str, Any] | None = None
    """Where the next attempt goes on, as its kind wrote it; JSON."""
    result: ResultRef | None = None
    failure: JobFailure | None = None
    """Of a failed job, why; of a pending one, why the last attempt failed."""

    @property
    def wants_publishing(self) -> bool:
        """Whether its end is to be put where it was asked for, by somebody else than whoever did it."""
        if not self.spec.output_uri or not self.state.ended:
            return False
        return self.spec.kind == "infer" or self.state is not JobState.COMPLETED

    @property
    def across_regions(self) -> bool:
        """Whether its last attempt is, or was, made in another region than its data lives in, as far as both are known."""
        return bool(self.spec.region and self.worker_region) and self.spec.region != self.worker_region

    @property
    def alone(self) -> bool:
        """Whether it has cost so many processes that no other job may be worked on beside it."""
        return self.crashes >= CRASHES_TOGETHER_MAX


# What an attempt comes to. Values: the worker settles them, the ledger decides what they make of the job.


@dataclass(frozen=True, slots=True)
class Completed:
    """It is done. The result's object is there for good."""

    result: ResultRef


@dataclass(frozen=True, slots=True)
class Failed:
    """It failed; again in `retry_ms`, or for good where that is None.

    `crashed`: the model's process died of it, alone in its call, so that the count of crashes grows. `counted`: whether the
    attempt is used up; not where it was nobody's fault, such as an outage. Without an attempt left there is no retry.
    """

    failure: JobFailure
    retry_ms: int | None = None
    crashed: bool = False
    counted: bool = True


@dataclass(frozen=True, slots=True)
class Released:
    """Given back as it was: due again in `delay_ms`, the attempt not counted, going on at `cursor`."""

    cursor: Mapping[str, Any] | None = None
    delay_ms: int = 0


@dataclass(frozen=True, slots=True)
class Cancelled:
    """It was stopped because somebody had cancelled it."""


@dataclass(frozen=True, slots=True)
class Expired:
    """It was stopped because its deadline had passed."""


Outcome = Completed | Failed | Released | Cancelled | Expired


@dataclass(frozen=True, slots=True)
class Settlement:
    """What the attempt under lease number `lease` came to."""

    job_id: str
    lease: int
    outcome: Outcome
    progress: Progress | None = None
    """How far it came; None leaves what the last beat told."""


class HistoryEvent(StrEnum):
    """What a job's history tells, beside its state: all that went wrong, and all that was done by hand."""

    ATTEMPT_FAILED = "attempt_failed"
    LEASE_LOST = "lease_lost"
    RELEASED = "released"
    CANCEL_REQUESTED = "cancel_requested"
    REQUEUED = "requeued"


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One line of a job's history, oldest first."""

    at_ms: int
    event: HistoryEvent
    attempt: int
    lease: int
    worker: str = ""
    cause: str = ""
    message: str = ""
    by: str = ""
    """Who did it by hand."""
