"""Schedules as clients change them, with the rights of their API keys."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from headrace.core.errors import LimitError, ResourceNotFoundError
from headrace.jobs.access import CHANGE_SCOPES, ApiKey, Scope
from headrace.jobs.audit_log import AuditLog
from headrace.jobs.ledger import JobLedger, SubmitReply
from headrace.jobs.schedules import (
    SCHEDULES_MAX,
    JobSchedule,
    ScheduleSettings,
    check_schedule,
    read_scheduled_job,
)
from headrace.jobs.submission import Submission, SubmissionLimits

CheckSubmission = Callable[[ApiKey, Submission], None]
"""Raises the error with which `Submit` refuses a submission for its fields or its rights."""
Submit = Callable[[ApiKey, Submission], "Future[SubmitReply]"]


class Schedules:
    """The operations on schedules. Every operation first checks the client's key.

    A key changes the schedules of its own tenant. Keys with `operate` also see, pause, resume and delete
    those of others, which they name by `tenant`. Changes are recorded in the audit log.
    """

    def __init__(
        self,
        ledger: JobLedger,
        audit: AuditLog,
        limits: SubmissionLimits,
        *,
        check: CheckSubmission,
        submit: Submit,
    ) -> None:
        self._ledger = ledger
        self._audit = audit
        self._limits = limits
        self._check = check
        self._submit = submit
        self._changing = threading.Lock()

    def find(self, key: ApiKey, *, tenant: str | None = None) -> Sequence[JobSchedule]:
        """Return the schedules that the key may see, by tenant and name; with `tenant` those of one."""
        key.require(Scope.READ, Scope.SUBMIT)
        if key.visible_tenant is not None and tenant not in (None, key.tenant):
            return []
        return self._ledger.schedules(key.visible_tenant if tenant is None else tenant)

    def get(self, key: ApiKey, name: str, *, tenant: str | None = None) -> JobSchedule:
        """Return a schedule. Raise ResourceNotFoundError, also for one that the key may not see."""
        key.require(Scope.READ, Scope.SUBMIT)
        return self._ledger.schedule(_visible_tenant(key, name, tenant), name)

    def set(self, key: ApiKey, name: str, settings: ScheduleSettings) -> JobSchedule:
        """Create a schedule, or replace its settings. Its jobs have the rights of this key.

        Raise DataError and LimitError for invalid settings, the errors of a submission of the job with
        this key, and LimitError for too many schedules.
        """
        key.require(Scope.SUBMIT)
        submission = check_schedule(
            name, settings, self._ledger.now_ms(), self._limits, model_optional=key.endpoints is not None
        )
        self._check(key, submission)
        with self._changing:
            current = {each.name: each for each in self._ledger.schedules(key.tenant)}
            if name not in current and len(current) >= SCHEDULES_MAX:
                raise LimitError(f"{SCHEDULES_MAX} schedules exist already: delete one first")
            schedule = self._ledger.set_schedule(key.tenant, name, settings, by=key.name)
        if name not in current or current[name].version != schedule.version:
            self._record(key, "schedule.set", schedule)
        return schedule

    def set_paused(self, key: ApiKey, name: str, *, paused: bool, tenant: str | None = None) -> JobSchedule:
        """Pause or resume a schedule. Its jobs keep the rights of the key that set it.

        Raise ResourceNotFoundError.
        """
        key.require(*CHANGE_SCOPES)
        schedule = self._ledger.set_schedule_paused(_visible_tenant(key, name, tenant), name, paused=paused)
        self._record(key, "schedule.pause" if paused else "schedule.resume", schedule)
        return schedule

    def delete(self, key: ApiKey, name: str, *, tenant: str | None = None) -> None:
        """Delete a schedule; its jobs stay. Raise ResourceNotFoundError."""
        key.require(*CHANGE_SCOPES)
        schedule = self._ledger.schedule(_visible_tenant(key, name, tenant), name)
        self._ledger.delete_schedule(schedule.tenant, name)
        self._record(key, "schedule.delete", schedule)

    def run(self, key: ApiKey, name: str, *, idempotency_key: str = "") -> "Future[SubmitReply]":
        """Submit the job of a schedule of the key's tenant now, with the rights of this key.

        The schedule keeps its next time and its last run. Raise ResourceNotFoundError, and as a
        submission does.
        """
        key.require(Scope.SUBMIT)
        schedule = self._ledger.schedule(key.tenant, name)
        # A repeated request is another time, so that placeholders may have another value.
        found = self._ledger.get_by_key(key.tenant, idempotency_key)
        if found is not None:
            future: Future[SubmitReply] = Future()
            future.set_result(SubmitReply(found, created=False))
            return future
        submission = read_scheduled_job(
            name,
            schedule.settings,
            self._ledger.now_ms(),
            self._limits,
            idempotency_key=idempotency_key,
            model_optional=key.endpoints is not None,
        )
        return self._submit(key, submission)

    def _record(self, key: ApiKey, action: str, schedule: JobSchedule) -> None:
        details = {"tenant": schedule.tenant, "version": schedule.version}
        self._audit.record(key, action, schedule.name, details)


def _visible_tenant(key: ApiKey, name: str, tenant: str | None) -> str:
    """Return the tenant of a request. Raise ResourceNotFoundError for one that the key may not see."""
    if tenant is None or tenant == key.tenant:
        return key.tenant
    if key.visible_tenant is not None:
        raise ResourceNotFoundError("schedule", name)
    return tenant
