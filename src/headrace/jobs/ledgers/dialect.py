"""Where the SQL of SQLite and of PostgreSQL differs. All other statements are the same text for both."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headrace.jobs.state import JobState

NOW_MS: Final = "(SELECT headrace_now())"
"""The database's time in milliseconds, asked once a statement."""
CLOCK: Final = "clock AS MATERIALIZED (SELECT headrace_now() AS now_ms)"
"""The same as a common table expression, for statements that write several times that must agree."""


def known_by_id(table: str, state: JobState) -> str:
    """That a row of `table` is in this state, where it is looked up by its id.

    Written so that no partial index fits: planners that believe that one is empty walk through all of it instead.
    """
    return f"{table}.state || '' = '{state.value}'"


@dataclass(frozen=True, slots=True)
class Dialect:
    """One database's way of saying things.

    `lock` and `lock_free` end a SELECT that is going to change the rows of ``headrace_job AS job`` that it finds: with the
    first it waits for others who do, with the second it passes over their rows.
    """

    name: str
    lock: str = ""
    lock_free: str = ""
    _native_records: bool = False

    def locked(self, alias: str, *, free: bool = False) -> str:
        """`lock`, or `lock_free`, for the rows of another table."""
        return (self.lock_free if free else self.lock).replace(" OF job", f" OF {alias}")

    def records(self, columns: Mapping[str, str]) -> str:
        """A common table expression ``given``: the JSON array of objects in ``:given`` as rows.

        So the text of a statement is the same for however many. `columns` are names and types (text, bigint, boolean).
        """
        if self._native_records:
            typed = ", ".join(f"{name} {kind}" for name, kind in columns.items())
            return f"given AS MATERIALIZED (SELECT * FROM jsonb_to_recordset(CAST(:given AS jsonb)) AS record({typed}))"
        picked = ", ".join(f"json_extract(value, '$.{name}') AS {name}" for name in columns)
        return f"given AS MATERIALIZED (SELECT {picked} FROM json_each(:given))"


SQLITE: Final = Dialect("sqlite")
"""One writer at a time, so that nothing needs a lock of its own."""
POSTGRES: Final = Dialect(
    "postgresql",
    lock="FOR NO KEY UPDATE OF job",
    lock_free="FOR NO KEY UPDATE OF job SKIP LOCKED",
    _native_records=True,
)
