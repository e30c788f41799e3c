"""Amazon SQS as a dispatcher: a standard queue for each of ours, by long polls.

A message is deleted as soon as it is received. Queues that are not there are made, if we may. Each queue of a listener
costs a thread, since SQS is asked for one at a time; its long polls cannot be interrupted, so they are short, and to stop
takes as long as one of them.
"""

import os
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from headrace.core.errors import ConfigError
from headrace.jobs.aws import AwsFault, aws_client, aws_faults
from headrace.jobs.dispatchers.link import Announcement, Link, Taken

PREFIX: Final = "headrace-jobs-"
MESSAGE_AGE_S: Final = 3600
"""Of queues that are made here: a message that nobody has taken for so long tells nothing new."""
TAKE_S_MAX: Final = 5.0
ANSWER_S: Final = 10.0
"""How long SQS may take to answer, beside what it was asked to wait."""
_BATCH = 10
_MISSING = ("AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}")


class SqsBroker:
    """Makes links to SQS.

    Args:
        prefix: A queue is called ``PREFIXQUEUE``.
        environ: Region, endpoint and credentials, as `aws_client` has it; None: this process's.
        region: Goes before that of `environ`.

    Raises ConfigError when a client cannot be made of these.
    """

    queues_per_link = 1
    take_s_max = TAKE_S_MAX
    """See `Broker`."""

    def __init__(
        self, *, prefix: str = PREFIX, environ: Mapping[str, str] | None = None, region: str | None = None
    ) -> None:
        self._prefix = prefix
        known = dict(os.environ if environ is None else environ)
        self._environ = known | ({"AWS_REGION": region} if region else {})
        try:
            client = self._client()
        except (AwsFault, ValueError) as error:
            raise ConfigError(f"no client for SQS can be made of these settings: {error}") from error
        self._at = str(client.meta.endpoint_url)
        client.close()

    @property
    def name(self) -> str:
        """See `Broker`."""
        return f"sqs at {self._at}"

    def require_queue(self, queue: str) -> None:
        """See `Broker`."""
        if not queue or not _NAME.fullmatch(self._queue(queue)):
            raise ConfigError(
                f"SQS has no queue called {self._queue(queue)[:100]!r}: "
                "up to 80 letters, digits, '-' and '_' of ASCII; rename the queue"
            )

    def connect(self, queues: Sequence[str]) -> Link:
        """See `Broker`."""
        with _faults():
            client = self._client()
        return _SqsLink(client, self._prefix, self._queue(queues[0]) if queues else "")

    def _queue(self, queue: str) -> str:
        return f"{self._prefix}{queue}"

    def _client(self) -> Any:
        return aws_client("sqs", self._environ, read_s=TAKE_S_MAX + ANSWER_S)


class _SqsLink:
    def __init__(self, client: Any, prefix: str, queue: str) -> None:
        self._client = client
        self._prefix = prefix
        self._queue = queue
        self._urls: dict[str, str] = {}

    def send(self, announcements: Sequence[Announcement]) -> None:
        by_queue: dict[str, list[Announcement]] = {}
        for each in announcements:
            by_queue.setdefault(self._prefix + each.queue, []).append(each)
        with _faults():
            for queue, several in by_queue.items():
                for at in range(0, len(several), _BATCH):
                    self._send(queue, several[at : at + _BATCH])

    def take(self, count: int, timeout_s: float) -> Taken:
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
        again = sum(int(each["Attributes"]["ApproximateReceiveCount"]) > 1 for each in messages)
        return Taken(messages=len(messages), redelivered=again)

    def keep_alive(self) -> None:
        """Each call is its own."""

    def interrupt(self) -> None:
        """A long poll cannot be."""

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
