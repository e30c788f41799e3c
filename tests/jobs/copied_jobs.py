"""Many jobs in a ledger, by copying rows within its database."""

from headrace.jobs.ledgers.database import sa
from headrace.jobs.ledgers.sql import SqlJobLedger


def copy_jobs(ledger: SqlJobLedger, like: str, count: int, **values: str) -> None:
    """Insert `count` copies of the job `like`.

    `values` are SQL expressions for columns that differ, in which `n` counts from 1.
    """
    columns = sa.inspect(ledger._database.open()).get_columns("headrace_job")
    names = [column["name"] for column in columns]
    expressions = ", ".join(values.get(name, f"job.{name}") for name in names)
    statement = f"""
WITH RECURSIVE numbered(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbered WHERE n < {count})
INSERT INTO headrace_job ({", ".join(names)})
SELECT {expressions} FROM headrace_job AS job, numbered WHERE job.id = :like"""
    ledger._database.run(lambda t: t.connection.execute(sa.text(statement), {"like": like}))
