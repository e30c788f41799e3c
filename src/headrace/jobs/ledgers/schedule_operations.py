"""The operations on schedules. The times of a schedule are computed in the transaction, from its time."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from typing_extensions import override

from headrace.core.errors import ResourceNotFoundError
from headrace.jobs.ledger import JobLedger
from headrace.jobs.ledgers.database import (
    DatabaseOperations,
    Row,
    Transaction,
    read_now_ms,
    read_statement,
    reading,
    writing,
)
from headrace.jobs.ledgers.rows import clean
from headrace.jobs.schedules import (
    JobSchedule,
    ScheduleClaim,
    ScheduleSettings,
    claim_due,
    dump_schedule_settings,
    load_schedule_settings,
    next_time_ms,
    time_after_run_ms,
)

_SCHEDULES: Final = read_statement("schedules")
_SCHEDULE: Final = read_statement("schedule")
_SET: Final = read_statement("set_schedule")
_SET_PAUSED: Final = read_statement("set_schedule_paused")
_DELETE: Final = read_statement("delete_schedule")
_DUE: Final = read_statement("due_schedules")
_CLAIM: Final = read_statement("claim_schedules")
_RECORD_RUN: Final = read_statement("record_run")


class ScheduleOperations(DatabaseOperations, JobLedger):
    """The operations of a ledger on schedules."""

    @override
    @reading
    def schedules(self, transaction: Transaction, tenant: str | None = None) -> list[JobSchedule]:
        wanted = None if tenant is None else clean(tenant)
        return [_schedule_of(row) for row in transaction.run(_SCHEDULES, tenant=wanted)]

    @override
    @reading
    def schedule(self, transaction: Transaction, tenant: str, name: str) -> JobSchedule:
        return _require(transaction, tenant, name)

    @override
    @writing
    def set_schedule(
        self, transaction: Transaction, tenant: str, name: str, settings: ScheduleSettings, *, by: str = ""
    ) -> JobSchedule:
        found = _find(transaction, tenant, name)
        if found is not None and (found.settings, found.changed_by) == (settings, clean(by)):
            return found
        transaction.run(
            _SET,
            tenant=clean(tenant),
            name=clean(name),
            settings=clean(dump_schedule_settings(settings)),
            changed_by=clean(by),
            next_at_ms=next_time_ms(settings, read_now_ms(transaction)),
        )
        return _require(transaction, tenant, name)

    @override
    @writing
    def set_schedule_paused(
        self, transaction: Transaction, tenant: str, name: str, *, paused: bool
    ) -> JobSchedule:
        found = _require(transaction, tenant, name)
        if found.paused == paused:
            return found
        next_at_ms = None if paused else next_time_ms(found.settings, read_now_ms(transaction))
        transaction.run(_SET_PAUSED, tenant=found.tenant, name=found.name, next_at_ms=next_at_ms)
        return replace(found, next_at_ms=next_at_ms)

    @override
    @writing
    def delete_schedule(self, transaction: Transaction, tenant: str, name: str) -> bool:
        return bool(transaction.run(_DELETE, tenant=clean(tenant), name=clean(name)))

    @override
    @writing
    def claim_schedules(self, transaction: Transaction, limit: int, lease_ms: int) -> list[ScheduleClaim]:
        claims = [_claim_of(row) for row in transaction.run(_DUE, row_limit=limit)]
        records: list[dict[str, Any]] = [
            {
                "of_tenant": claim.schedule.tenant,
                "due_name": claim.schedule.name,
                "run_at_ms": claim.at_ms,
                "missed_times": claim.schedule.missed,
            }
            for claim in claims
        ]
        if records:
            transaction.run(_CLAIM, records, lease_ms=lease_ms)
        return claims

    @override
    @writing
    def record_run(
        self, transaction: Transaction, claimed: JobSchedule, *, job_id: str = "", error: str = ""
    ) -> bool:
        at_ms = claimed.next_at_ms
        assert at_ms is not None, "a claimed schedule has the time of its run"
        return bool(
            transaction.run(
                _RECORD_RUN,
                tenant=claimed.tenant,
                name=claimed.name,
                version=claimed.version,
                changed_at_ms=claimed.changed_at_ms,
                at_ms=at_ms,
                next_at_ms=time_after_run_ms(claimed.settings, at_ms),
                job_id=job_id,
                error=clean(error),
            )
        )


def _find(transaction: Transaction, tenant: str, name: str) -> JobSchedule | None:
    rows = transaction.run(_SCHEDULE, tenant=clean(tenant), name=clean(name))
    return _schedule_of(rows[0]) if rows else None


def _require(transaction: Transaction, tenant: str, name: str) -> JobSchedule:
    found = _find(transaction, tenant, name)
    if found is None:
        raise ResourceNotFoundError("schedule", name)
    return found


def _claim_of(row: Row) -> ScheduleClaim:
    *columns, claimed_until_ms, claimed_at_ms = row
    return claim_due(_schedule_of(columns), claimed_at_ms, claimed_before=claimed_until_ms > 0)


def _schedule_of(columns: Sequence[Any]) -> JobSchedule:
    tenant, name, settings, *others = columns
    return JobSchedule(tenant, name, load_schedule_settings(settings), *others)
