"""The registry of workers of the ledger in memory."""

from abc import ABC
from collections.abc import Mapping
from dataclasses import replace
from itertools import product

from typing_extensions import override

from headrace.core.errors import ResourceNotFoundError
from headrace.jobs.job import Job
from headrace.jobs.ledger import DAY_MS, NO_REPORT, REPORTED_MODELS_KEPT_DAYS
from headrace.jobs.state import JobState
from headrace.jobs.worker_registry import (
    JOB_IDS_MAX,
    WORKERS_KEPT_MS,
    WORKERS_MAX,
    WorkerInfo,
    WorkerOrders,
    WorkerRecord,
    WorkerReport,
)
from headrace.testing.memory_jobs import MemoryJobs


class MemoryWorkers(MemoryJobs, ABC):
    """The registry of workers of a ledger in memory."""

    @override
    def register_worker(self, info: WorkerInfo, report: WorkerReport = NO_REPORT) -> None:
        with self._locked() as table:
            now_ms = self.now_ms()
            record = table.workers.get(info.name)
            if record is None or record.info.start_id != info.start_id:
                record = WorkerRecord(info, report, 0, False, "", now_ms, now_ms, None, now_ms)
            table.workers[info.name] = replace(
                record, info=info, report=report, seen_at_ms=now_ms, stopped_at_ms=None
            )
            table.workers = {name: kept for name, kept in table.workers.items() if self._is_kept(kept)}
            table.reported |= dict.fromkeys(product(info.queues, info.models), now_ms)

    @override
    def end_worker(self, name: str) -> None:
        with self._locked() as table:
            record = table.workers.get(name)
            if record is not None and record.stopped_at_ms is None:
                table.workers[name] = replace(record, stopped_at_ms=self.now_ms())

    @override
    def worker_orders(self, worker: str) -> WorkerOrders:
        with self._locked() as table:
            record = table.workers.get(worker)
            cancelled = frozenset(job.id for job in self.list_running(worker) if job.cancel_requested)
            return WorkerOrders(cancelled, record is not None and record.draining)

    @override
    def workers(self) -> list[WorkerRecord]:
        with self._locked() as table:
            kept = list(filter(self._is_kept, table.workers.values()))
            latest = sorted(kept, key=_list_order)[:WORKERS_MAX]
            return [
                replace(record, running=len(self.list_running(record.info.name)), read_at_ms=self.now_ms())
                for record in sorted(latest, key=lambda record: record.info.name)
            ]

    @override
    def worker(self, name: str) -> WorkerRecord:
        with self._locked() as table:
            record = table.workers.get(name)
            if record is None or not self._is_kept(record):
                raise ResourceNotFoundError("worker", name)
            ids = sorted(job.id for job in self.list_running(name))
            return replace(
                record, running=len(ids), read_at_ms=self.now_ms(), job_ids=tuple(ids[:JOB_IDS_MAX])
            )

    @override
    def set_worker_draining(self, name: str, *, draining: bool, by: str = "") -> WorkerRecord:
        with self._locked() as table:
            self.worker(name)
            record = table.workers[name]
            table.workers[name] = replace(record, draining=draining, draining_by=by if draining else "")
            for queue in record.info.queues:
                self._notify(queue)
            return self.worker(name)

    @override
    def reported_models(self) -> Mapping[str, frozenset[str]]:
        with self._locked() as table:
            first_ms = self.now_ms() - REPORTED_MODELS_KEPT_DAYS * DAY_MS
            kept = [pair for pair, at_ms in table.reported.items() if at_ms >= first_ms]
            return {queue: frozenset(m for q, m in kept if q == queue) for queue, _ in kept}

    @override
    def list_running(self, worker: str) -> list[Job]:
        with self._locked() as table:
            jobs = table.jobs.values()
            return [job for job in jobs if job.state is JobState.RUNNING and job.worker == worker]

    def _record_report(self, worker: str, report: WorkerReport) -> tuple[bool, bool]:
        """Record a heartbeat. Return True, True if the worker is registered, and is to drain."""
        record = self._table.workers.get(worker)
        if record is None or record.stopped_at_ms is not None:
            return False, False
        self._table.workers[worker] = replace(record, report=report, seen_at_ms=self.now_ms())
        return True, record.draining

    def _is_kept(self, record: WorkerRecord) -> bool:
        lost_at_ms = record.seen_at_ms + record.info.lease_ms
        ended_at_ms = lost_at_ms if record.stopped_at_ms is None else record.stopped_at_ms
        return ended_at_ms >= self.now_ms() - WORKERS_KEPT_MS


def _list_order(record: WorkerRecord) -> tuple[bool, int, str]:
    """Return the place of a worker in the list: stopped ones last, then by the last heartbeat."""
    return record.stopped_at_ms is not None, -record.seen_at_ms, record.info.name
