"""Telling somebody what became of a job: the contract of everything that notifies, in values.

A notification refers to things and never carries them: whoever wants an output fetches it by its address. It may arrive more
than once, and out of order; `Notification.event_id` is the same each time, and that is what to tell repeats by.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import orjson

from headrace.core.errors import ConfigError, LimitError

NOTIFICATION_BYTES_MAX: Final = 20_000
DATA_BYTES_MAX: Final = 19_000
"""The rest of a notification is for what stands around its data."""
COMPLETED: Final = "job.completed"
FAILED: Final = "job.failed"
CANCELLED: Final = "job.cancelled"
EXPIRED: Final = "job.expired"
PROGRESS: Final = "job.progress"

_EVENT_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")
_TYPE: Final = re.compile(r"[a-z0-9_]+(?:\.[a-z0-9_]+)*")
_TYPE_CHARS_MAX: Final = 64
_JOB_ID_CHARS_MAX: Final = 256


@dataclass(frozen=True, slots=True)
class Notification:
    """An event of a job.

    `event_id` holds no dot, since what is signed is parted by dots. `at_ms` is when it happened, since the epoch.
    `data` is JSON of references and facts. What the notifiers know of it (all of it may be absent): ``input_uri``,
    ``output_uri``, ``failure_uri``, ``reason``, ``content_type`` (of the input), ``output_content_type``, ``model``,
    ``inference_id``, ``submitted_at_ms``; everything else goes along as it is.

    Raises ConfigError for an id or type that could not be sent and for data that is not JSON, and LimitError for more
    than `DATA_BYTES_MAX` bytes of it.
    """

    event_id: str
    type: str
    job_id: str
    at_ms: int
    data: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        if not _EVENT_ID.fullmatch(self.event_id):
            raise ConfigError(f"event id {self.event_id!r}: 1 to 128 letters, digits, '-' and '_' are taken")
        if not _TYPE.fullmatch(self.type) or len(self.type) > _TYPE_CHARS_MAX:
            raise ConfigError(
                f"event type {self.type!r}: write words with dots between, such as job.completed"
            )
        if not 0 < len(self.job_id) <= _JOB_ID_CHARS_MAX or not self.job_id.isprintable():
            raise ConfigError(
                f"job id {self.job_id!r}: 1 to {_JOB_ID_CHARS_MAX} printable characters are taken"
            )
        size_bytes = len(self.data_json())
        if size_bytes > DATA_BYTES_MAX:
            raise LimitError(
                f"event {self.event_id} carries {size_bytes} bytes, and at most {DATA_BYTES_MAX} may go into a "
                "notification: refer to what is large by its address"
            )

    def data_json(self) -> bytes:
        """`data` with the job's id, as JSON; ConfigError when it is not JSON."""
        try:
            return orjson.dumps({"job_id": self.job_id, **self.data})
        except TypeError as error:
            raise ConfigError(f"event {self.event_id}: its data is not JSON: {error}") from error


@dataclass(frozen=True, slots=True)
class Delivered:
    """The other side has it. `how` is what it answered, for the record."""

    how: str


@dataclass(frozen=True, slots=True)
class Retry:
    """Not delivered, and it may work later, `after_s` at the earliest. `throttled`: the other side has too much to do."""

    why: str
    after_s: float | None = None
    throttled: bool = False


@dataclass(frozen=True, slots=True)
class Disabled:
    """The other side wants no more of these, ever."""

    why: str


@dataclass(frozen=True, slots=True)
class Refused:
    """This notification cannot be delivered to this target, however often it is tried; others may be."""

    why: str


Answer = Delivered | Retry | Disabled | Refused


@dataclass(frozen=True, slots=True)
class WebhookTarget:
    """An address that takes POST requests.

    `secrets` sign each of them, the newest first: while a secret is changed there are two. `format` is one of ``standard``,
    ``cloudevents-structured`` and ``cloudevents-binary``.
    """

    endpoint_id: str
    url: str
    secrets: tuple[str, ...] = field(default=(), repr=False)
    format: str = "standard"


@dataclass(frozen=True, slots=True)
class SnsTarget:
    """Topics of Amazon SNS by ARN; "" for none.

    `include_response` names those, of ``success`` and ``error``, whose messages carry the response when it is small.
    """

    endpoint_id: str
    success_topic: str = ""
    error_topic: str = ""
    include_response: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class EmailTarget:
    """Mailboxes, plain addresses only."""

    endpoint_id: str
    to: tuple[str, ...]


Target = WebhookTarget | SnsTarget | EmailTarget


class Notifier(Protocol):
    """Delivers notifications of one kind or of several. Safe from any thread; one call is one attempt, bounded in time."""

    def send(self, notification: Notification, target: Target) -> Answer:
        """Try once. What goes wrong is a value: nothing is raised but for defects of ours."""
        ...


class Notifiers:
    """Sends each notification by the notifier of its target's kind; a kind without one is refused."""

    def __init__(self, by_kind: Mapping[type[Target], Notifier]) -> None:
        self._by_kind = dict(by_kind)

    def send(self, notification: Notification, target: Target) -> Answer:
        """See `Notifier.send`."""
        notifier = self._by_kind.get(type(target))
        if notifier is None:
            return Refused(f"{type(target).__name__}: notifications of this kind are not set up here")
        return notifier.send(notification, target)
