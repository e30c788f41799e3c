"""Adapter module of boto3 for jobs: object events from SQS, and notifications to SNS.

`aws_client` makes the clients of both; their errors are `AwsFault`.
"""

import base64
import logging
import math
import os
import random
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import orjson
from typing_extensions import override

from headrace.core.clock import Clock, RetryPolicy, SystemClock
from headrace.core.errors import ConfigError, HeadraceError, MissingExtraError
from headrace.core.predictor import Service
from headrace.jobs.notify import (
    CANCELLED,
    COMPLETED,
    EXPIRED,
    FAILED,
    PUBLISH_FAILED,
    Delivered,
    DeliveryResult,
    Notification,
    Notifier,
    Refused,
    RetryLater,
    SnsTarget,
    Target,
    iso_time,
)
from headrace.protocols.object_events import ObjectEvent, object_events

try:
    import boto3 as _boto3
    from botocore.config import Config as _Config
    from botocore.exceptions import BotoCoreError, ClientError
except ImportError as _error:
    raise MissingExtraError("aws", "Amazon SNS and SQS") from _error

boto3: Any = _boto3  # it carries no types
Config: Any = _Config

CONNECT_S: Final = 5.0
READ_S: Final = 10.0
_PASSING_STATUSES: Final = frozenset({408, 425, 429})
_SERVER_ERROR: Final = 500

POLL_S: Final = 5.0
"""Seconds of one long poll. It cannot be interrupted: stopping takes as long."""
RESPONSE_S: Final = 10.0
RETRY_POLICY: Final = RetryPolicy(retry_s=math.inf, first_delay_s=0.1, delay_max_s=5.0)
_MESSAGES_MAX = 10

HandleEvents = Callable[[Sequence[ObjectEvent]], None]

SNS_RESPONSE_BYTES_MAX: Final = 128 << 10
SUCCESS: Final = "success"
ERROR: Final = "error"
_TOPICS: Final = {COMPLETED: SUCCESS, FAILED: ERROR, EXPIRED: ERROR, CANCELLED: ERROR, PUBLISH_FAILED: ERROR}
_WRONG_REQUEST: Final = frozenset({"InvalidParameter", "ParameterValueInvalid", "ValidationException"})

ReadResponse = Callable[[str, int], bytes | None]
"""Returns the bytes of an object at a URI, or None if it has more than the given limit; raises
HeadraceError.
"""

_events_log = logging.getLogger("headrace.jobs.events")
_sns_log = logging.getLogger("headrace.jobs.notifiers.sns")


class AwsFault(Exception):  # noqa: N818 - internal: callers convert it
    """A failed AWS call.

    `code` is the service's or the SDK's; `transient` is True if a retry may succeed.
    """

    def __init__(self, code: str, why: str, *, transient: bool, throttled: bool = False) -> None:
        super().__init__(f"{code}: {why}")
        self.code = code
        self.transient = transient
        self.throttled = throttled


def aws_client(
    service: str, environ: Mapping[str, str], *, endpoint_url: str = "", read_s: float = READ_S
) -> Any:
    """Return a client of one service ("sns", "sqs"). It is thread-safe; close it with `close`.

    Region, keys and profile come from `environ` (``AWS_REGION``, ``AWS_ACCESS_KEY_ID``, …), else
    from the SDK's own search, such as an instance's role. The endpoint is `endpoint_url`,
    ``AWS_ENDPOINT_URL_<SERVICE>``, ``AWS_ENDPOINT_URL`` or Amazon's. A call is one attempt; the
    caller decides about retries. Raises AwsFault.
    """
    with aws_faults():
        session = boto3.session.Session(
            aws_access_key_id=environ.get("AWS_ACCESS_KEY_ID") or None,
            aws_secret_access_key=environ.get("AWS_SECRET_ACCESS_KEY") or None,
            aws_session_token=environ.get("AWS_SESSION_TOKEN") or None,
            region_name=environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or None,
            profile_name=environ.get("AWS_PROFILE") or None,
        )
        known = (f"AWS_ENDPOINT_URL_{service.upper()}", "AWS_ENDPOINT_URL")
        endpoint = endpoint_url or next((environ[name] for name in known if environ.get(name)), None)
        config = Config(connect_timeout=CONNECT_S, read_timeout=read_s, retries={"total_max_attempts": 1})
        return session.client(service, endpoint_url=endpoint, config=config)


