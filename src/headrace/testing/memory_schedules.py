"""The schedules of the ledger in memory."""

from abc import ABC
from dataclasses import replace

from typing_extensions import override

from headrace.core.errors import ResourceNotFoundError
from headrace.jobs.schedules import (
    JobSchedule,
    ScheduleClaim,
    ScheduleSettings,
    claim_due,
    next_time_ms,
    time_after_run_ms,
)
from headrace.testing.memory_jobs import MemoryJobs


class MemorySchedules(MemoryJobs, ABC):
    """The schedules of a ledger in memory."""

    @override
    def schedules(self, tenant: str | None = None) -> list[JobSchedule]:
        with self._locked() as table:
            found = [each for each in table.schedules.values() if tenant in (None, each.tenant)]
            return sorted(found, key=lambda each: (each.tenant, each.name))

    @override
    def schedule(self, tenant: str, name: str) -> JobSchedule:
        with self._locked() as table:
            if (tenant, name) not in table.schedules:
                raise ResourceNotFoundError("schedule", name)
            return table.schedules[tenant, name]

    @override
    def set_schedule(
        self, tenant: str, name: str, settings: ScheduleSettings, *, by: str = ""
    ) -> JobSchedule:
        with self._locked() as table:
            found = table.schedules.get((tenant, name))
            if found is not None and (found.settings, found.changed_by) == (settings, by):
                return found
            now_ms = self.now_ms()
            next_at_ms = next_time_ms(settings, now_ms)
            changed = JobSchedule(tenant, name, settings, 1, now_ms, by, next_at_ms)
            if found is not None:
                changed = replace(
                    found,
                    settings=settings,
                    version=found.version + 1,
                    changed_at_ms=now_ms,
                    changed_by=by,
                    next_at_ms=None if found.paused else next_at_ms,
                )
            return self._put_schedule(changed)

    @override
    def set_schedule_paused(self, tenant: str, name: str, *, paused: bool) -> JobSchedule:
        with self._locked():
            found = self.schedule(tenant, name)
            if found.paused == paused:
                return found
            next_at_ms = None if paused else next_time_ms(found.settings, self.now_ms())
            return self._put_schedule(replace(found, next_at_ms=next_at_ms))

    @override
    def delete_schedule(self, tenant: str, name: str) -> bool:
        with self._locked() as table:
            table.claimed_until_ms.pop((tenant, name), None)
            return table.schedules.pop((tenant, name), None) is not None

    @override
    def claim_schedules(self, limit: int, lease_ms: int) -> list[ScheduleClaim]:
        with self._locked() as table:
            now_ms = self.now_ms()
            due = [
                each
                for each in self.schedules()
                if each.next_at_ms is not None
                and each.next_at_ms <= now_ms
                and table.claimed_until_ms.get((each.tenant, each.name), 0) <= now_ms
            ]
            claims: list[ScheduleClaim] = []
            for schedule in sorted(due, key=lambda each: each.next_at_ms or 0)[:limit]:
                place = (schedule.tenant, schedule.name)
                claim = claim_due(schedule, now_ms, claimed_before=place in table.claimed_until_ms)
                table.schedules[place] = claim.schedule
                table.claimed_until_ms[place] = now_ms + lease_ms
                claims.append(claim)
            return claims

    @override
    def record_run(self, claimed: JobSchedule, *, job_id: str = "", error: str = "") -> bool:
        assert claimed.next_at_ms is not None, "a claimed schedule has the time of its run"
        with self._locked() as table:
            found = table.schedules.get((claimed.tenant, claimed.name))
            if found is None or (found.version, found.changed_at_ms) != (
                claimed.version,
                claimed.changed_at_ms,
            ):
                return False
            is_claimed = found.next_at_ms == claimed.next_at_ms
            if not is_claimed and (found.last_at_ms or 0) >= claimed.next_at_ms:
                return False
            recorded = replace(
                found,
                last_at_ms=claimed.next_at_ms,
                last_job_id=job_id or found.last_job_id,
                last_error=error,
            )
            if is_claimed:
                self._put_schedule(
                    replace(recorded, next_at_ms=time_after_run_ms(found.settings, claimed.next_at_ms))
                )
            else:
                table.schedules[found.tenant, found.name] = recorded
            return True

    def _put_schedule(self, schedule: JobSchedule) -> JobSchedule:
        """Store a schedule whose next time has changed, which ends its claim."""
        self._table.claimed_until_ms.pop((schedule.tenant, schedule.name), None)
        self._table.schedules[schedule.tenant, schedule.name] = schedule
        return schedule
