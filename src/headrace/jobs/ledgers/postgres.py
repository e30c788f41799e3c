"""The job ledger in PostgreSQL, for workers on many hosts. Adapter module of psycopg."""

import contextlib
import logging
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
from headrace.jobs.ledgers.queue_notifier import QueueNotifier
from headrace.jobs.ledgers.sql import SqlJobLedger

try:
    import psycopg
except ImportError as _error:
    raise MissingExtraError("postgres", "a job ledger in PostgreSQL") from _error

_T = TypeVar("_T")
_log = logging.getLogger("headrace.jobs")

POOL_SIZE: Final = 8
"""The number of connections that a process keeps open for its transactions."""
CONNECTIONS_MAX: Final = 16
"""The number of connections that it opens for transactions which run at the same time."""
POOL_WAIT_S: Final = 15.0
CONNECT_S: Final = 5
STATEMENT_S: Final = 30
RESPONSE_S: Final = 40.0
"""The longest wait for a response. The server ends statements earlier, if it receives and runs them."""
LOCK_S: Final = 10
IDLE_IN_TRANSACTION_S: Final = 60
RECONNECT_S: Final = 0.5
"""Seconds before a lost connection for notices is opened again."""
CONNECTIONS_PERCENT_MAX: Final = 80
"""The share of a server's connections above which a process opens none for notices."""
CROWDED_S: Final = 30.0
"""Seconds before such a process tries again."""