@contextmanager
def aws_faults() -> Generator[None]:
    """Convert the SDK's errors to AwsFault, as a context manager around calls of a client."""
    try:
        yield
    except ClientError as error:
        response: Any = error.response
        status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        code, why = str(response["Error"].get("Code", "")), str(response["Error"].get("Message", ""))
        throttled = status in _PASSING_STATUSES or code.startswith(("Throttl", "TooMany", "RequestLimit"))
        raise AwsFault(
            code, why, transient=throttled or status >= _SERVER_ERROR, throttled=throttled
        ) from error
    except BotoCoreError as error:
        # None of these (no connection, credentials or region) means that the request was wrong.
        raise AwsFault(type(error).__name__, str(error), transient=True) from error


class SqsEventSource(Service):
    """A service with one thread that polls one SQS queue.

    `handle` receives the events of one notice, one call at a time, on that thread. It is not called
    for a notice that reports no new object. The message is deleted only after `handle` returned, so
    that each event is passed on at least once. If `handle` raises, or the message is no notice, the
    message stays and the reason is logged. The queue delivers it again after its visibility
    timeout, and moves it to its dead-letter queue according to its redrive policy. (A queue without
    such a policy delivers it until it is too old; the first poll logs that.)

    An outage of SQS is waited for, however long; its start and its end are logged.

    Args:
        queue_url: The queue's URL, as SQS gives it.
        handle: The callback. It should return well within the queue's visibility timeout, for ten
            notices.
        environ: Region, endpoint and credentials; None: this process's environment.
        clock: The clock of delays, except those of SQS.

    Raises ConfigError if these settings do not suffice for a client.
    """

    def __init__(
        self,
        queue_url: str,
        handle: HandleEvents,
        *,
        environ: Mapping[str, str] | None = None,
        clock: Clock | None = None,
    ) -> None:
        if not queue_url.startswith(("https://", "http://")):
            raise ConfigError(
                f"not a URL of an SQS queue: {queue_url!r}; write https://sqs.REGION.…/ACCOUNT/NAME"
            )
        try:
            self._client: Any = aws_client(
                "sqs", os.environ if environ is None else environ, read_s=POLL_S + RESPONSE_S
            )
        except (AwsFault, ValueError) as error:
            raise ConfigError(f"no SQS client can be created with these settings: {error}") from error
        self._queue_url = queue_url
        self._handle = handle
        self._clock = clock or SystemClock()
        self._life = threading.Lock()
        self._stop = threading.Event()
        self._drain = True
        self._thread: threading.Thread | None = None
        self._failures = 0
        self._redrive_checked = False
        self._random = random.Random()  # noqa: S311 - jitter, not a secret

    @override
    def start(self) -> None:
        """Start. Does not wait for SQS, and does not fail if SQS is unavailable."""
        with self._life:
            if self._thread is None:
                self._stop = threading.Event()
                self._thread = threading.Thread(
                    target=self._run, args=(self._stop,), name="headrace-events", daemon=True
                )
                self._thread.start()

    @override
    def stop(self, *, drain: bool = True) -> None:
        """Stop.

        With `drain`, handle all received notices; without, all but the current one are delivered
        again.
        """
        with self._life:
            thread, self._thread = self._thread, None
            if thread is None:
                return
            self._drain = drain
            self._stop.set()
            thread.join()

    def poll(self) -> int:
        """Receive once, waiting up to `POLL_S`. Return the number of handled and deleted messages.

        Raise AwsFault if SQS is unavailable.
        """
        with aws_faults():
            self._check_redrive_policy()
            reply = self._client.receive_message(
                QueueUrl=self._queue_url,
                MaxNumberOfMessages=_MESSAGES_MAX,
                WaitTimeSeconds=int(POLL_S),
                AttributeNames=["ApproximateReceiveCount"],
            )
        done = 0
        for message in reply.get("Messages", []):
            if self._stop.is_set() and not self._drain:
                break
            if self._handled(message):
                with aws_faults():
                    self._client.delete_message(
                        QueueUrl=self._queue_url, ReceiptHandle=message["ReceiptHandle"]
                    )
                done += 1
        return done

    def _run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                self.poll()
            except Exception as error:  # noqa: BLE001 - unforeseen errors must not end the thread
                self._failed(error, stop)
            else:
                self._works()

    def _handled(self, message: Any) -> bool:
        try:
            events = object_events(message["Body"])
            if events:
                self._handle(events)
        except HeadraceError as error:
            self._leave(message, error, None)
        except Exception as error:  # noqa: BLE001 - the callback's, which must not end the thread
            self._leave(message, error, error)
        else:
            return True
        return False

    def _leave(self, message: Any, why: Exception, trace: Exception | None) -> None:
        times = message.get("Attributes", {}).get("ApproximateReceiveCount", "?")
        _events_log.warning(
            "message %s of %s was not handled and stays in the queue, received %s times: %s",
            message.get("MessageId"),
            self._queue_url,
            times,
            why,
            exc_info=trace,
        )

    def _failed(self, error: Exception, stop: threading.Event) -> None:
        self._failures += 1
        if self._failures == 1:
            trace = None if isinstance(error, AwsFault) else error
            _events_log.warning(
                "%s is unavailable (%s); retrying forever", self._queue_url, error, exc_info=trace
            )
        delay_s = RETRY_POLICY.delay_s(self._failures, math.inf, self._random.random())
        assert delay_s is not None
        self._clock.sleep(delay_s, stop)

    def _works(self) -> None:
        if self._failures:
            _events_log.warning("%s is available again after %d failures", self._queue_url, self._failures)
            self._failures = 0

    def _check_redrive_policy(self) -> None:
        """Log once if the queue has no redrive policy; not if the policy may not be read."""
        if self._redrive_checked:
            return
        try:
            with aws_faults():
                reply = self._client.get_queue_attributes(
                    QueueUrl=self._queue_url, AttributeNames=["RedrivePolicy"]
                )
        except AwsFault as fault:
            if fault.transient:
                raise
            self._redrive_checked = True
            return
        self._redrive_checked = True
        if not reply.get("Attributes", {}).get("RedrivePolicy"):
            _events_log.warning(
                "%s has no redrive policy: an unhandled message is delivered again until it is too old",
                self._queue_url,
            )


