"""RabbitMQ as a dispatcher: a durable quorum queue for each of ours, publisher confirms. The one door to pika.

Messages are confirmed to us by the broker, and acknowledged by us the moment they arrive; a consumer exists only while
somebody waits. Queues are bounded (the oldest messages go first) and messages expire, since one that nobody has taken in
an hour tells nothing new. A queue that an operator has declared in another way is used as it is.
"""

import ssl
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, Protocol

from headrace.core.errors import ConfigError, MissingExtraError
from headrace.jobs.dispatchers.link import Announcement, Link, Taken

try:
    import pika as _pika
    from pika import exceptions as _exceptions
except ImportError as _error:
    raise MissingExtraError("rabbitmq", "an amqp:// dispatcher") from _error

pika: Any = _pika  # its types are too loose to be of use
exceptions: Any = _exceptions

PREFIX: Final = "headrace.jobs"
MESSAGES_MAX: Final = 10_000
MESSAGE_AGE_S: Final = 3600
DELIVERY_LIMIT: Final = 20
"""How often a message is handed out before the broker drops it; more than once only where a worker died in between."""
TAKE_S_MAX: Final = 10.0
TIMEOUT_S: Final = 5.0
HEARTBEAT_S: Final = 30
_NAME_BYTES_MAX = 255
_PERSISTENT = 2
_NOT_FOUND, _PRECONDITION_FAILED = 404, 406


