"""Notifications to Amazon SNS in the message format of SageMaker's asynchronous inference.

Consumers of SageMaker's messages can consume these. One topic is for successes and one for the
rest. Consumers recognise repetitions by ``inferenceId``. SageMaker does not document the location
of an included response; here it is ``responseBody``.
"""

import base64
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import orjson
from typing_extensions import override

from headrace.core.errors import HeadraceError
from headrace.jobs.aws import AwsFault, aws_faults
from headrace.jobs.notify import (
    CANCELLED,
    COMPLETED,
    EXPIRED,
    FAILED,
    Delivered,
    DeliveryResult,
    Notification,
    Notifier,
    Refused,
    RetryLater,
    SnsTarget,
    Target,
)

RESPONSE_BYTES_MAX: Final = 128 << 10
SUCCESS: Final = "success"
ERROR: Final = "error"
_TOPICS: Final = {COMPLETED: SUCCESS, FAILED: ERROR, EXPIRED: ERROR, CANCELLED: ERROR}
_WRONG_REQUEST: Final = frozenset({"InvalidParameter", "ParameterValueInvalid", "ValidationException"})

ReadResponse = Callable[[str, int], bytes | None]
"""Returns the bytes of an object at a URI, or None if it has more than the given limit; raises
HeadraceError.
"""

_log = logging.getLogger("headrace.jobs.notifiers.sns")


class SnsNotifier(Notifier):
    """A notifier that publishes to SNS topics.

    Args:
        client: A client from `aws.aws_client("sns", …)`; owned by the caller.
        region: The region that messages name.
        read_response: Reads outputs of up to `RESPONSE_BYTES_MAX` for topics that include them;
            None: left out.
    """

    def __init__(self, client: Any, *, region: str, read_response: ReadResponse | None = None) -> None:
        self._client = client
        self._region = region
        self._read_response = read_response

    @override
    def send(self, notification: Notification, target: Target) -> DeliveryResult:
        if not isinstance(target, SnsTarget):
            return Refused("not an SNS target")
        kind = _TOPICS.get(notification.type, "")
        topic = {SUCCESS: target.success_topic, ERROR: target.error_topic}.get(kind, "")
        if not topic:
            return Delivered(f"nothing to send: no topic is set for {notification.type}")
        response = self._response(notification, kind) if kind in target.include_response else None
        message = orjson.dumps(encode(notification, self._region, response)).decode()
        try:
            with aws_faults():
                reply = self._client.publish(
                    TopicArn=topic, Message=message, **_ordering(topic, notification)
                )
        except AwsFault as fault:
            if fault.code in _WRONG_REQUEST:
                return Refused(str(fault))
            return RetryLater(str(fault), throttled=fault.throttled)
        return Delivered(f"SNS message {reply['MessageId']}")

    def _response(self, notification: Notification, kind: str) -> bytes | None:
        uri = notification.data.get("output_uri" if kind == SUCCESS else "failure_uri")
        if not uri or self._read_response is None:
            return None
        try:
            return self._read_response(str(uri), RESPONSE_BYTES_MAX)
        except HeadraceError as error:
            # The message has the reference: a message without the bytes is better than none.
            _log.warning("%s: the response is left out of the SNS message: %s", notification.event_id, error)
            return None


def encode(notification: Notification, region: str, response: bytes | None = None) -> dict[str, Any]:
    """Return SageMaker's message about an ended job, as JSON values."""
    data = notification.data
    completed = notification.type == COMPLETED
    message: dict[str, Any] = {
        "awsRegion": region,
        "eventTime": _time(notification.at_ms),
        "receivedTime": _time(int(data.get("submitted_at_ms", notification.at_ms))),
        "invocationStatus": "Completed" if completed else "Failed",
        "requestParameters": {
            "contentType": data.get("content_type", ""),
            "endpointName": data.get("model", ""),
            "inputLocation": data.get("input_uri", ""),
        },
        "inferenceId": data.get("inference_id") or notification.job_id,
        "eventVersion": "1.0",
        "eventSource": "aws:sagemaker",
        "eventName": "InferenceResult",
    }
    if completed:
        message["responseParameters"] = {
            "contentType": data.get("output_content_type", ""),
            "outputLocation": data.get("output_uri", ""),
        }
    else:
        message["failureReason"] = str(data.get("reason") or notification.type)
    if response is not None and len(response) <= RESPONSE_BYTES_MAX:
        message["responseBody"] = {"encoding": "base64", "content": base64.b64encode(response).decode()}
    return message


def _ordering(topic: str, notification: Notification) -> dict[str, str]:
    """Return the arguments that a first-in-first-out topic needs."""
    if not topic.endswith(".fifo"):
        return {}
    return {"MessageGroupId": notification.event_id, "MessageDeduplicationId": notification.event_id}


def _time(at_ms: int) -> str:
    at = datetime.fromtimestamp(at_ms // 1000, UTC).replace(microsecond=at_ms % 1000 * 1000)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
