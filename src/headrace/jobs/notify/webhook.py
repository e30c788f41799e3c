"""Notifications as POST requests: Standard Webhooks or CloudEvents, with equal signatures."""

import logging
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

import orjson
from typing_extensions import override

from headrace.core.errors import ConfigError, RefusedAddressError
from headrace.core.retry import retry_after_s
from headrace.jobs.notify import (
    Delivered,
    DeliveryResult,
    Disabled,
    Notification,
    Notifier,
    Refused,
    RetryLater,
    Target,
    WebhookTarget,
)
from headrace.jobs.notify.signing import decode_secret, signed_headers
from headrace.jobs.outbound import OutboundFault, OutboundResponse
from headrace.jobs.outbound.client import OutboundClient

STANDARD: Final = "standard"
STRUCTURED: Final = "cloudevents-structured"
BINARY: Final = "cloudevents-binary"
FORMATS: Final = frozenset({STANDARD, STRUCTURED, BINARY})
KEYS_MAX: Final = 4
"""The number of secrets of a webhook. Replacing a secret needs two; each one lengthens the header.
"""

_THROTTLED: Final = frozenset({429, 502, 503, 504})
_SHOWN_BYTES_MAX: Final = 200
# CloudEvents: printable ASCII without the space, the double quote and the percent sign.
_HEADER_SAFE: Final = "".join(chr(c) for c in range(0x21, 0x7F) if chr(c) not in '"%')

_log = logging.getLogger("headrace.jobs.notifiers.webhook")


class WebhookNotifier(Notifier):
    """A notifier that posts through a guarded client, whose total timeout limits an attempt.

    A response of status 2xx means delivered, whatever its body. Everything else is retried, also
    redirects, which are not followed. 410 disables the endpoint.

    Args:
        client: The HTTP client; owned by the caller.
        source: The source of CloudEvents, a URI reference; (source, id) is unique.
        wall_s: Returns the signed time, in seconds since the epoch. Receivers refuse times that are
            minutes off: on hosts without synchronised clocks, pass the database's.
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

    @override
    def send(self, notification: Notification, target: Target) -> DeliveryResult:
        if not isinstance(target, WebhookTarget):
            return Refused("not a webhook")
        try:
            keys = _keys(target)
            body, headers = encode(notification, target.format, self._source)
        except ConfigError as error:
            return Refused(str(error))
        headers |= signed_headers(keys, notification.event_id, int(self._wall_s()), body) if keys else {}
        try:
            response = self._client.send("POST", target.url, headers=headers, body=body)
        except RefusedAddressError as error:
            return Refused(str(error))
        except OutboundFault as fault:
            return RetryLater(str(fault))
        if not _has_it(response):
            # Logged only: a response body may come from an internal server and is not for clients.
            shown = response.body[:_SHOWN_BYTES_MAX]
            _log.info("%s responded with HTTP %d: %r", target.endpoint_id, response.status, shown)
        return result_of_response(response, self._wall_s())


def encode(notification: Notification, format: str, source: str) -> tuple[bytes, dict[str, str]]:
    """Return a notification's body and format headers. Raise ConfigError for an unknown format."""
    if format == STANDARD:
        event = {
            "type": notification.type,
            "timestamp": _time(notification.at_ms),
            "data": orjson.Fragment(notification.data_json()),
        }
        return orjson.dumps(event), {"Content-Type": "application/json"}
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
    raise ConfigError(f"unknown webhook format {format!r}; known: {', '.join(sorted(FORMATS))}")


def result_of_response(response: OutboundResponse, wall_s: float) -> DeliveryResult:
    """Return the delivery result of a response; its body is ignored."""
    if _has_it(response):
        return Delivered(f"HTTP {response.status}")
    if response.status == HTTPStatus.GONE:
        return Disabled("HTTP 410: the receiver refuses further notifications")
    why = f"HTTP {response.status}"
    if HTTPStatus.MULTIPLE_CHOICES <= response.status < HTTPStatus.BAD_REQUEST:
        why += ": redirects are not followed; register the final address"
    return RetryLater(
        why, after_s=_after_s(response.headers, wall_s), throttled=response.status in _THROTTLED
    )


def _has_it(response: OutboundResponse) -> bool:
    return HTTPStatus.OK <= response.status < HTTPStatus.MULTIPLE_CHOICES


def _keys(target: WebhookTarget) -> list[bytes]:
    if not target.secrets and target.format == STANDARD:
        raise ConfigError("a standard webhook needs a secret for its signature")
    if len(target.secrets) > KEYS_MAX:
        raise ConfigError(f"the webhook has {len(target.secrets)} secrets; the limit is {KEYS_MAX}")
    return [decode_secret(secret) for secret in target.secrets]


def _after_s(headers: Mapping[str, str], wall_s: float) -> float | None:
    return retry_after_s(headers.get("retry-after"), wall_s)


def _time(at_ms: int) -> str:
    at = datetime.fromtimestamp(at_ms // 1000, UTC).replace(microsecond=at_ms % 1000 * 1000)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