class SnsNotifier(Notifier):
    """A notifier that publishes to SNS topics.

    Args:
        client: A client from `aws.aws_client("sns", …)`; owned by the caller.
        region: The region that messages name.
        read_response: Reads outputs of up to `SNS_RESPONSE_BYTES_MAX` for topics that include them;
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
        message = orjson.dumps(encode_sns_message(notification, self._region, response)).decode()
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
            return self._read_response(str(uri), SNS_RESPONSE_BYTES_MAX)
        except HeadraceError as error:
            # The message has the reference: a message without the bytes is better than none.
            _sns_log.warning(
                "%s: the response is left out of the SNS message: %s", notification.event_id, error
            )
            return None


def encode_sns_message(
    notification: Notification, region: str, response: bytes | None = None
) -> dict[str, Any]:
    """Return SageMaker's message about an ended job, as JSON values."""
    data = notification.data
    completed = notification.type == COMPLETED
    message: dict[str, Any] = {
        "awsRegion": region,
        "eventTime": iso_time(notification.at_ms),
        "receivedTime": iso_time(int(data.get("submitted_at_ms", notification.at_ms))),
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
    if response is not None and len(response) <= SNS_RESPONSE_BYTES_MAX:
        message["responseBody"] = {"encoding": "base64", "content": base64.b64encode(response).decode()}
    return message


def _ordering(topic: str, notification: Notification) -> dict[str, str]:
    """Return the arguments that a first-in-first-out topic needs."""
    if not topic.endswith(".fifo"):
        return {}
    return {"MessageGroupId": notification.event_id, "MessageDeduplicationId": notification.event_id}
