"""A log of all changes of jobs' states, written by the database's own triggers, independently of headrace."""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import psycopg


@dataclass(frozen=True)
class StateChange:
    """One change of a job's state or lease: the worker that held the job, and the time."""

    job_id: str
    before: str
    after: str
    lease: int
    worker: str
    at_ms: int

    @property
    def lease_lost(self) -> bool:
        """True if the job went back to its queue."""
        return (self.before, self.after) == ("running", "pending")


_COLUMNS = "job_id, was, became, lease, worker, at_ms"
_SQLITE = """
CREATE TABLE fault_step (
    number INTEGER PRIMARY KEY, job_id TEXT, was TEXT, became TEXT, lease BIGINT, worker TEXT, at_ms BIGINT
);
CREATE TRIGGER fault_step AFTER UPDATE ON headrace_job
WHEN OLD.state <> NEW.state OR OLD.lease <> NEW.lease BEGIN
    INSERT INTO fault_step (job_id, was, became, lease, worker, at_ms)
    VALUES (NEW.id, OLD.state, NEW.state, NEW.lease,
        CASE NEW.state WHEN 'running' THEN NEW.worker ELSE OLD.worker END,
        CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER));
END;
"""
_POSTGRES = """
CREATE TABLE fault_step (
    number bigserial, job_id text, was text, became text, lease bigint, worker text, at_ms bigint
);
CREATE FUNCTION fault_step() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO fault_step (job_id, was, became, lease, worker, at_ms)
    VALUES (NEW.id, OLD.state, NEW.state, NEW.lease,
        CASE NEW.state WHEN 'running' THEN NEW.worker ELSE OLD.worker END, headrace_now());
    RETURN NULL;
END $$;
CREATE TRIGGER fault_step AFTER UPDATE ON headrace_job FOR EACH ROW
    WHEN (OLD.state <> NEW.state OR OLD.lease <> NEW.lease) EXECUTE FUNCTION fault_step();
"""


class ChangeLog(Protocol):
    """The log in a ledger's database."""

    def install(self) -> None:
        """Start to log. The ledger's schema exists."""
        ...

    def read(self) -> list[StateChange]:
        """Return the changes in the order in which they happened."""
        ...

    def writable(self) -> bool:
        """Return False if a write transaction under way blocks all others."""
        ...


class SqliteChangeLog:
    """A log in the ledger's file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def install(self) -> None:
        connection = sqlite3.connect(self.path, timeout=20)
        connection.executescript(_SQLITE)
        connection.close()

    def read(self) -> list[StateChange]:
        connection = sqlite3.connect(self.path, timeout=20)
        try:
            rows = connection.execute(f"SELECT {_COLUMNS} FROM fault_step ORDER BY number").fetchall()
        finally:
            connection.close()
        return _changes(rows)

    def writable(self) -> bool:
        connection = sqlite3.connect(self.path, timeout=0, isolation_level=None)
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        else:
            return True
        finally:
            connection.close()

    def integrity(self) -> str:
        """Return the result of SQLite's integrity check: "ok"."""
        connection = sqlite3.connect(self.path, timeout=20)
        try:
            return connection.execute("PRAGMA integrity_check").fetchone()[0]
        finally:
            connection.close()


class PostgresChangeLog:
    """A log in the ledger's database."""

    def __init__(self, url: str) -> None:
        self.dsn = url.replace("postgresql+psycopg", "postgresql").partition("?")[0]

    def install(self) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(_POSTGRES)

    def read(self) -> list[StateChange]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            rows = connection.execute(f"SELECT {_COLUMNS} FROM fault_step ORDER BY number").fetchall()
        return _changes(rows)

    def writable(self) -> bool:
        return True


def _changes(rows: Sequence[Sequence]) -> list[StateChange]:
    return [StateChange(*row) for row in rows]
