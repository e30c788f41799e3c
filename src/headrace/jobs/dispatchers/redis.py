"""Redis and Valkey as a dispatcher: a stream a queue, with one consumer group. The one door to redis.

A message is acknowledged by being taken (``NOACK``), and deleted at once, so the length of a stream is what nobody has
taken yet; it is bounded (``MAXLEN``), the oldest go first. All workers share one consumer's name, since nothing is ever
pending under it: otherwise each worker that ever ran would stay listed. After ``FLUSHALL``, or a restart without
persistence, streams and groups are made anew.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, cast

from headrace.core.errors import ConfigError, MissingExtraError
from headrace.jobs.dispatchers.link import Announcement, Link, Taken

try:
    import redis as _redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry
except ImportError as _error:
    raise MissingExtraError("redis", "a redis:// or valkey:// dispatcher") from _error

redis: Any = _redis  # its types are too loose to be of use

PREFIX: Final = "headrace:jobs"
MESSAGES_MAX: Final = 10_000
"""About how many messages a stream holds; the server trims by whole nodes of a hundred or so."""
TAKE_S_MAX: Final = 10.0
TIMEOUT_S: Final = 5.0
INTERRUPT_S: Final = 1.0
_GROUP, _CONSUMER = "workers", "worker"


class RedisBroker:
    """Makes links to one server.

    Args:
        connection: What `redis.Redis` takes to connect: host, port, db, username, password, and TLS.
        prefix: A queue's stream is ``PREFIX:QUEUE``.
        messages_max: About how many messages a stream may hold.
        timeout_s: How long the server may take to answer, and to be connected to.
    """

    queues_per_link = 64
    take_s_max = TAKE_S_MAX
    """See `Broker`."""

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
    def name(self) -> str:
        """See `Broker`."""
        return f"redis at {self._connection['host']}:{self._connection['port']}"

    def require_queue(self, queue: str) -> None:
        """See `Broker`."""
        if not queue:
            raise ConfigError("a queue needs a name")

    def connect(self, queues: Sequence[str]) -> Link:
        """See `Broker`."""
        # Whoever takes is silent for as long as it waits.
        wait_s = TAKE_S_MAX if queues else 0.0
        with _faults():
            client = self._client(self._timeout_s + wait_s)
        return _RedisLink(
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
            # Attempts are the dispatcher's business: it knows when to stop.
            retry=Retry(NoBackoff(), 0),
            single_connection_client=True,
            client_name="headrace",
        )


class _RedisLink:
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

    def send(self, announcements: Sequence[Announcement]) -> None:
        with _faults():
            pipeline = self._client.pipeline(transaction=False)
            for each in announcements:
                message = {"queue": each.queue, "job_id": each.job_id}
                pipeline.xadd(
                    self._stream_of(each.queue), message, maxlen=self._messages_max, approximate=True
                )
            pipeline.execute()

    def take(self, count: int, timeout_s: float) -> Taken:
        with _faults():
            found = self._read(count, timeout_s)
            if found is None:
                self._make_groups()
                found = self._read(count, timeout_s) or []
            if not found:
                return Taken()
            pipeline = self._client.pipeline(transaction=False)
            for stream, entries in found:
                pipeline.xdel(stream, *(number for number, _ in entries))
            pipeline.execute()
            return Taken(messages=sum(len(entries) for _, entries in found))

    def keep_alive(self) -> None:
        """The server asks nothing of those who are idle."""

    def interrupt(self) -> None:
        with suppress(redis.RedisError, OSError), self._second_client() as client:
            client.client_unblock(self._id)

    def close(self) -> None:
        with suppress(redis.RedisError, OSError):
            self._client.close()

    def _read(self, count: int, timeout_s: float) -> list[tuple[Any, list[tuple[Any, Any]]]] | None:
        """What each stream has; None when a group is gone, as after FLUSHALL or another's restart."""
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
            # A wait is ended with NOGROUP, or UNBLOCKED, when the stream is deleted meanwhile.
            if str(error).startswith(("NOGROUP", "UNBLOCKED")):
                return None
            raise
        # A mapping with the newer protocol, pairs with the older.
        pairs: Any = cast("Any", found).items() if isinstance(found, dict) else found or []
        return [(stream, _flat(entries)) for stream, entries in pairs]

    def _make_groups(self) -> None:
        """From the stream's beginning, so that what was announced before the first worker came is heard."""
        for stream in self._streams:
            try:
                self._client.xgroup_create(stream, _GROUP, id="0", mkstream=True)
            except redis.ResponseError as error:
                if not str(error).startswith("BUSYGROUP"):
                    raise


def _flat(entries: Any) -> list[tuple[Any, Any]]:
    """The entries of one stream; the newer protocol has them in a list of lists."""
    listed = cast("list[Any]", entries)
    nested = bool(listed) and isinstance(listed[0], list)
    return cast("list[Any]", listed[0]) if nested else listed


@contextmanager
def _faults() -> Generator[None]:
    try:
        yield
    except (redis.RedisError, OSError) as error:
        raise ConnectionError(f"{type(error).__name__}: {error}") from error
