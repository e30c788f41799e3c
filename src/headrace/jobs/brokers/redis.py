"""Redis and Valkey as message brokers: one stream per job queue, with one consumer group.

Adapter module of redis.

Messages are received without acknowledgement (``NOACK``) and deleted at once, so that a stream's
length is the number of messages not yet received. It is bounded (``MAXLEN``); the oldest go first.
All workers share one consumer name, because no message is ever pending under it; otherwise each
worker that ever ran would stay listed. After ``FLUSHALL``, or a restart without persistence,
streams and groups are created again.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, cast

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
    import redis as _redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry
except ImportError as _error:
    raise MissingExtraError("redis", "a redis:// or valkey:// wakeup broker") from _error

redis: Any = _redis  # its types are too loose

_faults = partial(connection_errors, redis.RedisError)

PREFIX: Final = "headrace:jobs"
MESSAGES_MAX: Final = 10_000
"""The approximate number of messages in a stream; the server trims whole nodes of about a hundred.
"""
TAKE_S_MAX: Final = 10.0
TIMEOUT_S: Final = 5.0
INTERRUPT_S: Final = 1.0
_GROUP, _CONSUMER = "workers", "worker"


class RedisBroker(MessageBroker):
    """A factory of sessions with one Redis or Valkey server.

    Args:
        connection: Arguments of `redis.Redis`: host, port, db, username, password, and TLS.
        prefix: The prefix of streams, as in ``PREFIX:QUEUE``.
        messages_max: The approximate number of messages that a stream may hold.
        timeout_s: The server's time to connect and to respond.
    """

    queues_per_session = 64
    take_s_max = TAKE_S_MAX

    def __init__(
        self,
        connection: Mapping[str, Any],
        *,
        prefix: str = PREFIX,
        messages_max: int = MESSAGES_MAX,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._connection = dict(connection)
        self._prefix = prefix
        self._messages_max = messages_max
        self._timeout_s = timeout_s

    @property
    @override
    def name(self) -> str:
        return f"redis at {self._connection['host']}:{self._connection['port']}"

    @override
    def require_queue(self, queue: str) -> None:
        if not queue:
            raise ConfigError("a queue needs a name")

    @override
    def connect(self, queues: Sequence[str]) -> BrokerSession:
        # A receiving connection is silent for as long as it waits.
        wait_s = TAKE_S_MAX if queues else 0.0
        with _faults():
            client = self._client(self._timeout_s + wait_s)
        return _RedisSession(
            client,
            lambda: self._client(INTERRUPT_S),
            [self._stream(queue) for queue in queues],
            self._stream,
            self._messages_max,
        )

    def _stream(self, queue: str) -> str:
        return f"{self._prefix}:{queue}"

    def _client(self, timeout_s: float) -> Any:
        return redis.Redis(
            **self._connection,
            socket_timeout=timeout_s,
            socket_connect_timeout=min(timeout_s, self._timeout_s),
            socket_keepalive=True,
            # The wakeup broker makes the retries: it knows when to stop.
            retry=Retry(NoBackoff(), 0),
            single_connection_client=True,
            client_name="headrace",
        )


class _RedisSession(BrokerSession):
    def __init__(
        self,
        client: Any,
        second_client: Callable[[], Any],
        streams: Sequence[str],
        stream_of: Callable[[str], str],
        messages_max: int,
    ) -> None:
        self._client = client
        self._second_client = second_client
        self._streams = dict.fromkeys(streams, ">")
        self._stream_of = stream_of
        self._messages_max = messages_max
        with _faults():
            try:
                self._id: int = client.client_id()
                self._make_groups()
            except BaseException:
                self.close()
                raise

    @override
    def send(self, announcements: Sequence[Announcement]) -> None:
        with _faults():
            pipeline = self._client.pipeline(transaction=False)
            for each in announcements:
                message = {"queue": each.queue, "job_id": each.job_id}
                pipeline.xadd(
                    self._stream_of(each.queue), message, maxlen=self._messages_max, approximate=True
                )
            pipeline.execute()

    @override
    def take(self, count: int, timeout_s: float) -> ReceivedMessages:
        with _faults():
            found = self._read(count, timeout_s)
            if found is None:
                self._make_groups()
                found = self._read(count, timeout_s) or []
            if not found:
                return ReceivedMessages()
            pipeline = self._client.pipeline(transaction=False)
            for stream, entries in found:
                pipeline.xdel(stream, *(number for number, _ in entries))
            pipeline.execute()
            return ReceivedMessages(messages=sum(len(entries) for _, entries in found))

    @override
    def keep_alive(self) -> None:
        """Do nothing: the server expects nothing of idle clients."""

    @override
    def interrupt(self) -> None:
        with suppress(redis.RedisError, OSError), self._second_client() as client:
            client.client_unblock(self._id)

    @override
    def close(self) -> None:
        with suppress(redis.RedisError, OSError):
            self._client.close()

    def _read(self, count: int, timeout_s: float) -> list[tuple[Any, list[tuple[Any, Any]]]] | None:
        """Return the entries of each stream; None if a group is missing, as after FLUSHALL."""
        try:
            found = self._client.xreadgroup(
                _GROUP,
                _CONSUMER,
                self._streams,
                count=count,
                block=max(1, int(timeout_s * 1000)),
                noack=True,
            )
        except redis.ResponseError as error:
            # A wait ends with NOGROUP, or UNBLOCKED, if the stream is deleted meanwhile.
            if str(error).startswith(("NOGROUP", "UNBLOCKED")):
                return None
            raise
        # The newer protocol returns a mapping, the older one pairs.
        pairs: Any = cast("Any", found).items() if isinstance(found, dict) else found or []
        return [(stream, _flat(entries)) for stream, entries in pairs]

    def _make_groups(self) -> None:
        """Create groups at the beginning of the streams, to receive older announcements too."""
        for stream in self._streams:
            try:
                self._client.xgroup_create(stream, _GROUP, id="0", mkstream=True)
            except redis.ResponseError as error:
                if not str(error).startswith("BUSYGROUP"):
                    raise


def _flat(entries: Any) -> list[tuple[Any, Any]]:
    """Return the entries of one stream; the newer protocol nests them in a list of lists."""
    listed = cast("list[Any]", entries)
    nested = bool(listed) and isinstance(listed[0], list)
    return cast("list[Any]", listed[0]) if nested else listed
