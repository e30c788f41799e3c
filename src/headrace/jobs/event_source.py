"""Object events from an SQS queue: receives notices, passes on events, deletes messages.

The callback decides what to do with an event; this module does not use the ledger.
"""

import logging
import math
import os
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from typing_extensions import override

from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import ConfigError, HeadraceError
from headrace.core.predictor import Service
from headrace.core.retry import RetryPolicy
from headrace.jobs.aws import AwsFault, aws_client, aws_faults
from headrace.protocols.object_events import ObjectEvent, object_events

POLL_S: Final = 5.0
"""Seconds of one long poll. It cannot be interrupted: stopping takes as long."""
RESPONSE_S: Final = 10.0
RETRY_POLICY: Final = RetryPolicy(retry_s=math.inf, first_delay_s=0.1, delay_max_s=5.0)
_MESSAGES_MAX = 10

_log = logging.getLogger("headrace.jobs.events")

HandleEvents = Callable[[Sequence[ObjectEvent]], None]


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
        _log.warning(
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
            _log.warning("%s is unavailable (%s); retrying forever", self._queue_url, error, exc_info=trace)
        delay_s = RETRY_POLICY.delay_s(self._failures, math.inf, self._random.random())
        assert delay_s is not None
        self._clock.sleep(delay_s, stop)

    def _works(self) -> None:
        if self._failures:
            _log.warning("%s is available again after %d failures", self._queue_url, self._failures)
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
            _log.warning(
                "%s has no redrive policy: an unhandled message is delivered again until it is too old",
                self._queue_url,
            )
