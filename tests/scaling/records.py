"""Records of workers for tests."""

from headrace.jobs.worker_registry import WorkerInfo, WorkerRecord, WorkerReport

LEASE_MS = 60_000


def record(
    name,
    *,
    running=0,
    drained_by=None,
    claims=True,
    queues=("default",),
    slots=4,
    started_at_ms=0,
    seen_ago_ms=0,
    stopped_at_ms=None,
    host="h",
    pid=1,
) -> WorkerRecord:
    """Return the record of a worker; `drained_by` is None while it does not drain."""
    info = WorkerInfo(name, host=host, pid=pid, queues=queues, slots=slots, lease_ms=LEASE_MS)
    read_at_ms = 1_000_000
    return WorkerRecord(
        info,
        WorkerReport(claims=claims),
        running,
        drained_by is not None,
        drained_by or "",
        started_at_ms,
        read_at_ms - seen_ago_ms,
        stopped_at_ms,
        read_at_ms,
    )


def drained(name, *, host="h") -> WorkerRecord:
    """Return the record of a worker that runs nothing and claims nothing."""
    return record(name, host=host, drained_by="pool p", claims=False)
