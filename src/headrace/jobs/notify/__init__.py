"""Notifications about jobs: events, targets, results of deliveries, and signatures of webhooks.

A notification holds references instead of payloads: the receiver fetches an output by its URI.
Notifications may arrive more than once and out of order. `Notification.event_id` is the same each
time and identifies repetitions.

Signatures are those of Standard Webhooks, version 1 (HMAC-SHA256). A secret is ``whsec_`` and 24 to
64 random bytes in base64. The signed content is the message id, the attempt's time and the exact
body, joined by dots.
"""

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import orjson
from typing_extensions import override

from headrace.core.errors import ConfigError, LimitError, UnauthenticatedError

NOTIFICATION_BYTES_MAX: Final = 20_000
DATA_BYTES_MAX: Final = 19_000
"""The rest of a notification is for its envelope."""
COMPLETED: Final = "job.completed"
FAILED: Final = "job.failed"
CANCELLED: Final = "job.cancelled"
EXPIRED: Final = "job.expired"
PUBLISH_FAILED: Final = "job.publish_failed"
PROGRESS: Final = "job.progress"

_EVENT_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")
_TYPE: Final = re.compile(r"[a-z0-9_]+(?:\.[a-z0-9_]+)*")
_TYPE_CHARS_MAX: Final = 64
_JOB_ID_CHARS_MAX: Final = 256

ENCRYPTED_PREFIX: Final = "encrypted:v1:"
"""The prefix of a secret as the ledger has it, encrypted by `headrace.jobs.encryption`."""
WHSEC_PREFIX: Final = "whsec_"
SECRET_BYTES: Final = 32
SECRET_BYTES_MIN: Final = 24
SECRET_BYTES_MAX: Final = 64
TOLERANCE_S: Final = 300
SIGNATURES_MAX: Final = 16
"""The number of signatures of a message that are checked."""

_VERSION: Final = "v1"
_TIMESTAMP: Final = re.compile(r"[0-9]{1,12}")


@dataclass(frozen=True, slots=True)
class Notification:
    """An event of a job.

    `event_id` holds no dot, because the signed content is separated by dots. `at_ms` is the time of
    the event since the epoch. `data` is a JSON object of references and facts. The notifiers know
    these optional members: ``input_uri``, ``output_uri``, ``failure_uri``, ``reason``,
    ``content_type`` (of the input), ``output_content_type``, ``model``, ``inference_id``,
    ``submitted_at_ms``. Other members are sent unchanged. `trace` is a ``traceparent`` for the
    receiver, which is no part of the body; "" for none.

    Raises ConfigError for an invalid id or type and for data that is not JSON, and LimitError for
    more than `DATA_BYTES_MAX` bytes of data.
    """

    event_id: str
    type: str
    job_id: str
    at_ms: int
    data: Mapping[str, Any] = field(default_factory=dict[str, Any])
    trace: str = ""

    def __post_init__(self) -> None:
        if not _EVENT_ID.fullmatch(self.event_id):
            raise ConfigError(f"event id {self.event_id!r}: must have 1 to 128 letters, digits, '-' and '_'")
        if not _TYPE.fullmatch(self.type) or len(self.type) > _TYPE_CHARS_MAX:
            raise ConfigError(
                f"event type {self.type!r}: must be words joined by dots, such as job.completed"
            )
        if not 0 < len(self.job_id) <= _JOB_ID_CHARS_MAX or not self.job_id.isprintable():
            raise ConfigError(
                f"job id {self.job_id!r}: must have 1 to {_JOB_ID_CHARS_MAX} printable characters"
            )
        size_bytes = len(self.data_json())
        if size_bytes > DATA_BYTES_MAX:
            raise LimitError(
                f"event {self.event_id} has {size_bytes} bytes, and a notification holds {DATA_BYTES_MAX}: "
                "refer to large data by its URI"
            )

    def data_json(self) -> bytes:
        """Return `data` and the job's id as JSON. Raise ConfigError if the data is not JSON."""
        try:
            return orjson.dumps({"job_id": self.job_id, **self.data})
        except TypeError as error:
            raise ConfigError(f"event {self.event_id}: its data is not JSON: {error}") from error


@dataclass(frozen=True, slots=True)
class Delivered:
    """The receiver accepted the notification. `how` is its response, for the record."""

    how: str


@dataclass(frozen=True, slots=True)
class RetryLater:
    """The delivery failed and may succeed later, after `after_s` at the earliest.

    `throttled` is True if the receiver is overloaded.
    """

    why: str
    after_s: float | None = None
    throttled: bool = False


@dataclass(frozen=True, slots=True)
class Disabled:
    """The receiver refuses all further notifications."""

    why: str


@dataclass(frozen=True, slots=True)
class Refused:
    """This notification cannot be delivered to this target.

    Retries are pointless; other notifications may succeed.
    """

    why: str


DeliveryResult = Delivered | RetryLater | Disabled | Refused


