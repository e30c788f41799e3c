"""Amazon SQS as a message broker: one standard queue per job queue, by long polls.

A message is deleted as soon as it is received. Missing queues are created, if permitted. Each queue
of a listener needs a thread, because SQS is polled for one queue at a time. Its long polls cannot
be interrupted; they are short, and stopping takes as long as one of them.
"""

import os
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from typing_extensions import override

from headrace.core.errors import ConfigError
from headrace.jobs.aws import AwsFault, aws_client, aws_faults
from headrace.jobs.brokers.session import Announcement, BrokerSession, MessageBroker, ReceivedMessages

PREFIX: Final = "headrace-jobs-"
MESSAGE_AGE_S: Final = 3600
"""The message retention of queues that are created here: older messages report nothing new."""
TAKE_S_MAX: Final = 5.0
RESPONSE_S: Final = 10.0
"""The time limit of SQS for a response, besides its requested wait."""
_BATCH = 10
_MISSING = ("AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}")


class SqsBroker(MessageBroker):
    """A factory of sessions with SQS.

    Args:
        prefix: The prefix of queue names, as in ``PREFIXQUEUE``.
        environ: Region, endpoint and credentials for `aws_client`; None: this process's
            environment.
        region: Overrides the region of `environ`.

    Raises ConfigError if no client can be created.
    """

    queues_per_session = 1
    take_s_max = TAKE_S_MAX

    def __init__(
        self, *, prefix: str = PREFIX, environ: Mapping[str, str] | None = None, region: str | None = None
    ) -> None:
        self._prefix = prefix
        known = dict(os.environ if environ is None else environ)
        self._environ = known | ({"AWS_REGION": region} if region else {})
        try:
            client = self._client()
        except (AwsFault, ValueError) as error:
            raise ConfigError(f"no SQS client can be created with these settings: {error}") from error
        self._at = str(client.meta.endpoint_url)
        client.close()

    @property
    @override
    def name(self) -> str:
        return f"sqs at {self._at}"

    @override
    def require_queue(self, queue: str) -> None:
        if not queue or not _NAME.fullmatch(self._queue(queue)):
            raise ConfigError(
                f"invalid SQS queue name {self._queue(queue)[:100]!r}: "
                "use up to 80 ASCII letters, digits, '-' and '_'"
            )

    @override
    def connect(self, queues: Sequence[str]) -> BrokerSession:
        with _faults():
            client = self._client()
        return _SqsSession(client, self._prefix, self._queue(queues[0]) if queues else "")

    def _queue(self, queue: str) -> str:
        return f"{self._prefix}{queue}"

    def _client(self) -> Any:
        return aws_client("sqs", self._environ, read_s=TAKE_S_MAX + RESPONSE_S)


class _SqsSession(BrokerSession):
    def __init__(self, client: Any, prefix: str, queue: str) -> None:
        self._client = client
        self._prefix = prefix
        self._queue = queue
        self._urls: dict[str, str] = {}

    @override
    def send(self, announcements: Sequence[Announcement]) -> None:
        by_queue: dict[str, list[Announcement]] = {}
        for each in announcements:
            by_queue.setdefault(self._prefix + each.queue, []).append(each)
        with _faults():
            for queue, several in by_queue.items():
                for at in range(0, len(several), _BATCH):
                    self._send(queue, several[at : at + _BATCH])

    @override
    def take(self, count: int, timeout_s: float) -> ReceivedMessages:
        with _faults():
            url = self._url(self._queue)
            reply = self._client.receive_message(
                QueueUrl=url,
                MaxNumberOfMessages=min(count, _BATCH),
                WaitTimeSeconds=max(1, int(timeout_s)),
                AttributeNames=["ApproximateReceiveCount"],
            )
            messages: list[Any] = reply.get("Messages", [])
            if messages:
                self._client.delete_message_batch(
                    QueueUrl=url,
                    Entries=[
                        {"Id": str(number), "ReceiptHandle": each["ReceiptHandle"]}
                        for number, each in enumerate(messages)
                    ],
                )
        redelivered = sum(int(each["Attributes"]["ApproximateReceiveCount"]) > 1 for each in messages)
        return ReceivedMessages(messages=len(messages), redelivered=redelivered)

    @override
    def keep_alive(self) -> None:
        """Do nothing: each call is a request of its own."""

    @override
    def interrupt(self) -> None:
        """Do nothing: a long poll cannot be interrupted."""

    @override
    def close(self) -> None:
        self._client.close()

    def _send(self, queue: str, announcements: Sequence[Announcement]) -> None:
        reply = self._client.send_message_batch(
            QueueUrl=self._url(queue),
            Entries=[
                {"Id": str(number), "MessageBody": each.encoded().decode()}
                for number, each in enumerate(announcements)
            ],
        )
        if failed := reply.get("Failed"):
            raise ConnectionError(
                f"{len(failed)} of {len(announcements)} messages were refused: {failed[0].get('Message')}"
            )

    def _url(self, queue: str) -> str:
        if queue not in self._urls:
            self._urls[queue] = self._find(queue)
        return self._urls[queue]

    def _find(self, queue: str) -> str:
        try:
            with aws_faults():
                return self._client.get_queue_url(QueueName=queue)["QueueUrl"]
        except AwsFault as fault:
            if fault.code not in _MISSING:
                raise
        attributes = {"MessageRetentionPeriod": str(MESSAGE_AGE_S)}
        return self._client.create_queue(QueueName=queue, Attributes=attributes)["QueueUrl"]


@contextmanager
def _faults() -> Generator[None]:
    try:
        with aws_faults():
            yield
    except (AwsFault, OSError) as error:
        raise ConnectionError(str(error)) from error