_WORK: Final = "headrace_work"
_CHANGES: Final = "headrace_news"
_PAYLOAD_BYTES_MAX: Final = 7000
_ALL_QUEUES: Final = "*"
_LISTEN_WORK: Final = b"LISTEN headrace_work"
_LISTEN_CHANGES: Final = b"LISTEN headrace_news"
_CROWDED: Final = (
    "SELECT count(datid) * 100 > %s * current_setting('max_connections')::int FROM pg_stat_activity"
)
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
# whole table, and keep a plan for a small table after it has grown. Statements that do keep their
# plan are written so that there is no other one. Commits survive a power cut, even if the server's
# default is off.
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
        connections_max: The limit of connections for transactions, of which `POOL_SIZE` stay open; by
            default `CONNECTIONS_MAX`. One more is for notices.
    """

    _advice = "is the server running, and may this user create tables?"

    def __init__(self, url: str, *, connections_max: int | None = None) -> None:
        self._url = _parse(url)
        self._connections_max = connections_max or CONNECTIONS_MAX
        self._notifier = QueueNotifier()
        self._channel = CommitChannel(self._connect_for_notices, self._notifier)
        where = self._url.set(query={}).render_as_string(hide_password=True)
        super().__init__(self._engines, where=f"at {where}", on_commit=self._channel.notify)

    @override
    def wakeup(self, queues: Sequence[str]) -> Wakeup:
        return PostgresWakeup(self._channel, self._notifier, queues)

    @override
    def watch(self) -> Wakeup:
        return PostgresWakeup(self._channel, self._notifier, None)

    @override
    def _begin(self) -> None:
        super()._begin()
        self._channel.start()

    @override
    def _end(self) -> None:
        self._channel.stop()
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
            pool_size=min(POOL_SIZE, self._connections_max),
            max_overflow=max(0, self._connections_max - POOL_SIZE),
            pool_timeout=POOL_WAIT_S,
            pool_use_lifo=True,
        )
        event.listen(engine, "connect", _set_up)
        return Engines(engine, engine)

    def _connect(self, *, autocommit: bool = False) -> "TimedConnection":
        dialect: Any = self._url.get_dialect()()
        options: dict[str, Any] = _CONNECTION | dialect.create_connect_args(self._url)[1]
        return TimedConnection.connect(**options, autocommit=autocommit)

    def _connect_for_notices(self) -> "psycopg.Connection[Any]":
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


class CommitChannel:
    """Sends notices of commits to other processes, and receives theirs: one connection, one thread.

    The transactions themselves do not notify: notifying transactions commit one after the other, so
    that no two share a write to the disk. Commits during one notification are reported together by
    the next.

    A process receives the notices of all changes only while one of its waiters watches them. Each
    worker would otherwise receive the notices of every claim and settlement of all other workers.

    Notices are lost without a connection, and if too few connections are left for the transactions of
    all processes. Waiters then find changes after their timeout.
    """

    def __init__(self, connect: "Callable[[], psycopg.Connection[Any]]", notifier: QueueNotifier) -> None:
        self._connect = connect
        self._notifier = notifier
        self._lock = threading.Lock()
        self._queues: set[str] = set()
        self._changed = False
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._wake_writer: socket.socket | None = None
        self._connection: psycopg.Connection[Any] | None = None
        self.is_listening = False
        """True while the notices of other processes are received."""
        self._receives_changes = False
        """True while these include the notices of all changes."""
        self._crowded = False
        self._next_try_s = float("-inf")
        """The time of the monotonic clock before which the thread does not connect again."""

    def start(self) -> None:
        """Start the thread."""
        self._stopping = False
        reader, self._wake_writer = socket.socketpair()
        reader.setblocking(False)
        self._wake_writer.setblocking(False)
        self._thread = threading.Thread(
            target=self._run, args=(reader,), name="headrace-ledger-news", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Send what is pending if possible, and end the thread."""
        self._stopping = True
        self.wake()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        with self._lock:
            writer, self._wake_writer = self._wake_writer, None
        if writer is not None:
            writer.close()

    def notify(self, notice: CommitNotice) -> None:
        """Wake the waiters of this process, and send the notice to others soon."""
        self._notifier.notify(notice)
        with self._lock:
            self._queues |= notice.queues
            self._changed = self._changed or notice.changed
        self.wake()

    def wake(self) -> None:
        """Make the thread look for notices and new waiters."""
        with self._lock:
            if self._wake_writer is not None:
                with contextlib.suppress(OSError):  # the pipe is full: the thread will look
                    self._wake_writer.send(b"!")

    def _run(self, wake_reader: socket.socket) -> None:
        with wake_reader:
            self._exchange(wake_reader)

    def _exchange(self, wake_reader: socket.socket) -> None:
        while True:
            stopping = self._stopping
            try:
                if self._connection is None and self._is_wanted and time.monotonic() >= self._next_try_s:
                    self._open()
                if self._connection is not None:
                    self._listen_to_changes(self._connection)
                    self._send(self._connection)
                    self._receive(self._connection)
            except psycopg.Error:
                self._close(RECONNECT_S)
            if stopping:
                break
            self._wait(wake_reader)
        self._close(0.0)

    @property
    def _is_wanted(self) -> bool:
        return self._notifier.has_waiters or bool(self._queues) or self._changed

    def _open(self) -> None:
        """Connect and listen, unless too few connections are left."""
        self._connection = connection = self._connect()
        connection.add_notify_handler(self._on_notification)
        was_crowded = self._crowded
        self._crowded = connection.execute(_CROWDED, (CONNECTIONS_PERCENT_MAX,)).fetchone() == (True,)
        if self._crowded:
            if not was_crowded:
                _log.warning(
                    "more than %d %% of the database's connections are used: this process does without "
                    "notices of other processes, and polls",
                    CONNECTIONS_PERCENT_MAX,
                )
            self._close(CROWDED_S)
            self._pending()  # nobody can be told
            return
        connection.execute(_LISTEN_WORK)
        self.is_listening = True
        # Notices may have been missed until now.
        self._notifier.wake_all()

    def _listen_to_changes(self, connection: "psycopg.Connection[Any]") -> None:
        """Listen to the notices of all changes once a waiter watches them."""
        if self._receives_changes or not self._notifier.has_watchers:
            return
        connection.execute(_LISTEN_CHANGES)
        self._receives_changes = True
        # As above, but for those waiters alone.
        self._notifier.notify(CommitNotice(changed=True))

    def _close(self, retry_s: float) -> None:
        connection, self._connection = self._connection, None
        self.is_listening = self._receives_changes = False
        self._next_try_s = time.monotonic() + retry_s
        if connection is not None:
            connection.close()

    def _pending(self) -> list[tuple[str, str]]:
        """Return the channels and payloads of the pending notices, which are none afterwards."""
        with self._lock:
            messages = [(_WORK, _payload(self._queues))] if self._queues else []
            if self._changed:
                messages.append((_CHANGES, ""))
            self._queues, self._changed = set(), False
        return messages

    def _send(self, connection: "psycopg.Connection[Any]") -> None:
        for channel, payload in self._pending():
            connection.execute("SELECT pg_notify(%s, %s)", (channel, payload))

    def _receive(self, connection: "psycopg.Connection[Any]") -> None:
        pgconn = connection.pgconn
        pgconn.consume_input()
        while (notification := pgconn.notifies()) is not None:
            self._deliver(notification.relname.decode(), notification.extra.decode())

    def _on_notification(self, notification: "psycopg.Notify") -> None:
        """Deliver a notification that arrived with the response to a statement."""
        self._deliver(notification.channel, notification.payload)

    def _deliver(self, channel: str, payload: str) -> None:
        if payload == _ALL_QUEUES:
            self._notifier.wake_all()
        elif channel == _WORK:
            self._notifier.notify(CommitNotice(set(orjson.loads(payload))))
        else:
            self._notifier.notify(CommitNotice(changed=True))

    def _wait(self, wake_reader: socket.socket) -> None:
        """Wait for a notification, a notice, a waiter or the next try to connect."""
        poll = select.poll()  # select does not support file numbers above 1024
        poll.register(wake_reader, select.POLLIN)
        timeout_s: float | None = None
        if self._connection is not None:
            poll.register(self._connection.fileno(), select.POLLIN)
        elif self._is_wanted:
            timeout_s = max(0.0, self._next_try_s - time.monotonic())
        poll.poll(None if timeout_s is None else timeout_s * 1000)
        with contextlib.suppress(BlockingIOError):
            wake_reader.recv(4096)


def _payload(queues: set[str]) -> str:
    payload = orjson.dumps(sorted(queues))
    return payload.decode() if len(payload) <= _PAYLOAD_BYTES_MAX else _ALL_QUEUES


class PostgresWakeup(Wakeup):
    """A waiter on commits. The first `wait` ends when the process listens: commits may have been missed."""

    def __init__(self, channel: CommitChannel, notifier: QueueNotifier, queues: Sequence[str] | None) -> None:
        self._notifier = notifier
        self._waiter = notifier.add_waiter(queues)
        self._closed = False
        if channel.is_listening:
            self._waiter.set()
        channel.wake()

    @override
    def wait(self, timeout_s: float) -> bool:
        woken = self._waiter.wait(timeout_s)
        if self._closed:
            return False
        self._waiter.clear()
        return woken

    @override
    def wake(self) -> None:
        self._waiter.set()

    @override
    def close(self) -> None:
        self._closed = True
        self._notifier.remove_waiter(self._waiter)
        self._waiter.set()
