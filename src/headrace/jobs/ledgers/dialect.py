"""The differences between the SQL of SQLite and of PostgreSQL.

All other statements are the same text.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headrace.jobs.state import JobState

NOW_MS: Final = "(SELECT headrace_now())"
"""The database's time in milliseconds, read once per statement."""
CLOCK: Final = "clock AS MATERIALIZED (SELECT headrace_now() AS now_ms)"
"""The same as a common table expression, for statements with several equal times."""


def known_by_id(table: str, state: JobState) -> str:
    """Return the condition that a row of `table`, found by its id, is in this state.

    No partial index fits the condition: planners that believe such an index to be empty would scan
    it instead.
    """
    return f"{table}.state || '' = '{state.value}'"


@dataclass(frozen=True, slots=True)
class SqlDialect:
    """The SQL of one database.

    `lock` and `lock_free` end a SELECT that will change the rows of ``headrace_job AS job`` that it
    finds. `lock` waits for other writers; `lock_free` skips their rows.
    """

    name: str
    lock: str = ""
    lock_free: str = ""
    _native_records: bool = False

    def locked(self, alias: str, *, free: bool = False) -> str:
        """Return `lock`, or `lock_free`, for the rows of another table."""
        return (self.lock_free if free else self.lock).replace(" OF job", f" OF {alias}")

    def records(self, columns: Mapping[str, str]) -> str:
        """Return a common table expression ``given``: the JSON objects in ``:given`` as rows.

        The statement's text is the same for any number of rows. `columns` are names and types
        (text, bigint, boolean).
        """
        if self._native_records:
            typed = ", ".join(f"{name} {kind}" for name, kind in columns.items())
            rows = f"jsonb_to_recordset(CAST(:given AS jsonb)) AS record({typed})"
            return f"given AS MATERIALIZED (SELECT * FROM {rows})"
        picked = ", ".join(f"json_extract(value, '$.{name}') AS {name}" for name in columns)
        return f"given AS MATERIALIZED (SELECT {picked} FROM json_each(:given))"


SQLITE: Final = SqlDialect("sqlite")
"""One writer at a time, so that no row locks are needed."""
POSTGRES: Final = SqlDialect(
    "postgresql",
    lock="FOR NO KEY UPDATE OF job",
    lock_free="FOR NO KEY UPDATE OF job SKIP LOCKED",
    _native_records=True,
)
