"""The job ledger in PostgreSQL, for workers on many machines. The one door to psycopg."""

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import orjson

from headrace.core.errors import ConfigError, JobLedgerUnavailableError, MissingExtraError
from headrace.jobs.ledger import Wakeup
from headrace.jobs.ledgers.database import Database, Engines, News, Told, event, exc, sa
from headrace.jobs.ledgers.dialect import POSTGRES
from headrace.jobs.ledgers.migrations import migrate
from headrace.jobs.ledgers.outbox import NotificationRows
from headrace.jobs.ledgers.sql import SqlJobLedger

try:
    import psycopg
except ImportError as _error:
    raise MissingExtraError("postgres", "a job ledger in PostgreSQL") from _error

POOL_SIZE: Final = 8
POOL_OVERFLOW: Final = 8
POOL_WAIT_S: Final = 15.0
CONNECT_S: Final = 5
STATEMENT_S: Final = 30
LOCK_S: Final = 10
IDLE_IN_TRANSACTION_S: Final = 60
RECONNECT_S: Final = 0.5
"""How long whoever listens, or tells, waits before connecting again."""

_WORK: Final = "headrace_work"
_NEWS: Final = "headrace_news"
_PAYLOAD_BYTES_MAX: Final = 7000
_ALL_QUEUES: Final = "*"
_LISTEN: Final = {_WORK: b"LISTEN headrace_work", _NEWS: b"LISTEN headrace_news"}
_MIGRATION_LOCK: Final = 0x6865_6164_7261_6365
"""Of advisory locks, the one that a migration holds."""

_CONNECTION: Final = {
    "connect_timeout": CONNECT_S,
    "keepalives": 1,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
    "application_name": "headrace",
}

# Every query here finds its rows by an index, in their order; but what the planner knows of a queue is always out of date:
# told of it while it was empty, it would take scanning and sorting the whole for cheaper, and keep to a plan that was made
# for a small table after that has grown. Commits survive a power cut, also where the server's default is off.
_SETTINGS: Final = f"""
SELECT set_config('statement_timeout', '{STATEMENT_S}s', false), set_config('lock_timeout', '{LOCK_S}s', false),
    set_config('idle_in_transaction_session_timeout', '{IDLE_IN_TRANSACTION_S}s', false),
    set_config('enable_seqscan', 'off', false), set_config('enable_bitmapscan', 'off', false),
    set_config('enable_sort', 'off', false), set_config('enable_incremental_sort', 'off', false),
    set_config('plan_cache_mode', 'force_custom_plan', false), set_config('jit', 'off', false),
    set_config('synchronous_commit',
        CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END,
        false)
"""

_T = TypeVar("_T")


class PostgresJobLedger(SqlJobLedger):
    """A `JobLedger` in a PostgreSQL database, which it may share with others: its tables are called ``headrace_...``.

    Only the database's clock counts. Connections that are lost are made again, for ever; a verb that met one is done again
    a few times within a second where that is safe, and raises `JobLedgerUnavailableError` after that.

    Args:
        url: As libpq takes it, ``postgresql://user:password@host:port/database?sslmode=require``.
        outbox: What is written with ends of jobs.
    """

    def __init__(self, url: str, *, outbox: Told | None = None) -> None:
        self._url = _parse(url)
        self._teller = _Teller(self._listening)
        where = self._url.set(query={}).render_as_string(hide_password=True)
        database = Database(
            POSTGRES,
            self._engines,
            where=f"at {where}",
            told=self._teller.tell,
            outbox=outbox or NotificationRows(),
        )
        super().__init__(database)

    def wakeup(self, queues: Sequence[str]) -> Wakeup:
        """See `JobLedger.wakeup`."""
        return PostgresWakeup(self._listening, _WORK, frozenset(queues))

    def watch(self) -> Wakeup:
        """See `JobLedger.watch`."""
        return PostgresWakeup(self._listening, _NEWS, None)

    def _begin(self) -> None:
        engine = self._database.open()
        try:
            migrate(lambda work: self._guarded(engine, work), where=self._database.where)
        except exc.DBAPIError as error:
            raise JobLedgerUnavailableError(
                f"the job ledger {self._database.where} cannot be opened ({_first_line(error)}): is the server there, "
                "and may this user make tables?"
            ) from error
        self._teller.start()

    def _end(self) -> None:
        self._teller.stop()
        self._database.close()

    @staticmethod
    def _guarded(engine: sa.Engine, work: Callable[[sa.Connection], _T]) -> _T:
        with engine.begin() as connection:
            # A step may take its time, and whoever waits for it too.
            connection.exec_driver_sql("SET LOCAL lock_timeout = 0")
            connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
            connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
            return work(connection)

    def _engines(self) -> Engines:
        engine = sa.create_engine(
            self._url,
            connect_args=_defaults(self._url),
            isolation_level="READ COMMITTED",
            pool_size=POOL_SIZE,
            max_overflow=POOL_OVERFLOW,
            pool_timeout=POOL_WAIT_S,
            pool_use_lifo=True,
        )
        event.listen(engine, "connect", _set_up)
        return Engines(engine, engine)

    def _listening(self) -> "psycopg.Connection[Any]":
        """A connection of its own, outside the pool and without transactions."""
        dialect: Any = self._url.get_dialect()()
        options: dict[str, Any] = _CONNECTION | dialect.create_connect_args(self._url)[1]
        return psycopg.connect(**options, autocommit=True)


