"""Very many jobs in a ledger, within seconds: copied within its database, without going through the states one by one."""

from headrace.jobs.ledgers.database import sa
from headrace.jobs.ledgers.schema import JOB_TABLE
from headrace.jobs.ledgers.sql import SqlJobLedger

NAMES = [column.name for column in JOB_TABLE.columns]


def copy_jobs(ledger: SqlJobLedger, like: str, count: int, **values: str) -> None:
    """Jobs like one that there is, but for these columns: expressions in SQL, in which `n` counts from 1."""
    made = ", ".join(values.get(name, f"job.{name}") for name in NAMES)
    statement = f"""
WITH RECURSIVE numbered(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbered WHERE n < {count})
INSERT INTO headrace_job ({", ".join(NAMES)}) SELECT {made} FROM headrace_job AS job, numbered WHERE job.id = :like"""
    ledger._database.write(lambda t: t.connection.execute(sa.text(statement), {"like": like}))
