"""The SQL statements of the ledger: one file each in ``queries/``, with named parameters. Pure.

A file is written for PostgreSQL. The text for a database follows from three substitutions:

1. ``{job_columns}`` becomes the columns that `rows.job_of` reads, in their order.
2. SQLite: the lines ``FOR NO KEY UPDATE …`` are left out. It has one writer at a time, so that no
   row locks are needed.
3. SQLite: ``jsonb_to_recordset``, which reads the JSON objects in ``:given`` as rows, becomes a query
   over ``json_each``. The text is the same for any number of rows.

Comments are not sent. ``scripts/print_statements.py`` prints the texts of one database.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace.jobs.ledgers.rows import JOB_COLUMNS

QUERIES: Final = Path(__file__).parent / "queries"
_COMMENT: Final = re.compile(r"^--.*\n", re.MULTILINE)
_LOCK: Final = re.compile(r"^ *FOR NO KEY UPDATE .*\n", re.MULTILINE)
_RECORDS: Final = re.compile(r"jsonb_to_recordset\(CAST\(:given AS jsonb\)\) AS record\(([^)]*)\)")


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement, as text for each database. The fields have SQLAlchemy's names of the dialects."""

    postgresql: str
    sqlite: str

    def filled(self, word: str, text: str) -> "Statement":
        """Return the statement with `text` in place of a word in braces."""
        return Statement(*(each.replace(f"{{{word}}}", text) for each in (self.postgresql, self.sqlite)))


def read_statement(name: str) -> Statement:
    """Return the statement in ``queries/<name>.sql``."""
    text = _COMMENT.sub("", (QUERIES / f"{name}.sql").read_text())
    statement = Statement(text, _RECORDS.sub(_json_rows, _LOCK.sub("", text)))
    return statement.filled("job_columns", ", ".join(JOB_COLUMNS))


def _json_rows(match: re.Match[str]) -> str:
    """Return SQLite's query for the rows of one ``jsonb_to_recordset``."""
    names = [column.split()[0] for column in match[1].split(",")]
    columns = ", ".join(f"json_extract(value, '$.{name}') AS {name}" for name in names)
    return f"(SELECT {columns} FROM json_each(:given)) AS record"  # noqa: S608 - names of our files
