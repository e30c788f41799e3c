"""Notifications as POST requests: Standard Webhooks, or CloudEvents in either of its HTTP forms with the same signatures."""

import logging
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

import orjson

from headrace.core.errors import ConfigError, RefusedAddressError
from headrace.core.retry import retry_after_s
from headrace.jobs.notifier import (
    Answer,
    Delivered,
    Disabled,
    Notification,
    Refused,
    Retry,
    Target,
    WebhookTarget,
)
from headrace.jobs.outbound.client import OutboundAnswer, OutboundClient, OutboundFault
from headrace.jobs.secrets import key_of, signed_headers

STANDARD: Final = "standard"
STRUCTURED: Final = "cloudevents-structured"
BINARY: Final = "cloudevents-binary"
FORMATS: Final = frozenset({STANDARD, STRUCTURED, BINARY})
KEYS_MAX: Final = 4
"""More secrets than a change of them needs are a mistake, and every one makes the header longer."""

_THROTTLED: Final = frozenset({429, 502, 503, 504})
_SHOWN_BYTES_MAX: Final = 200
# Printable ASCII, without the space, the double quote and the percent sign: CloudEvents says so.
_HEADER_SAFE: Final = "".join(chr(c) for c in range(0x21, 0x7F) if chr(c) not in '"%')

_log = logging.getLogger("headrace.jobs.notifiers.webhook")


class WebhookNotifier:
    """Posts notifications through a guarded client, whose total timeout is an attempt's.

    A receiver says that it has a notification by a status of 2xx, whatever it sends then; everything else is tried again, redirects
    too, which are not followed. 410 disables the endpoint.

    Args:
        client: Who asks; stays the caller's to close.
        source: What a CloudEvent names as its source, a URI reference; (source, id) is unique.
        wall_s: The time that is signed, in seconds since the epoch. Receivers refuse what is minutes off: where hosts'
            clocks are not kept, hand it the database's.
    """

    def __init__(
        self,
        client: OutboundClient,
        *,
        source: str = "/headrace/jobs",
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._source = source
        self._wall_s = wall_s

    def send(self, notification: Notification, target: Target) -> Answer:
        """See `Notifier.send`."""
        if not isinstance(target, WebhookTarget):
            return Refused("not a webhook")
        try:
            keys = _keys(target)
            body, headers = encode(notification, target.format, self._source)
        except ConfigError as error:
            return Refused(str(error))
        headers |= signed_headers(keys, notification.event_id, int(self._wall_s()), body) if keys else {}
        try:
            answer = self._client.send("POST", target.url, headers=headers, body=body)
        except RefusedAddressError as error:
            return Refused(str(error))
        except OutboundFault as fault:
            return Retry(str(fault))
        if not _has_it(answer):
            # Only here: a receiver's words are not for whoever named it, since it may be one of ours.
            shown = answer.body[:_SHOWN_BYTES_MAX]
            _log.info("%s answered HTTP %d: %r", target.endpoint_id, answer.status, shown)
        return judge(answer, self._wall_s())


def encode(notification: Notification, format: str, source: str) -> tuple[bytes, dict[str, str]]:
    """A notification's body and the headers that belong to the format; ConfigError for an unknown format."""
    if format == STANDARD:
        told = {
            "type": notification.type,
            "timestamp": _time(notification.at_ms),
            "data": orjson.Fragment(notification.data_json()),
        }
        return orjson.dumps(told), {"Content-Type": "application/json"}
    attributes = {
        "specversion": "1.0",
        "id": notification.event_id,
        "source": source,
        "type": notification.type,
        "subject": notification.job_id,
        "time": _time(notification.at_ms),
    }
    if format == BINARY:
        headers = {f"ce-{name}": quote(value, safe=_HEADER_SAFE) for name, value in attributes.items()}
        return notification.data_json(), {"Content-Type": "application/json", **headers}
    if format == STRUCTURED:
        event: dict[str, Any] = {**attributes, "datacontenttype": "application/json"}
        event["data"] = orjson.Fragment(notification.data_json())
        return orjson.dumps(event), {"Content-Type": "application/cloudevents+json; charset=UTF-8"}
    raise ConfigError(f"{format!r} is no format of webhooks; known are {', '.join(sorted(FORMATS))}")


def judge(answer: OutboundAnswer, wall_s: float) -> Answer:
    """What an answer means; its body means nothing."""
    if _has_it(answer):
        return Delivered(f"HTTP {answer.status}")
    if answer.status == HTTPStatus.GONE:
        return Disabled("HTTP 410: the receiver wants no more notifications")
    why = f"HTTP {answer.status}"
    if HTTPStatus.MULTIPLE_CHOICES <= answer.status < HTTPStatus.BAD_REQUEST:
        why += ": redirects are not followed; name the address itself"
    return Retry(why, after_s=_after_s(answer.headers, wall_s), throttled=answer.status in _THROTTLED)


def _has_it(answer: OutboundAnswer) -> bool:
    return HTTPStatus.OK <= answer.status < HTTPStatus.MULTIPLE_CHOICES


def _keys(target: WebhookTarget) -> list[bytes]:
    if not target.secrets and target.format == STANDARD:
        raise ConfigError("a standard webhook is signed, and this one has no secret")
    if len(target.secrets) > KEYS_MAX:
        raise ConfigError(f"the webhook has {len(target.secrets)} secrets, and {KEYS_MAX} at most are taken")
    return [key_of(secret) for secret in target.secrets]


def _after_s(headers: Mapping[str, str], wall_s: float) -> float | None:
    return retry_after_s(headers.get("retry-after"), wall_s)


def _time(at_ms: int) -> str:
    at = datetime.fromtimestamp(at_ms // 1000, UTC).replace(microsecond=at_ms % 1000 * 1000)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