class RabbitBroker:
    """Makes links to one broker.

    Args:
        url: ``amqp://`` or ``amqps://``, with user, password and virtual host.
        cafile: Whom to trust over TLS, if not the system's authorities.
        prefix: A queue is called ``PREFIX.QUEUE``.
        messages_max: How many messages a queue may hold.
        timeout_s: How long the broker may take to connect, and may block us when it runs out of memory or disk.

    Raises ConfigError when the URL is none.
    """

    def __init__(
        self,
        url: str,
        *,
        cafile: str | None = None,
        prefix: str = PREFIX,
        messages_max: int = MESSAGES_MAX,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        try:
            parameters: Any = pika.URLParameters(url)
        except (ValueError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"not an address of RabbitMQ (amqp://USER:PASSWORD@HOST/VHOST): {error}"
            ) from None
        if cafile is not None:
            context = ssl.create_default_context(cafile=cafile)
            parameters.ssl_options = pika.SSLOptions(context, parameters.host)
        parameters.heartbeat = HEARTBEAT_S
        parameters.socket_timeout = timeout_s
        parameters.stack_timeout = 2 * timeout_s
        parameters.blocked_connection_timeout = timeout_s
        parameters.connection_attempts = 1
        parameters.client_properties = {"connection_name": "headrace"}
        self._parameters = parameters
        self._prefix = prefix
        self._messages_max = messages_max

    @property
    def name(self) -> str:
        """See `Broker`."""
        return f"rabbitmq at {self._parameters.host}:{self._parameters.port}"

    @property
    def queues_per_link(self) -> int:
        """See `Broker`."""
        return 64

    @property
    def take_s_max(self) -> float:
        """See `Broker`."""
        return TAKE_S_MAX

    def require_queue(self, queue: str) -> None:
        """See `Broker`."""
        if not queue:
            raise ConfigError("a queue needs a name")
        if len(self._queue(queue).encode()) > _NAME_BYTES_MAX:
            raise ConfigError(f"the queue {queue[:40]!r}… has a longer name than RabbitMQ takes; shorten it")

    def connect(self, queues: Sequence[str]) -> Link:
        """See `Broker`."""
        return _RabbitLink(
            self._parameters, [self._queue(q) for q in queues], self._queue, self._messages_max
        )

    def _queue(self, queue: str) -> str:
        return f"{self._prefix}.{queue}"


class _QueueName(Protocol):
    def __call__(self, queue: str, /) -> str: ...


class _RabbitLink:
    def __init__(
        self, parameters: Any, queues: Sequence[str], queue_of: _QueueName, messages_max: int
    ) -> None:
        self._queues = queues
        self._queue_of = queue_of
        self._messages_max = messages_max
        self._declared: set[str] = set()
        self._cancelled = False
        self._connection: Any = None
        with _faults():
            try:
                self._connection = pika.BlockingConnection(parameters)
                self._open_channel()
                for queue in queues:
                    self._declare(queue)
            except BaseException:
                self.close()
                raise

    def send(self, announcements: Sequence[Announcement]) -> None:
        with _faults():
            for each in announcements:
                queue = self._queue_of(each.queue)
                self._declare(queue)
                try:
                    self._publish(queue, each)
                except exceptions.UnroutableError:
                    # Somebody has deleted the queue since.
                    self._declared.discard(queue)
                    self._declare(queue)
                    self._publish(queue, each)

    def take(self, count: int, timeout_s: float) -> Taken:
        with _faults():
            return self._take(count, timeout_s)

    def keep_alive(self) -> None:
        with _faults():
            self._connection.process_data_events(0)

    def interrupt(self) -> None:
        with suppress(exceptions.AMQPError, OSError):
            self._connection.add_callback_threadsafe(self._wake)

    def close(self) -> None:
        with suppress(exceptions.AMQPError, OSError):
            if self._connection is not None and self._connection.is_open:
                self._connection.close()

    def _open_channel(self) -> None:
        self._channel = self._connection.channel()
        self._channel.confirm_delivery()
        self._channel.add_on_cancel_callback(self._on_cancel)

    def _declare(self, queue: str) -> None:
        if queue in self._declared:
            return
        arguments = {
            "x-queue-type": "quorum",
            "x-delivery-limit": DELIVERY_LIMIT,
            "x-max-length": self._messages_max,
            "x-overflow": "drop-head",
        }
        try:
            self._channel.queue_declare(queue, durable=True, arguments=arguments)
        except exceptions.ChannelClosedByBroker as error:
            if error.reply_code != _PRECONDITION_FAILED:
                raise
            # An operator's own declaration: theirs counts.
            self._open_channel()
        self._declared.add(queue)

    def _publish(self, queue: str, announcement: Announcement) -> None:
        self._channel.basic_publish(
            "",
            queue,
            announcement.encoded(),
            pika.BasicProperties(
                content_type="application/json",
                delivery_mode=_PERSISTENT,
                expiration=str(MESSAGE_AGE_S * 1000),
            ),
            mandatory=True,
        )

    def _take(self, count: int, timeout_s: float) -> Taken:
        came: list[bool] = []

        def on_message(channel: Any, method: Any, _properties: Any, _body: bytes) -> None:
            if len(came) < count:
                channel.basic_ack(method.delivery_tag)
                came.append(bool(method.redelivered))
            else:
                channel.basic_nack(method.delivery_tag, requeue=True)

        self._cancelled = self._woken = False
        self._channel.basic_qos(prefetch_count=count)
        tags = [self._channel.basic_consume(queue, on_message) for queue in self._queues]
        timer = self._connection.call_later(timeout_s, self._wake)
        while not (came or self._cancelled or self._woken):
            self._connection.process_data_events(timeout_s)
        if came:
            # What has arrived with it.
            self._connection.process_data_events(0)
        self._connection.remove_timeout(timer)
        for tag in tags:
            self._channel.basic_cancel(tag)
        if self._cancelled:
            raise ConnectionError("a queue was deleted, or its node went away")
        return Taken(messages=len(came), redelivered=sum(came))

    def _wake(self) -> None:
        self._woken = True

    def _on_cancel(self, _frame: Any) -> None:
        self._cancelled = True


@contextmanager
def _faults() -> Generator[None]:
    try:
        yield
    except (exceptions.AMQPError, OSError) as error:
        # Its errors are often only a list of what was tried, and say nothing as text.
        said = str(error) or ", ".join(repr(each) for each in error.args)
        raise ConnectionError(f"{type(error).__name__}: {said}".rstrip(": ")) from error
