"""The job ledger in PostgreSQL, for workers on many hosts. Adapter module of psycopg."""

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, TypeVar

import orjson
from typing_extensions import override

from headrace.core.errors import ConfigError, MissingExtraError
from headrace.jobs.ledger import Wakeup
from headrace.jobs.ledgers.database import CommitNotice, Engines, event, exc, sa
from headrace.jobs.ledgers.sql import SqlJobLedger

try:
    import psycopg
except ImportError as _error:
    raise MissingExtraError("postgres", "a job ledger in PostgreSQL") from _error

_T = TypeVar("_T")

POOL_SIZE: Final = 8
POOL_OVERFLOW: Final = 8
POOL_WAIT_S: Final = 15.0
CONNECT_S: Final = 5
STATEMENT_S: Final = 30
RESPONSE_S: Final = 40.0
"""The longest wait for a response. The server ends statements earlier, if it receives and runs them."""
LOCK_S: Final = 10
IDLE_IN_TRANSACTION_S: Final = 60
RECONNECT_S: Final = 0.5
"""Seconds before a listener or notifier connects again."""

_WORK: Final = "headrace_work"
_CHANGES: Final = "headrace_news"
_PAYLOAD_BYTES_MAX: Final = 7000
_ALL_QUEUES: Final = "*"
_LISTEN: Final = {_WORK: b"LISTEN headrace_work", _CHANGES: b"LISTEN headrace_news"}
_MIGRATION_LOCK: Final = 0x6865_6164_7261_6365
"""The advisory lock of migrations."""

_CONNECTION: Final = {
    "connect_timeout": CONNECT_S,
    "keepalives": 1,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
    "application_name": "headrace",
}

# Every query here finds its rows by an index, in their order. But the planner's statistics of a
# queue are always out of date: after seeing an empty queue, it would prefer to scan and sort the
# whole table, and keep a plan for a small table after it has grown. Commits survive a power cut,
# even if the server's default is off.
_SETTINGS: Final = f"""
SELECT set_config('statement_timeout', '{STATEMENT_S}s', false),
    set_config('lock_timeout', '{LOCK_S}s', false),
    set_config('idle_in_transaction_session_timeout', '{IDLE_IN_TRANSACTION_S}s', false),
    set_config('enable_seqscan', 'off', false), set_config('enable_bitmapscan', 'off', false),
    set_config('enable_sort', 'off', false), set_config('enable_incremental_sort', 'off', false),
    set_config('plan_cache_mode', 'force_custom_plan', false), set_config('jit', 'off', false),
    set_config('synchronous_commit',
        CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on'
            ELSE current_setting('synchronous_commit') END,
        false)
"""


class PostgresJobLedger(SqlJobLedger):
    """A job ledger in a PostgreSQL database; its tables are called ``headrace_...``.

    Other applications may share the database.

    Only the database's clock counts. Lost connections are reopened forever. An operation on a lost
    connection is repeated a few times within a second if that is safe, and raises
    `JobLedgerUnavailableError` after that.

    Args:
        url: A libpq URL, ``postgresql://user:password@host:port/database?sslmode=require``.
    """

    _advice = "is the server running, and may this user create tables?"

    def __init__(self, url: str) -> None:
        self._url = _parse(url)
        self._notifier = _CommitNotifier(self._listening)
        where = self._url.set(query={}).render_as_string(hide_password=True)
        super().__init__(self._engines, where=f"at {where}", on_commit=self._notifier.notify)

    @override
    def wakeup(self, queues: Sequence[str]) -> Wakeup:
        return PostgresWakeup(self._listening, _WORK, frozenset(queues))

    @override
    def watch(self) -> Wakeup:
        return PostgresWakeup(self._listening, _CHANGES, None)

    @override
    def _begin(self) -> None:
        super()._begin()
        self._notifier.start()

    @override
    def _end(self) -> None:
        self._notifier.stop()
        super()._end()

    @override
    def _run_exclusively(self, engine: sa.Engine, work: Callable[[sa.Connection], bool]) -> bool:
        with engine.begin() as connection:
            # A migration may take long, and so may the wait for it.
            raw: Any = connection.connection.dbapi_connection
            response_s, raw.response_s = raw.response_s, None
            connection.exec_driver_sql("SET LOCAL lock_timeout = 0")
            connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
            connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
            try:
                return work(connection)
            finally:
                raw.response_s = response_s

    def _engines(self) -> Engines:
        engine = sa.create_engine(
            self._url,
            creator=self._connect,
            isolation_level="READ COMMITTED",
            pool_size=POOL_SIZE,
            max_overflow=POOL_OVERFLOW,
            pool_timeout=POOL_WAIT_S,
            pool_use_lifo=True,
        )
        event.listen(engine, "connect", _set_up)
        return Engines(engine, engine)

    def _connect(self, *, autocommit: bool = False) -> "TimedConnection":
        dialect: Any = self._url.get_dialect()()
        options: dict[str, Any] = _CONNECTION | dialect.create_connect_args(self._url)[1]
        return TimedConnection.connect(**options, autocommit=autocommit)

    def _listening(self) -> "psycopg.Connection[Any]":
        """Return a connection outside the pool and without transactions."""
        return self._connect(autocommit=True)


def _parse(url: str) -> sa.URL:
    try:
        return sa.make_url(url).set(drivername="postgresql+psycopg")
    except (exc.ArgumentError, ValueError) as error:
        raise ConfigError(
            "not a URL of a PostgreSQL ledger: write postgresql://user:password@host/database"
        ) from error


