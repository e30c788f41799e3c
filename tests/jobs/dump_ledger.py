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
from headrace.jobs.worker_registry import WorkerInfo

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
            NewJob(id="publishing", priority=4, output_uri="s3://box/out", key="K"),
            NewJob(id="unpublished", priority=5, output_uri="s3://box/out", key="L"),
            NewJob(id="published", priority=6, output_uri="s3://box/out", key="M"),
            NewJob(id="later", region="eu-east", delay_ms=60_000, deadline_s=3600.0, time_to_live_s=1800.0),
        ]
    )
    claim = ClaimRequest("w", ("default",), 7, 60_000)
    completed, failed, pending, running, *others = ledger.settle_and_claim([], claim).claimed
    failure = JobFailure(Cause.MODEL, "the model raised on it", "ValueError", "memory://error")
    ledger.settle_and_claim(
        [
            Settlement("completed", completed.lease, Completed(ResultRef("memory://out", 3, "text/csv"))),
            Settlement("failed", failed.lease, Failed(failure)),
            Settlement("pending", pending.lease, Failed(failure, retry_ms=0)),
        ]
    )
    ledger.settle_and_claim(
        [Settlement(job.id, job.lease, Completed(ResultRef("memory://out"))) for job in others]
    )
    ledger.mark_publish_failed("unpublished", 1, failure, final=True)
    ledger.mark_published("published", 1, "s3://box/out/M.out", "sha256:00")
    (pending,) = ledger.settle_and_claim([], claim).claimed
    ledger.settle_and_claim([Settlement("pending", pending.lease, Released({"chunk": 7}))])
    ledger.heartbeat("w", [Heartbeat("running", running.lease, JobProgress(3, 9, "records"))], 60_000)
    ledger.register_worker(WorkerInfo("w", queues=("default",), models=("m", "m@1")))
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
