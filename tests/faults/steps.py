"""What really happened to jobs: every change of a state, written down by the database itself, beside headrace's own words."""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import psycopg


@dataclass(frozen=True)
class Step:
    """A job's state before and after, under which lease and whose, and when."""

    job_id: str
    was: str
    then: str
    lease: int
    worker: str
    at_ms: int


_COLUMNS = "job_id, was, became, lease, worker, at_ms"
_SQLITE = """
CREATE TABLE fault_step (number INTEGER PRIMARY KEY, job_id TEXT, was TEXT, became TEXT, lease BIGINT, worker TEXT, at_ms BIGINT);
CREATE TRIGGER fault_step AFTER UPDATE ON headrace_job WHEN OLD.state <> NEW.state OR OLD.lease <> NEW.lease BEGIN
    INSERT INTO fault_step (job_id, was, became, lease, worker, at_ms) VALUES (NEW.id, OLD.state, NEW.state, NEW.lease,
        CASE NEW.state WHEN 'running' THEN NEW.worker ELSE OLD.worker END,
        CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER));
END;
"""
_POSTGRES = """
CREATE TABLE fault_step (number bigserial, job_id text, was text, became text, lease bigint, worker text, at_ms bigint);
CREATE FUNCTION fault_step() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO fault_step (job_id, was, became, lease, worker, at_ms) VALUES (NEW.id, OLD.state, NEW.state, NEW.lease,
        CASE NEW.state WHEN 'running' THEN NEW.worker ELSE OLD.worker END, headrace_now());
    RETURN NULL;
END $$;
CREATE TRIGGER fault_step AFTER UPDATE ON headrace_job FOR EACH ROW
    WHEN (OLD.state <> NEW.state OR OLD.lease <> NEW.lease) EXECUTE FUNCTION fault_step();
"""


class Steps(Protocol):
    """Where steps are written down."""

    def install(self) -> None:
        """Begin; the ledger's schema is there."""
        ...

    def all(self) -> list[Step]:
        """In the order in which they happened."""
        ...


class SqliteSteps:
    """In the ledger's own file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def install(self) -> None:
        connection = sqlite3.connect(self.path, timeout=20)
        connection.executescript(_SQLITE)
        connection.close()

    def all(self) -> list[Step]:
        connection = sqlite3.connect(self.path, timeout=20)
        try:
            return _read(connection.execute(f"SELECT {_COLUMNS} FROM fault_step ORDER BY number").fetchall())
        finally:
            connection.close()

    def writable(self) -> bool:
        """Whether nobody is in the midst of a write, who alone could write then."""
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
        """What SQLite says of the file: "ok"."""
        connection = sqlite3.connect(self.path, timeout=20)
        try:
            return connection.execute("PRAGMA integrity_check").fetchone()[0]
        finally:
            connection.close()


class PostgresSteps:
    """In the ledger's own database."""

    def __init__(self, url: str) -> None:
        self.dsn = url.replace("postgresql+psycopg", "postgresql").partition("?")[0]

    def install(self) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(_POSTGRES)

    def writable(self) -> bool:
        """Always: nobody's write keeps others from theirs."""
        return True

    def all(self) -> list[Step]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            return _read(connection.execute(f"SELECT {_COLUMNS} FROM fault_step ORDER BY number").fetchall())


def _read(rows: Sequence[Sequence]) -> list[Step]:
    return [Step(*row) for row in rows]
