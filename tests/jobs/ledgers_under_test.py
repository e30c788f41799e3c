"""The job ledgers that the conformance suite and the model-based test are run over: one line each.

A line makes, for a clock, an empty place for jobs, and gives what opens ledgers over it. `fixture` is pytest's
`request.getfixturevalue`; a place is made anew for each call, also within one test.
"""

import itertools
from collections.abc import Callable
from typing import Any

import psycopg

from headrace.jobs.ledgers.postgres import PostgresJobLedger
from headrace.jobs.ledgers.sqlite import SqliteJobLedger
from headrace.testing import ManualWallClock, MemoryJobLedger
from headrace.testing.job_checks.bench import OpenLedger

_PLACES = itertools.count()

Fixture = Callable[[str], Any]


def memory(clock: ManualWallClock, fixture: Fixture) -> OpenLedger:
    """Ledgers in memory that share their jobs."""
    first = MemoryJobLedger(clock)
    return lambda: MemoryJobLedger(clock, beside=first)


def sqlite(clock: ManualWallClock, fixture: Fixture) -> OpenLedger:
    """Ledgers over one file."""
    path = fixture("tmp_path") / f"jobs-{next(_PLACES)}.db"
    return lambda: SqliteJobLedger(path, wall_ms=clock.now_ms)


def postgres(clock: ManualWallClock, fixture: Fixture) -> OpenLedger:
    """Ledgers over one database, whose time is told by a table."""
    url: str = fixture("postgres_url")
    ledger = PostgresJobLedger(url)
    ledger.start()
    ledger.stop()
    follow(url, clock)
    return lambda: PostgresJobLedger(url)


def follow(url: str, clock: ManualWallClock) -> None:
    """Have a database's `headrace_now` tell what the clock tells."""
    dsn = url.replace("postgresql+psycopg", "postgresql")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS test_clock (now_ms bigint)")
        connection.execute("DELETE FROM test_clock")
        connection.execute("INSERT INTO test_clock VALUES (0)")
        connection.execute(
            "CREATE OR REPLACE FUNCTION headrace_now() RETURNS bigint LANGUAGE sql VOLATILE "
            "AS 'SELECT now_ms FROM test_clock'"
        )

    def moved(now_ms: int) -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("UPDATE test_clock SET now_ms = %s", (now_ms,))

    clock.follow(moved)


LEDGERS: dict[str, Callable[[ManualWallClock, Fixture], OpenLedger]] = {
    "memory": memory,
    "sqlite": sqlite,
    "postgres": postgres,
}