@dataclass(frozen=True, slots=True)
class WebhookTarget:
    """A URL that accepts POST requests.

    All `secrets` sign each request, the newest first; there are two while a secret is replaced. The
    ledger has them encrypted.
    `format` is ``standard``, ``cloudevents-structured`` or ``cloudevents-binary``.
    """

    receiver_id: str
    url: str
    secrets: tuple[str, ...] = field(default=(), repr=False)
    format: str = "standard"


@dataclass(frozen=True, slots=True)
class SnsTarget:
    """Amazon SNS topics by ARN; "" for none.

    `include_response` lists those of ``success`` and ``error`` whose messages include a small
    response.
    """

    receiver_id: str
    success_topic: str = ""
    error_topic: str = ""
    include_response: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class EmailTarget:
    """Plain e-mail addresses."""

    receiver_id: str
    to: tuple[str, ...]


Target = WebhookTarget | SnsTarget | EmailTarget
TARGET_KINDS: Final[Mapping[type[Target], str]] = {
    WebhookTarget: "webhook",
    SnsTarget: "sns",
    EmailTarget: "email",
}
"""The names of the kinds of targets."""


class Notifier(Protocol):
    """A sender of notifications of one or several target kinds.

    Thread-safe; one call is one bounded attempt.
    """

    def send(self, notification: Notification, target: Target) -> DeliveryResult:
        """Try to deliver once, and return the result.

        Failures are returned; only internal defects are raised.
        """
        ...


class Notifiers(Notifier):
    """A notifier that selects the notifier for the target's class, and refuses targets without one."""

    def __init__(self, by_kind: Mapping[type[Target], Notifier]) -> None:
        self._by_kind = dict(by_kind)

    @override
    def send(self, notification: Notification, target: Target) -> DeliveryResult:
        notifier = self._by_kind.get(type(target))
        if notifier is None:
            return Refused(f"{type(target).__name__}: notifications of this kind are not configured")
        return notifier.send(notification, target)


def iso_time(at_ms: int) -> str:
    """Return a time since the epoch as notifications show it: in UTC, with milliseconds."""
    at = datetime.fromtimestamp(at_ms // 1000, UTC).replace(microsecond=at_ms % 1000 * 1000)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def make_secret() -> str:
    """Return a new secret of `SECRET_BYTES` random bytes."""
    return WHSEC_PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def decode_secret(secret: str) -> bytes:
    """Return the bytes of a secret. Raise ConfigError, which does not quote the secret."""
    try:
        key = base64.b64decode(secret.removeprefix(WHSEC_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not secret.startswith(WHSEC_PREFIX) or not SECRET_BYTES_MIN <= len(key) <= SECRET_BYTES_MAX:
        raise ConfigError(
            f"a webhook secret must be {WHSEC_PREFIX} "
            f"and {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes in base64"
        )
    return key


def signed_headers(keys: Iterable[bytes], message_id: str, timestamp_s: int, body: bytes) -> dict[str, str]:
    """Return the three headers of a message, with one signature per key."""
    timestamp = str(timestamp_s)
    signatures = [f"{_VERSION},{_signature(key, message_id, timestamp, body)}" for key in keys]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": " ".join(signatures),
    }


def verify(
    keys: Iterable[bytes],
    headers: Mapping[str, str],
    body: bytes,
    *,
    now_s: float,
    tolerance_s: float = TOLERANCE_S,
) -> str:
    """Return the id of a message that one of `keys` signed within `tolerance_s` of now.

    For receivers.

    A repeated message verifies again within that time; the receiver remembers the ids. Raise
    UnauthenticatedError for a missing or malformed header, another time, and a wrong signature.
    """
    found = {name.lower(): value for name, value in headers.items()}
    message_id = found.get("webhook-id", "")
    timestamp = found.get("webhook-timestamp", "")
    claimed = found.get("webhook-signature", "").split(" ")[:SIGNATURES_MAX]
    if not message_id or not _TIMESTAMP.fullmatch(timestamp):
        raise UnauthenticatedError("webhook-id or webhook-timestamp is missing or malformed")
    if abs(now_s - int(timestamp)) > tolerance_s:
        raise UnauthenticatedError(
            f"the message was signed {now_s - int(timestamp):+.0f} s ago, and {tolerance_s:g} s are allowed: "
            "it is old, or a clock is wrong"
        )
    expected_signatures = [f"{_VERSION},{_signature(key, message_id, timestamp, body)}" for key in keys]
    # All are compared, each in constant time, so that the response time reveals nothing.
    fits = [
        hmac.compare_digest(expected.encode(), signature.encode("utf-8", "replace"))
        for expected in expected_signatures
        for signature in claimed
    ]
    if not any(fits):
        raise UnauthenticatedError("no signature of the message is valid")
    return message_id


def _signature(key: bytes, message_id: str, timestamp: str, body: bytes) -> str:
    content = b".".join((message_id.encode(), timestamp.encode(), body))
    return base64.b64encode(hmac.digest(key, content, hashlib.sha256)).decode()
