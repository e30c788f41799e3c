"""RabbitMQ as a message broker: one durable quorum queue per job queue, publisher confirms.

Adapter module of pika.

The broker confirms sent messages; received messages are acknowledged as soon as they end a wait. A
consumer exists only during a wait; messages on their way to it return to the queue afterwards.
Queues are bounded (the oldest messages go first) and messages expire after an hour, because older
ones report nothing new. A queue that an operator declared differently is used as it is.
"""

import ssl
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, Protocol

from typing_extensions import override

from headrace.core.errors import ConfigError, MissingExtraError
from headrace.jobs.brokers.session import (
    Announcement,
    BrokerSession,
    MessageBroker,
    ReceivedMessages,
    connection_errors,
)

try:
    import pika as _pika
    from pika import exceptions as _exceptions
except ImportError as _error:
    raise MissingExtraError("rabbitmq", "an amqp:// wakeup broker") from _error

pika: Any = _pika  # its types are too loose
exceptions: Any = _exceptions

_faults = partial(connection_errors, exceptions.AMQPError)

PREFIX: Final = "headrace.jobs"
MESSAGES_MAX: Final = 10_000
MESSAGE_AGE_S: Final = 3600
DELIVERY_LIMIT: Final = 1_000_000
"""Deliveries after which the broker drops a message. Messages that are too late for a wait count;
their age ends them.
"""
TAKE_S_MAX: Final = 10.0
TIMEOUT_S: Final = 5.0
HEARTBEAT_S: Final = 30
_NAME_BYTES_MAX = 255
_PERSISTENT = 2
_PRECONDITION_FAILED = 406


class RabbitBroker(MessageBroker):
    """A factory of sessions with one RabbitMQ broker.

    Args:
        url: ``amqp://`` or ``amqps://``, with user, password and virtual host.
        cafile: The trusted authority for TLS, if not the system's.
        prefix: The prefix of queue names, as in ``PREFIX.QUEUE``.
        messages_max: The largest number of messages in a queue.
        timeout_s: The broker's time to connect, and to block when it runs out of memory or disk.

    Raises ConfigError for an invalid URL.
    """

    queues_per_session = 64
    take_s_max = TAKE_S_MAX

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
    @override
    def name(self) -> str:
        return f"rabbitmq at {self._parameters.host}:{self._parameters.port}"

    @override
    def require_queue(self, queue: str) -> None:
        if not queue:
            raise ConfigError("a queue needs a name")
        if len(self._queue(queue).encode()) > _NAME_BYTES_MAX:
            raise ConfigError(f"the name of queue {queue[:40]!r}… is too long for RabbitMQ; shorten it")

    @override
    def connect(self, queues: Sequence[str]) -> BrokerSession:
        return _RabbitSession(
            self._parameters, [self._queue(q) for q in queues], self._queue, self._messages_max
        )

    def _queue(self, queue: str) -> str:
        return f"{self._prefix}.{queue}"


class _QueueName(Protocol):
    def __call__(self, queue: str, /) -> str: ...


class _RabbitSession(BrokerSession):
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

    @override
    def send(self, announcements: Sequence[Announcement]) -> None:
        with _faults():
            for each in announcements:
                with self._guarded():
                    self._send(self._queue_of(each.queue), each)

    @override
    def take(self, count: int, timeout_s: float) -> ReceivedMessages:
        with _faults():
            return self._take(count, timeout_s)

    @override
    def keep_alive(self) -> None:
        with _faults():
            self._connection.process_data_events(0)

    @override
    def interrupt(self) -> None:
        # The library may raise here while the other thread closes its loop.
        with suppress(Exception):
            self._connection.add_callback_threadsafe(self._wake)

    @override
    def close(self) -> None:
        if self._connection is None:
            return
        # Defects of the library must not end the thread either.
        with suppress(Exception):
            if self._connection.is_open:
                with self._guarded():
                    self._connection.close()
        # A broken connection keeps its loop's own sockets otherwise. A second call does nothing.
        with suppress(Exception):
            self._connection._impl.ioloop.close()  # noqa: SLF001

    @contextmanager
    def _guarded(self) -> Generator[None]:
        """Terminate the connection if the broker does not respond in time.

        The library would wait forever.

        Heartbeats do not detect this: a queue that lost its node responds to nothing while the
        connection is alive.
        """
        # The library has no other way to end its calls.
        inner: Any = self._connection._impl  # noqa: SLF001
        late = exceptions.AMQPConnectionError(f"no response within {self._timeout_s} s")
        terminate: Any = inner._terminate_stream  # noqa: SLF001
        timer = inner.ioloop.call_later(self._timeout_s, lambda: terminate(late))
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
            # An operator's own declaration takes precedence.
            self._open_channel()
        self._declared.add(queue)

    def _send(self, queue: str, announcement: Announcement, *, again: bool = True) -> None:
        self._declare(queue)
        try:
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
        except exceptions.UnroutableError:
            if not again:
                raise
            # The queue was deleted meanwhile.
            self._declared.discard(queue)
            self._send(queue, announcement, again=False)

    def _take(self, count: int, timeout_s: float) -> ReceivedMessages:
        received: list[Any] = []

        def on_message(channel: Any, method: Any, _properties: Any, _body: bytes) -> None:
            if len(received) < count:
                received.append(method)
            else:
                channel.basic_nack(method.delivery_tag, requeue=True)

        self._cancelled = self._woken = False
        with self._guarded():
            self._channel.basic_qos(prefetch_count=count)
            tags = [self._channel.basic_consume(queue, on_message) for queue in self._queues]
        timer = self._connection.call_later(timeout_s, self._wake)
        while not (received or self._cancelled or self._woken):
            self._connection.process_data_events(timeout_s)
        if received:
            # Messages that the broker sent at once arrive before the response to this call. Nothing
            # is acknowledged yet, so no more follow.
            with self._guarded():
                self._channel.basic_qos(prefetch_count=count)
            self._connection.process_data_events(0)
        self._connection.remove_timeout(timer)
        with self._guarded():
            for tag in tags:
                self._channel.basic_cancel(tag)
        if self._cancelled:
            raise ConnectionError("a queue was deleted, or its node went away")
        if received:
            self._channel.basic_ack(received[-1].delivery_tag, multiple=True)
        return ReceivedMessages(
            messages=len(received), redelivered=sum(bool(method.redelivered) for method in received)
        )

    def _wake(self) -> None:
        self._woken = True

    def _on_cancel(self, _frame: Any) -> None:
        self._cancelled = True
