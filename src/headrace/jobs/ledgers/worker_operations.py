"""The operations on the registry of workers.

What workers state and report is JSON in text columns, so that old rows stay readable.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any, Final, TypeVar

import orjson
from typing_extensions import override

from headrace.core.errors import ResourceNotFoundError
from headrace.jobs.ledger import DAY_MS, NO_REPORT, REPORTED_MODELS_KEPT_DAYS, JobLedger
from headrace.jobs.ledgers.database import (
    DatabaseOperations,
    Row,
    Transaction,
    read_statement,
    reading,
    writing,
)
from headrace.jobs.ledgers.rows import clean, dump
from headrace.jobs.worker_registry import (
    JOB_IDS_MAX,
    WORKERS_KEPT_MS,
    WORKERS_MAX,
    GpuMemory,
    ModelCrash,
    WorkerInfo,
    WorkerOrders,
    WorkerRecord,
    WorkerReport,
)

_REGISTER: Final = read_statement("register_worker")
_REGISTER_MODELS: Final = read_statement("register_models")
_REPORTED_MODELS: Final = read_statement("reported_models")
_DELETE_OLD_REPORTS: Final = read_statement("delete_old_reports")
_DELETE_OLD_WORKERS: Final = read_statement("delete_old_workers")
_END: Final = read_statement("end_worker")
_RECORD_REPORT: Final = read_statement("record_report")
_ORDERS: Final = read_statement("worker_orders")
_WORKERS: Final = read_statement("workers")
_JOB_IDS: Final = read_statement("worker_job_ids")
_SET_DRAINING: Final = read_statement("set_worker_draining")
_MODELS_KEPT_MS: Final = REPORTED_MODELS_KEPT_DAYS * DAY_MS

_T = TypeVar("_T")


class WorkerOperations(DatabaseOperations, JobLedger):
    """The operations of a ledger on its workers."""

    @override
    @writing
    def register_worker(
        self, transaction: Transaction, info: WorkerInfo, report: WorkerReport = NO_REPORT
    ) -> None:
        transaction.run(
            _REGISTER,
            name=clean(info.name),
            start_id=clean(info.start_id),
            info=_dump(info),
            report=_dump(report),
            lease_ms=info.lease_ms,
        )
        pairs = {(clean(queue), clean(model)) for queue in info.queues for model in info.models}
        records = [{"worker_queue": queue, "worker_model": model} for queue, model in sorted(pairs)]
        transaction.run(_REGISTER_MODELS, records)
        transaction.run(_DELETE_OLD_REPORTS, kept_ms=_MODELS_KEPT_MS)
        transaction.run(_DELETE_OLD_WORKERS, kept_ms=WORKERS_KEPT_MS)

    @override
    @writing
    def end_worker(self, transaction: Transaction, name: str) -> None:
        transaction.run(_END, name=clean(name))

    @override
    @reading
    def worker_orders(self, transaction: Transaction, worker: str) -> WorkerOrders:
        ids = {row[0] for row in transaction.run(_ORDERS, worker=clean(worker))}
        return WorkerOrders(frozenset(ids - {""}), "" in ids)

    @override
    @reading
    def workers(self, transaction: Transaction) -> list[WorkerRecord]:
        return sorted(_read_workers(transaction), key=lambda record: record.info.name)

    @override
    @reading
    def worker(self, transaction: Transaction, name: str) -> WorkerRecord:
        return _read_worker(transaction, name)

    @override
    @writing
    def set_worker_draining(
        self, transaction: Transaction, name: str, *, draining: bool, by: str = ""
    ) -> WorkerRecord:
        done_by = clean(by) if draining else ""
        transaction.run(_SET_DRAINING, name=clean(name), draining=draining, done_by=done_by)
        record = _read_worker(transaction, name)
        transaction.notice.queues.update(record.info.queues)
        return record

    @override
    @reading
    def reported_models(self, transaction: Transaction) -> Mapping[str, frozenset[str]]:
        found: dict[str, set[str]] = {}
        for queue, model in transaction.run(_REPORTED_MODELS, kept_ms=_MODELS_KEPT_MS):
            found.setdefault(queue, set()).add(model)
        return {queue: frozenset(models) for queue, models in found.items()}


def record_report(transaction: Transaction, worker: str, report: WorkerReport) -> tuple[bool, bool]:
    """Record a heartbeat of a worker. Return True, True if it is registered, and is to drain."""
    rows = transaction.run(_RECORD_REPORT, worker=clean(worker), report=_dump(report))
    return bool(rows), bool(rows and rows[0][0])


def _read_workers(transaction: Transaction, name: str = "") -> list[WorkerRecord]:
    rows = transaction.run(_WORKERS, name=name, kept_ms=WORKERS_KEPT_MS, row_limit=WORKERS_MAX)
    return list(map(_record_of, rows))


def _read_worker(transaction: Transaction, name: str) -> WorkerRecord:
    cleaned = clean(name)
    found = _read_workers(transaction, cleaned) if cleaned else []
    if not found:
        raise ResourceNotFoundError("worker", name)
    ids = transaction.run(_JOB_IDS, worker=cleaned, row_limit=JOB_IDS_MAX)
    return replace(found[0], job_ids=tuple(row[0] for row in ids))


def _record_of(row: Row) -> WorkerRecord:
    info, report, running, draining, draining_by, started_at_ms, seen_at_ms, stopped_at_ms, read_at_ms = row
    return WorkerRecord(
        info=_load(WorkerInfo, orjson.loads(info), queues=tuple, models=tuple),
        report=_load(WorkerReport, orjson.loads(report), gpus=_gpus_of, last_crash=_crash_of),
        running=running,
        draining=bool(draining),
        draining_by=draining_by,
        started_at_ms=started_at_ms,
        seen_at_ms=seen_at_ms,
        stopped_at_ms=stopped_at_ms,
        read_at_ms=read_at_ms,
    )


def _gpus_of(values: Sequence[Mapping[str, Any]]) -> tuple[GpuMemory, ...]:
    return tuple(_load(GpuMemory, value) for value in values)


def _crash_of(value: Mapping[str, Any] | None) -> ModelCrash | None:
    return None if value is None else _load(ModelCrash, value)


def _load(kind: type[_T], values: Mapping[str, Any], **convert: Any) -> _T:
    """Return an object of JSON values. Fields of newer programs are dropped."""
    names = {field.name for field in fields(kind)}  # pyright: ignore[reportArgumentType] - dataclasses
    known = {name: value for name, value in values.items() if name in names}
    return kind(**known | {name: read(known[name]) for name, read in convert.items() if name in known})


def _dump(value: WorkerInfo | WorkerReport) -> str:
    return dump(asdict(value)) or "{}"
