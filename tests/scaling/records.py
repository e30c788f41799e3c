"""Records of workers, as a ledger has them, for tests of scaling."""

from headrace.jobs.worker_registry import WorkerInfo, WorkerRecord, WorkerReport

READ_AT_MS = 1_000_000


def worker(name, *, host="", running=0, draining=False, claims=True):
    """Return the record of a living worker."""
    return WorkerRecord(
        info=WorkerInfo(name=name, host=host or name, queues=("default",), slots=4),
        report=WorkerReport(claims=claims),
        running=running,
        draining=draining,
        draining_by="",
        started_at_ms=0,
        seen_at_ms=READ_AT_MS,
        stopped_at_ms=None,
        read_at_ms=READ_AT_MS,
    )


def drained(name, *, host=""):
    """Return the record of a worker that runs nothing and claims nothing."""
    return worker(name, host=host, draining=True, claims=False)
