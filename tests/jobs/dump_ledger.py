"""Write tests/data/jobs/ledger-N.sql: a database of this version, for later versions to read.

Run this once after adding a step to the schema: ``python -m jobs.dump_ledger`` in tests/.
"""

import sqlite3
import tempfile
from pathlib import Path

from headrace.jobs.job import (
    Completed,
    Failed,
    JobFailure,
    JobProgress,
    NewJob,
    Released,
    ResultRef,
    Settlement,
)
from headrace.jobs.ledger import ClaimRequest, Heartbeat, QueueSettings
from headrace.jobs.ledgers.sql import STEPS
from headrace.jobs.ledgers.sqlite import SqliteJobLedger
from headrace.jobs.state import Cause

DATA = Path(__file__).parents[1] / "data" / "jobs"


def fill(path: Path) -> None:
    """Write one job for each tested state, with the name of the state."""
    ledger = SqliteJobLedger(path, wall_ms=lambda: 1_800_000_000_000)
    ledger.start()
    ledger.set_queue(QueueSettings("narrow", pending_max=5))
    ledger.submit(
        [
            NewJob(
                id="completed",
                tags={"team": "blue"},
                notify=({"webhook": "https://example.com"},),
                priority=0,
                model="m",
            ),
            NewJob(id="failed", priority=1, idempotency_key="k", body_digest="d", options={"rows": 3}),
            NewJob(id="pending", priority=2),
            NewJob(id="running", priority=3),
            NewJob(id="later", region="eu-east", delay_ms=60_000, deadline_s=3600.0, time_to_live_s=1800.0),
        ]
    )
    claim = ClaimRequest("w", ("default",), 4, 60_000)
    completed, failed, pending, running = ledger.settle_and_claim([], claim).claimed
    failure = JobFailure(Cause.MODEL, "the model raised on it", "ValueError", "memory://error")
    ledger.settle_and_claim(
        [
            Settlement("completed", completed.lease, Completed(ResultRef("memory://out", 3, "text/csv"))),
            Settlement("failed", failed.lease, Failed(failure)),
            Settlement("pending", pending.lease, Failed(failure, retry_ms=0)),
        ]
    )
    ledger.mark_published("completed", completed.lease, "s3://box/out")
    (pending,) = ledger.settle_and_claim([], claim).claimed
    ledger.settle_and_claim([Settlement("pending", pending.lease, Released({"chunk": 7}))])
    ledger.heartbeat("w", [Heartbeat("running", running.lease, JobProgress(3, 9, "records"))], 60_000)
    ledger.report_models(["default"], ["m", "m@1"])
    ledger.stop()


def main() -> None:
    """Write the SQL file of this version."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "jobs.db"
        fill(path)
        connection = sqlite3.connect(path)
        text = "\n".join(connection.iterdump()) + "\n"
        connection.close()
    DATA.mkdir(exist_ok=True)
    (DATA / f"ledger-{STEPS[-1].number}.sql").write_text(text)


if __name__ == "__main__":
    main()
