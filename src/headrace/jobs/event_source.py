"""Object events from an SQS queue: receives notices, hands their events on, and deletes what was dealt with.

It knows no ledger: what becomes of an event is the callback's business.
"""

import logging
import math
import os
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import ConfigError, HeadraceError
from headrace.core.retry import RetryPolicy
from headrace.jobs.aws import AwsFault, aws_client, aws_faults
from headrace.protocols.object_events import ObjectEvent, object_events

POLL_S: Final = 5.0
"""One long poll. It cannot be interrupted: to stop takes as long."""
ANSWER_S: Final = 10.0
AGAIN: Final = RetryPolicy(retry_s=math.inf, first_delay_s=0.1, delay_max_s=5.0)
_MESSAGES_MAX = 10

_log = logging.getLogger("headrace.jobs.events")

HandleEvents = Callable[[Sequence[ObjectEvent]], None]


class SqsEventSource:
    """A `Service` with one thread, which polls one queue.

    `handle` is called with the events of one notice, one call at a time, on that thread; not for a notice that creates
    nothing. When it returns, the message is deleted, and only then: so each event is handed on at least once, and again
    when something dies in between. When it raises, or the message is no notice, the message is left alone and the reason
    is logged: the queue hands it out again after its visibility timeout, and moves it to its dead-letter queue when its
    redrive policy says so. (A queue without one hands it out until it is too old; that is logged at the first poll.)

    An outage of SQS is waited for, however long; it is logged when it begins and when it ends.

    Args:
        queue_url: The queue's URL, as SQS gives it.
        handle: See above. It should return well within the queue's visibility timeout, for ten notices.
        environ: Region, endpoint and credentials; None: this process's.
        clock: What waits here are measured on, besides those of SQS.

    Raises ConfigError when no client can be made of these settings.
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
                f"{queue_url!r} is no URL of an SQS queue; write https://sqs.REGION.…/ACCOUNT/NAME"
            )
        try:
            self._client: Any = aws_client(
                "sqs", os.environ if environ is None else environ, read_s=POLL_S + ANSWER_S
            )
        except (AwsFault, ValueError) as error:
            raise ConfigError(f"no client for SQS can be made of these settings: {error}") from error
        self._queue_url = queue_url
        self._handle = handle
        self._clock = clock or SystemClock()
        self._life = threading.Lock()
        self._stop = threading.Event()
        self._drain = True
        self._thread: threading.Thread | None = None
        self._failures = 0
        self._looked_for_redrive = False
        self._random = random.Random()  # noqa: S311 - jitter, not a secret

    def start(self) -> None:
        """See `Service`. Does not wait for SQS, and does not fail for its absence."""
        with self._life:
            if self._thread is None:
                self._stop = threading.Event()
                self._thread = threading.Thread(
                    target=self._run, args=(self._stop,), name="headrace-events", daemon=True
                )
                self._thread.start()

    def stop(self, *, drain: bool = True) -> None:
        """See `Service`. With `drain` what was received is handed on; without, all but the present notice comes again."""
        with self._life:
            thread, self._thread = self._thread, None
            if thread is None:
                return
            self._drain = drain
            self._stop.set()
            thread.join()

    def poll(self) -> int:
        """Receive once, waiting up to `POLL_S`, and deal with what came; how many messages were dealt with and deleted.

        Raises AwsFault when SQS cannot be asked.
        """
        with aws_faults():
            self._look_for_redrive()
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
            if self._dealt_with(message):
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
            except Exception as error:  # noqa: BLE001 - also what nobody foresaw must not end the thread
                self._failed(error, stop)
            else:
                self._works()

    def _dealt_with(self, message: Any) -> bool:
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
            "message %s of %s is left to the queue's redrive policy, received %s times: %s",
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
            _log.warning(
                "%s cannot be asked (%s); trying again for ever", self._queue_url, error, exc_info=trace
            )
        delay_s = AGAIN.delay_s(self._failures, math.inf, self._random.random())
        assert delay_s is not None
        self._clock.sleep(delay_s, stop)

    def _works(self) -> None:
        if self._failures:
            _log.warning("%s answers again after %d failures", self._queue_url, self._failures)
            self._failures = 0

    def _look_for_redrive(self) -> None:
        """Once; who may not ask is not told."""
        if self._looked_for_redrive:
            return
        try:
            with aws_faults():
                reply = self._client.get_queue_attributes(
                    QueueUrl=self._queue_url, AttributeNames=["RedrivePolicy"]
                )
        except AwsFault as fault:
            if fault.passes:
                raise
            self._looked_for_redrive = True
            return
        self._looked_for_redrive = True
        if not reply.get("Attributes", {}).get("RedrivePolicy"):
            _log.warning(
                "%s has no redrive policy: a message that cannot be dealt with comes again until it is too old",
                self._queue_url,
            )