def _parse(url: str) -> sa.URL:
    try:
        return sa.make_url(url).set(drivername="postgresql+psycopg")
    except (exc.ArgumentError, ValueError) as error:
        raise ConfigError(
            "a job ledger in PostgreSQL is named by postgresql://user:password@host/database"
        ) from error


def _defaults(url: sa.URL) -> dict[str, Any]:
    """Options of connections, as far as the URL does not set them."""
    return {name: value for name, value in _CONNECTION.items() if name not in url.query}


def _set_up(connection: Any, _record: Any) -> None:
    autocommit, connection.autocommit = connection.autocommit, True
    connection.execute(_SETTINGS)
    connection.autocommit = autocommit


def _first_line(error: exc.DBAPIError) -> str:
    lines = str(error.orig).strip().splitlines()
    return lines[0] if lines else type(error.orig).__name__


class _Teller:
    """Tells all processes what was committed, on a connection and a thread of its own.

    Not in the transactions themselves: those that tell commit one after the other, so that no two share a write to the disk.
    What happens while one telling is under way goes out together with the next. What is lost with a process or a
    connection is found by whoever waits when its time is over.
    """

    def __init__(self, connect: "Callable[[], psycopg.Connection[Any]]") -> None:
        self._connect = connect
        self._changed = threading.Condition()
        self._queues: set[str] = set()
        self._news = False
        self._stopping = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin."""
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="headrace-ledger-news", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Tell what there is to tell, if that can be, and end."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()

    def tell(self, news: News) -> None:
        """Have it told soon."""
        with self._changed:
            self._queues |= news.queues
            self._news = self._news or news.changed
            self._changed.notify()

    def _run(self) -> None:
        connection: psycopg.Connection[Any] | None = None
        while (told := self._next()) is not None:
            try:
                if connection is None:
                    connection = self._connect()
                for channel, payload in told:
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
        """Channels and payloads; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._queues or self._news or self._stopping)
            told = [(_WORK, _payload(self._queues))] if self._queues else []
            if self._news:
                told.append((_NEWS, ""))
            self._queues, self._news = set(), False
            return told or None


def _payload(queues: set[str]) -> str:
    payload = orjson.dumps(sorted(queues))
    return payload.decode() if len(payload) <= _PAYLOAD_BYTES_MAX else _ALL_QUEUES


class PostgresWakeup:
    """A `Wakeup`: a connection that listens. It is made by the first `wait`, and again whenever it is lost."""

    def __init__(
        self, connect: "Callable[[], psycopg.Connection[Any]]", channel: str, queues: frozenset[str] | None
    ) -> None:
        self._connect = connect
        self._channel = channel
        self._queues = queues
        self._waiting = threading.Lock()
        self._closed = False
        self._connection: psycopg.Connection[Any] | None = None
        self._ear, self._mouth = socket.socketpair()
        self._ear.setblocking(False)
        self._mouth.setblocking(False)

    def wait(self, timeout_s: float) -> bool:
        """See `Wakeup.wait`."""
        until_s = time.monotonic() + timeout_s
        with self._waiting:
            while not self._closed:
                left_s = max(0.0, until_s - time.monotonic())
                if self._connection is None:
                    if self._listen():
                        return True  # nobody knows what was told while nobody listened
                    heard = self._heard(min(RECONNECT_S, left_s))
                else:
                    heard = self._heard(left_s)
                if heard:
                    return True
                if time.monotonic() >= until_s:
                    return False
            return False

    def wake(self) -> None:
        """See `Wakeup.wake`."""
        with contextlib.suppress(OSError):  # it has been told often enough, or is closed
            self._mouth.send(b"!")

    def close(self) -> None:
        """See `Wakeup.close`."""
        self._closed = True
        self.wake()
        with self._waiting:
            self._hang_up()
            self._ear.close()
            self._mouth.close()

    def _listen(self) -> bool:
        try:
            self._connection = self._connect()
            self._connection.execute(_LISTEN[self._channel])
        except psycopg.Error:
            self._hang_up()
            return False
        return True

    def _heard(self, timeout_s: float) -> bool:
        connection = self._connection
        poll = select.poll()  # select would not take the files of a process that has more than 1024 open
        poll.register(self._ear, select.POLLIN)
        if connection is not None:
            poll.register(connection.fileno(), select.POLLIN)
        ready = [file for file, _ in poll.poll(timeout_s * 1000)]
        if self._ear.fileno() in ready:
            self._ear.recv(4096)
            return True
        if not ready or connection is None:
            return False
        try:
            return self._read(connection)
        except psycopg.Error:
            self._hang_up()
            return False

    def _read(self, connection: "psycopg.Connection[Any]") -> bool:
        connection.pgconn.consume_input()
        heard = False
        while (told := connection.pgconn.notifies()) is not None:
            heard = heard or self._concerns(told.extra.decode())
        return heard

    def _concerns(self, payload: str) -> bool:
        if self._queues is None or payload == _ALL_QUEUES:
            return True
        return not self._queues.isdisjoint(orjson.loads(payload))

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