def _set_up(connection: Any, _record: Any) -> None:
    autocommit, connection.autocommit = connection.autocommit, True
    connection.execute(_SETTINGS)
    connection.autocommit = autocommit


class TimedConnection(psycopg.Connection[Any]):
    """A connection that is closed if a response does not arrive within `response_s` seconds.

    The timeouts of the server do not help if the network acknowledges what it never delivers.
    """

    response_s: float | None = RESPONSE_S

    @override
    def wait(self, gen: "Generator[Any, Any, _T]", *args: Any, **options: Any) -> _T:
        if self.response_s is None:
            return super().wait(gen, *args, **options)
        return super().wait(self._limited(gen, self.response_s), *args, **options)

    def _limited(self, gen: "Generator[Any, Any, _T]", response_s: float) -> "Generator[Any, Any, _T]":
        until_s = time.monotonic() + response_s
        try:
            wanted = next(gen)
            while True:
                # psycopg sends a falsy value if nothing has happened for some time.
                happened = yield wanted
                if not happened and time.monotonic() > until_s:
                    self.pgconn.finish()
                    raise psycopg.OperationalError(f"the server did not respond within {response_s:g} s")
                wanted = gen.send(happened)
        except StopIteration as end:
            return end.value


class _CommitNotifier:
    """Notifies all processes of commits, on its own connection and thread.

    The transactions themselves do not notify: notifying transactions commit one after the other, so
    that no two share a write to the disk. Commits during one notification are reported together by
    the next. Waiters find lost notifications after their timeout.
    """

    def __init__(self, connect: "Callable[[], psycopg.Connection[Any]]") -> None:
        self._connect = connect
        self._changed = threading.Condition()
        self._queues: set[str] = set()
        self._any_change = False
        self._stopping = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="headrace-ledger-news", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Send what is pending if possible, and end the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()

    def notify(self, notice: CommitNotice) -> None:
        """Send a notification soon."""
        with self._changed:
            self._queues |= notice.queues
            self._any_change = self._any_change or notice.changed
            self._changed.notify()

    def _run(self) -> None:
        connection: psycopg.Connection[Any] | None = None
        while (messages := self._next()) is not None:
            try:
                if connection is None:
                    connection = self._connect()
                for channel, payload in messages:
                    connection.execute("SELECT pg_notify(%s, %s)", (channel, payload))
            except psycopg.Error:
                if connection is not None:
                    connection.close()
                    connection = None
                with self._changed:
                    self._changed.wait_for(lambda: self._stopping, RECONNECT_S)
        if connection is not None:
            connection.close()

    def _next(self) -> list[tuple[str, str]] | None:
        """Return channels and payloads; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._queues or self._any_change or self._stopping)
            messages = [(_WORK, _payload(self._queues))] if self._queues else []
            if self._any_change:
                messages.append((_CHANGES, ""))
            self._queues, self._any_change = set(), False
            return messages or None


def _payload(queues: set[str]) -> str:
    payload = orjson.dumps(sorted(queues))
    return payload.decode() if len(payload) <= _PAYLOAD_BYTES_MAX else _ALL_QUEUES


class PostgresWakeup(Wakeup):
    """A waiter on a listening connection. The first `wait` opens it; it is reopened when lost."""

    def __init__(
        self, connect: "Callable[[], psycopg.Connection[Any]]", channel: str, queues: frozenset[str] | None
    ) -> None:
        self._connect = connect
        self._channel = channel
        self._queues = queues
        self._waiting = threading.Lock()
        self._closed = False
        self._connection: psycopg.Connection[Any] | None = None
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)

    @override
    def wait(self, timeout_s: float) -> bool:
        until_s = time.monotonic() + timeout_s
        with self._waiting:
            while not self._closed:
                left_s = max(0.0, until_s - time.monotonic())
                if self._connection is None:
                    if self._listen():
                        return True  # changes may have been missed without a connection
                    received = self._received(min(RECONNECT_S, left_s))
                else:
                    received = self._received(left_s)
                if received:
                    return True
                if time.monotonic() >= until_s:
                    return False
            return False

    @override
    def wake(self) -> None:
        with contextlib.suppress(OSError):  # the pipe is full, or closed
            self._wake_writer.send(b"!")

    @override
    def close(self) -> None:
        self._closed = True
        self.wake()
        with self._waiting:
            self._disconnect()
            self._wake_reader.close()
            self._wake_writer.close()

    def _listen(self) -> bool:
        try:
            self._connection = self._connect()
            self._connection.execute(_LISTEN[self._channel])
        except psycopg.Error:
            self._disconnect()
            return False
        return True

    def _received(self, timeout_s: float) -> bool:
        connection = self._connection
        poll = select.poll()  # select does not support file numbers above 1024
        poll.register(self._wake_reader, select.POLLIN)
        if connection is not None:
            poll.register(connection.fileno(), select.POLLIN)
        ready = [file for file, _ in poll.poll(timeout_s * 1000)]
        if self._wake_reader.fileno() in ready:
            self._wake_reader.recv(4096)
            return True
        if not ready or connection is None:
            return False
        try:
            return self._read(connection)
        except psycopg.Error:
            self._disconnect()
            return False

    def _read(self, connection: "psycopg.Connection[Any]") -> bool:
        connection.pgconn.consume_input()
        received = False
        while (notification := connection.pgconn.notifies()) is not None:
            received = received or self._concerns(notification.extra.decode())
        return received

    def _concerns(self, payload: str) -> bool:
        if self._queues is None or payload == _ALL_QUEUES:
            return True
        return not self._queues.isdisjoint(orjson.loads(payload))

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
