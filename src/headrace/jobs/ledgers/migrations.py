"""The migrations of the schema, in order. A released migration is never changed: add a new one.

Each is a file in ``schema/``, written for PostgreSQL; a few substitutions make it SQLite's.

Each migration is one transaction. Any number of processes may start at once: one applies it; the
others wait and find it applied. `min_reader` says which older programs still work on the schema
after it. A migration that adds what older programs never read keeps the number; one that changes
what they rely on raises it to its own. A program refuses to start on a schema with a `min_reader`
greater than the last migration that it knows.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from headrace.core.errors import ConfigError
from headrace.jobs.ledgers.database import sa


@dataclass(frozen=True, slots=True)
class MigrationStep:
    """A migration: its number and its statements for SQLite and for PostgreSQL."""

    number: int
    min_reader: int
    sqlite: tuple[str, ...]
    postgres: tuple[str, ...]

    def statements(self, dialect: str) -> tuple[str, ...]:
        """Return the statements for one database, by its name."""
        return self.postgres if dialect == "postgresql" else self.sqlite


class RunExclusively(Protocol):
    """A function that runs transactions one at a time across all processes."""

    def __call__(self, work: Callable[[sa.Connection], bool], /) -> bool:
        """Run `work` in such a transaction, commit it, and return its result."""
        ...


SCHEMA: Final = Path(__file__).parent / "schema"
_COMMENT: Final = re.compile(r"^--.*\n", re.MULTILINE)
_FOR_SQLITE: Final = (
    (re.compile(r"CREATE FUNCTION .*?;\n", re.DOTALL), ""),
    (re.compile(r' COLLATE "C"'), ""),
    (
        re.compile("BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY"),
        "INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT",
    ),
    (re.compile(r"\) WITH \([^)]*\)"), ")"),
)
"""The substitutions that make a migration's text SQLite's: no collation, no storage options, and
``headrace_now`` is a function of the connection.
"""


def read_step(number: int, min_reader: int) -> MigrationStep:
    """Return the migration in ``schema/<number>.sql``."""
    postgres = sqlite = _COMMENT.sub("", (SCHEMA / f"{number}.sql").read_text())
    for pattern, text in _FOR_SQLITE:
        sqlite = pattern.sub(text, sqlite)
    return MigrationStep(number, min_reader, _statements(sqlite), _statements(postgres))


def _statements(script: str) -> tuple[str, ...]:
    return tuple(statement.strip() for statement in script.split(";\n") if statement.strip())


STEPS: Final = (read_step(1, min_reader=1), read_step(2, min_reader=1), read_step(3, min_reader=1))

_SCHEMA: Final = """
CREATE TABLE headrace_schema (
    number INTEGER NOT NULL PRIMARY KEY,
    min_reader INTEGER NOT NULL,
    applied_at_ms BIGINT NOT NULL
)
"""


def migrate(guarded: RunExclusively, *, where: str, steps: tuple[MigrationStep, ...] = STEPS) -> int:
    """Apply the missing migrations. Return their number.

    Raise ConfigError, and change nothing, for the schema of a newer program that this one cannot
    work on.
    """
    taken = 0
    while guarded(lambda connection: _take_next(connection, where, steps)):
        taken += 1
    return taken


def _take_next(connection: sa.Connection, where: str, steps: tuple[MigrationStep, ...]) -> bool:
    """Apply the first missing migration. Return False if there is none."""
    if not sa.inspect(connection).has_table("headrace_schema"):
        connection.exec_driver_sql(_SCHEMA)
    found = connection.execute(sa.text("SELECT max(number), max(min_reader) FROM headrace_schema")).one()
    done, min_reader = found[0] or 0, found[1] or 0
    known = steps[-1].number
    if min_reader > known:
        raise ConfigError(
            f"the job ledger {where} has schema {done}, which this headrace (schema {known}) is too old for: "
            f"install a newer one"
        )
    missing = [step for step in steps if step.number > done]
    if not missing:
        return False
    step = missing[0]
    for statement in step.statements(connection.dialect.name):
        connection.exec_driver_sql(statement)
    connection.execute(
        sa.text(
            "INSERT INTO headrace_schema (number, min_reader, applied_at_ms) "
            "VALUES (:number, :min_reader, headrace_now())"
        ),
        {"number": step.number, "min_reader": step.min_reader},
    )
    return True
