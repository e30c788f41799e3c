"""The registry of workers: what each worker states and reports, and the record that the ledger keeps."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

WORKERS_KEPT_MS: Final = 86_400_000
"""The time for which a ledger lists a worker after it was stopped or lost."""
WORKERS_MAX: Final = 1000
"""The limit of listed workers: those with the latest heartbeats, and stopped ones only in free places."""
JOB_IDS_MAX: Final = 100
"""The limit of the ids of running jobs in a worker's record."""
LEASE_MS_DEFAULT: Final = 60_000


class WorkerState(StrEnum):
    """The state of a worker, derived from its record."""

    RUNNING = "running"
    DRAINING = "draining"
    """It is to claim no more jobs; some still run, or it has not confirmed yet."""
    DRAINED = "drained"
    """It has confirmed that it claims no more jobs, and none runs."""
    STOPPED = "stopped"
    LOST = "lost"
    """It sent no heartbeat for the length of its lease."""


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """The properties that a worker states when it registers."""

    name: str
    start_id: str = ""
    """A text that differs between two starts of workers with the same name."""
    host: str = ""
    pid: int = 0
    version: str = ""
    """The version of headrace."""
    queues: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    """The models as jobs name them."""
    slots: int = 1
    """The limit of concurrent jobs."""
    region: str = ""
    lease_ms: int = LEASE_MS_DEFAULT


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """The memory of a GPU, used by all processes together."""

    index: int
    name: str
    used_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class ModelCrash:
    """The death of a model's process, or its equal for a model in a thread."""

    model: str
    cause: str
    """A cause of `InstanceLostError`; "" if it is unknown."""
    message: str
    at_ms: int
    """The time on the clock of the worker's host, in milliseconds since the epoch."""


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """The part of a heartbeat that describes the worker itself."""

    ready: bool = True
    """False while a model of the worker cannot be called."""
    claims: bool = True
    """False once the worker claims no more jobs because it drains, and no claim is under way."""
    memory_bytes: int | None = None
    """The memory of the worker's process and of all processes below it; None if it is unknown."""
    gpus: tuple[GpuMemory, ...] = ()
    last_crash: ModelCrash | None = None


@dataclass(frozen=True, slots=True)
class WorkerOrders:
    """The orders to a worker: jobs to cancel, and if it drains."""

    cancelled: frozenset[str] = frozenset()
    draining: bool = False


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """A worker as the ledger has it at `read_at_ms`. All times are the ledger's."""

    info: WorkerInfo
    report: WorkerReport
    running: int
    """The number of jobs that run under the worker's leases."""
    draining: bool
    draining_by: str
    """The name of the API key that ordered the worker to drain."""
    started_at_ms: int
    seen_at_ms: int
    """The time of the last heartbeat."""
    stopped_at_ms: int | None
    read_at_ms: int
    job_ids: tuple[str, ...] = ()
    """The ids of running jobs, up to `JOB_IDS_MAX`; only `JobLedger.worker` reads them."""

    @property
    def state(self) -> WorkerState:
        """The state at `read_at_ms`."""
        if self.stopped_at_ms is not None:
            return WorkerState.STOPPED
        if self.read_at_ms - self.seen_at_ms > self.info.lease_ms:
            return WorkerState.LOST
        if not self.draining:
            return WorkerState.RUNNING
        return WorkerState.DRAINING if self.report.claims or self.running else WorkerState.DRAINED


def worker_document(record: WorkerRecord, *, for_operators: bool) -> dict[str, Any]:
    """Return a worker as JSON.

    Without `for_operators` it has no ids of jobs, no name of a key and no message of a model, which
    may belong to other tenants.
    """
    info, report = record.info, record.report
    crash: Mapping[str, Any] | None = report.last_crash and asdict(report.last_crash)
    if crash and not for_operators:
        crash = {**crash, "message": ""}
    return {
        "name": info.name,
        "state": record.state.value,
        "host": info.host,
        "pid": info.pid,
        "version": info.version,
        "region": info.region,
        "queues": info.queues,
        "models": info.models,
        "slots": info.slots,
        "running": record.running,
        "job_ids": record.job_ids if for_operators else (),
        "ready": report.ready,
        "memory_bytes": report.memory_bytes,
        "gpus": [asdict(gpu) for gpu in report.gpus],
        "last_crash": crash,
        "draining": record.draining,
        "draining_by": record.draining_by if for_operators else "",
        "lease_ms": info.lease_ms,
        "started_at_ms": record.started_at_ms,
        "seen_at_ms": record.seen_at_ms,
        "stopped_at_ms": record.stopped_at_ms,
    }
