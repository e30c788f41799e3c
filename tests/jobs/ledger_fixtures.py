"""Makers of the job ledgers that the conformance suite and the model-based test run over.

Each maker creates empty storage for a clock and returns a function that opens ledgers over it.
`fixture` is pytest's `request.getfixturevalue`. Each call creates new storage.
"""

from collections.abc import Callable
from typing import Any

import pytest

from headrace.jobs.ledgers.postgres import PostgresJobLedger
from headrace.jobs.ledgers.sqlite import SqliteJobLedger
from headrace.testing import ManualWallClock, MemoryJobLedger
from headrace.testing.job_checks.bench import OpenLedger

Fixture = Callable[[str], Any]


def memory(clock: ManualWallClock, fixture: Fixture) -> OpenLedger:
    """Return an opener of ledgers in memory that share their jobs."""
    first = MemoryJobLedger(clock)
    return lambda: MemoryJobLedger(clock, beside=first)


def sqlite(clock: ManualWallClock, fixture: Fixture) -> OpenLedger:
    """Return an opener of ledgers over one file."""
    path = fixture("tmp_path_factory").mktemp("jobs") / "jobs.db"
    return lambda: SqliteJobLedger(path, wall_ms=clock.now_ms)


def postgres(clock: ManualWallClock, fixture: Fixture) -> OpenLedger:
    """Return an opener of ledgers over one database of a real server on the clock's time."""
    server = fixture("postgres")
    name = server.create_database()
    url = server.url(name)
    ledger = PostgresJobLedger(url)
    ledger.start()
    ledger.stop()
    follow_clock(server, name, clock)
    return lambda: PostgresJobLedger(url)


def follow_clock(server: Any, name: str, clock: ManualWallClock) -> None:
    """Make a ledger's database use the clock's time instead of its own."""
    with server.connect(name) as connection:
        connection.execute("CREATE TABLE manual_clock AS SELECT 0::bigint AS now_ms")
        connection.execute(
            "CREATE OR REPLACE FUNCTION headrace_now() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE"
            " AS 'SELECT now_ms FROM manual_clock'"
        )

    def move(now_ms: int) -> None:
        with server.connect(name) as connection:
            connection.execute("UPDATE manual_clock SET now_ms = %s", (now_ms,))

    clock.subscribe(move)


SQL_LEDGERS = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]
"""Parameters of fixtures over all ledgers in databases."""
LEDGERS: dict[str, Callable[[ManualWallClock, Fixture], OpenLedger]] = {
    "memory": memory,
    "sqlite": sqlite,
    "postgres": postgres,
}
