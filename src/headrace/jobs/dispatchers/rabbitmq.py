"""RabbitMQ as a dispatcher: a durable quorum queue for each of ours, publisher confirms. The one door to pika.

Messages are confirmed to us by the broker, and acknowledged by us as soon as they end a wait; a consumer exists only while
somebody waits, and what was on its way to it goes back to the queue. Queues are bounded (the oldest messages go first) and
messages expire, since one that nobody has taken in an hour tells nothing new. A queue that an operator has declared in another
way is used as it is.
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
DELIVERY_LIMIT: Final = 1_000_000
"""How often a message is handed out before the broker drops it. What comes too late for a wait counts; age ends it."""
TAKE_S_MAX: Final = 10.0
TIMEOUT_S: Final = 5.0
HEARTBEAT_S: Final = 30
_NAME_BYTES_MAX = 255
_PERSISTENT = 2
_PRECONDITION_FAILED = 406


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

    queues_per_link = 64
    take_s_max = TAKE_S_MAX
    """See `Broker`."""

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
            try:
                context = ssl.create_default_context(cafile=cafile)
            except OSError as error:
                raise ConfigError(f"cafile {cafile}: cannot be read ({error})") from error
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
        self._timeout_s: float = parameters.socket_timeout
        self._queues = queues
        self._queue_of = queue_of
        self._messages_max = messages_max
        self._declared: set[str] = set()
        self._cancelled = False
        self._connection: Any = None
        with _faults():
            try:
                self._connection = pika.BlockingConnection(parameters)
                with self._guarded():
                    self._open_channel()
                    for queue in queues:
                        self._declare(queue)
            except BaseException:
                self.close()
                raise

    def send(self, announcements: Sequence[Announcement]) -> None:
        with _faults():
            for each in announcements:
                with self._guarded():
                    self._send(self._queue_of(each.queue), each)

    def take(self, count: int, timeout_s: float) -> Taken:
        with _faults():
            return self._take(count, timeout_s)

    def keep_alive(self) -> None:
        with _faults():
            self._connection.process_data_events(0)

    def interrupt(self) -> None:
        # Also what the library says of a loop that is being closed on the other thread.
        with suppress(Exception):
            self._connection.add_callback_threadsafe(self._wake)

    def close(self) -> None:
        if self._connection is None:
            return
        # Its defects must not end the thread either.
        with suppress(Exception):
            if self._connection.is_open:
                with self._guarded():
                    self._connection.close()
        # A connection that broke keeps its loop's own sockets otherwise. Twice does nothing.
        with suppress(Exception):
            self._connection._impl.ioloop.close()  # noqa: SLF001

    @contextmanager
    def _guarded(self) -> Generator[None]:
        """Breaks the connection when the broker does not answer in time: the library would wait as long as it lives.

        Heartbeats do not find this: a queue that lost its node answers nothing, while the connection is alive.
        """
        # There is no other way to end its calls.
        inner: Any = self._connection._impl  # noqa: SLF001
        late = exceptions.AMQPConnectionError(f"no answer in {self._timeout_s} s")
        timer = inner.ioloop.call_later(self._timeout_s, lambda: inner._terminate_stream(late))  # noqa: SLF001
        try:
            yield
        finally:
            inner.ioloop.remove_timeout(timer)

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

    def _send(self, queue: str, announcement: Announcement) -> None:
        self._declare(queue)
        try:
            self._publish(queue, announcement)
        except exceptions.UnroutableError:
            # Somebody has deleted the queue since.
            self._declared.discard(queue)
            self._declare(queue)
            self._publish(queue, announcement)

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
        came: list[Any] = []

        def on_message(channel: Any, method: Any, _properties: Any, _body: bytes) -> None:
            if len(came) < count:
                came.append(method)
            else:
                channel.basic_nack(method.delivery_tag, requeue=True)

        self._cancelled = self._woken = False
        with self._guarded():
            self._channel.basic_qos(prefetch_count=count)
            tags = [self._channel.basic_consume(queue, on_message) for queue in self._queues]
        timer = self._connection.call_later(timeout_s, self._wake)
        while not (came or self._cancelled or self._woken):
            self._connection.process_data_events(timeout_s)
        if came:
            # What the broker has sent with it is here before the answer to this. Nothing is acknowledged yet, so no more comes.
            with self._guarded():
                self._channel.basic_qos(prefetch_count=count)
            self._connection.process_data_events(0)
        self._connection.remove_timeout(timer)
        with self._guarded():
            for tag in tags:
                self._channel.basic_cancel(tag)
        if self._cancelled:
            raise ConnectionError("a queue was deleted, or its node went away")
        if came:
            self._channel.basic_ack(came[-1].delivery_tag, multiple=True)
        return Taken(messages=len(came), redelivered=sum(bool(method.redelivered) for method in came))

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
