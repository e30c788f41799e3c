"""Ledgers with broken schedules, and the check that finds each."""

from dataclasses import replace

from headrace.core.errors import DataError
from headrace.jobs.schedules import JobSchedule
from headrace.testing import MemoryJobLedger
from testing.race_window import RaceWindow


class SchedulesOfAllTenants(MemoryJobLedger):
    def schedules(self, tenant=None):
        return super().schedules()


class SchedulesKeepTheirTimes(MemoryJobLedger):
    def set_schedule(self, tenant, name, settings, *, by=""):
        found = self._table.schedules.get((tenant, name))
        changed = super().set_schedule(tenant, name, settings, by=by)
        return self._put_schedule(replace(changed, next_at_ms=found.next_at_ms)) if found else changed


class EveryScheduleVersion(MemoryJobLedger):
    def set_schedule(self, tenant, name, settings, *, by=""):
        return self._put_schedule(
            replace(super().set_schedule(tenant, name, settings, by=by), version=self.now_ms())
        )


class StoresInvalidSchedules(MemoryJobLedger):
    def set_schedule(self, tenant, name, settings, *, by=""):
        try:
            return super().set_schedule(tenant, name, settings, by=by)
        except DataError:
            self._put_schedule(JobSchedule(tenant, name, settings))
            raise


class DeletesSchedulesOfAllTenants(MemoryJobLedger):
    def delete_schedule(self, tenant, name):
        with self._locked() as table:
            found = [key for key in table.schedules if key[1] == name]
            for key in found:
                del table.schedules[key]
            return bool(found)


class ChangesResumeSchedules(MemoryJobLedger):
    def set_schedule(self, tenant, name, settings, *, by=""):
        changed = super().set_schedule(tenant, name, settings, by=by)
        return self.set_schedule_paused(tenant, name, paused=False) if changed.paused else changed


class RunsTimesOfPauses(MemoryJobLedger):
    def set_schedule_paused(self, tenant, name, *, paused):
        before = self.schedule(tenant, name)
        changed = super().set_schedule_paused(tenant, name, paused=paused)
        return (
            changed
            if before.paused == paused or paused
            else self._put_schedule(replace(changed, next_at_ms=1))
        )


class ClaimsSchedulesAgain(MemoryJobLedger):
    def claim_schedules(self, limit, lease_ms):
        return super().claim_schedules(limit, 0)


class SchedulesDueEarly(MemoryJobLedger):
    def now_ms(self):
        return super().now_ms() + 1


class RunsWithoutJobsForgetTheLast(MemoryJobLedger):
    def record_run(self, claimed, *, job_id="", error=""):
        recorded = super().record_run(claimed, job_id=job_id, error=error)
        key = (claimed.tenant, claimed.name)
        self._table.schedules[key] = replace(self._table.schedules[key], last_job_id=job_id)
        return recorded


class RunsEveryMissedTime(MemoryJobLedger):
    def claim_schedules(self, limit, lease_ms):
        table = self._table
        table.claimed_until_ms = dict.fromkeys(table.schedules, 0) | table.claimed_until_ms
        return super().claim_schedules(limit, lease_ms)


class LostRunsCollapse(MemoryJobLedger):
    def claim_schedules(self, limit, lease_ms):
        until = self._table.claimed_until_ms
        self._table.claimed_until_ms = {key: at for key, at in until.items() if at > self.now_ms()}
        return super().claim_schedules(limit, lease_ms)


class RecordsLateRuns(MemoryJobLedger):
    def record_run(self, claimed, *, job_id="", error=""):
        with self._locked() as table:
            found = table.schedules.get((claimed.tenant, claimed.name))
            if found and found.version == claimed.version:
                table.schedules[found.tenant, found.name] = replace(found, last_at_ms=None)
            return super().record_run(claimed, job_id=job_id, error=error)


class RunsOfAnyVersion(MemoryJobLedger):
    def record_run(self, claimed, *, job_id="", error=""):
        found = self._table.schedules.get((claimed.tenant, claimed.name), claimed)
        same = replace(claimed, version=found.version, changed_at_ms=found.changed_at_ms)
        return super().record_run(same, job_id=job_id, error=error)


class RunsResumeSchedules(MemoryJobLedger):
    def record_run(self, claimed, *, job_id="", error=""):
        found = self.schedule(claimed.tenant, claimed.name)
        self._put_schedule(replace(found, next_at_ms=claimed.next_at_ms))
        return super().record_run(claimed, job_id=job_id, error=error)


class ChangesKeepClaims(MemoryJobLedger):
    def _put_schedule(self, schedule):
        until = dict(self._table.claimed_until_ms)
        stored = super()._put_schedule(schedule)
        if schedule.last_at_ms is None or schedule.next_at_ms is None:
            self._table.claimed_until_ms = until
        return stored


class ClaimsSchedulesByName(MemoryJobLedger):
    def schedules(self, tenant=None):
        found = super().schedules(tenant)
        return [replace(each, next_at_ms=each.next_at_ms and found[0].next_at_ms) for each in found]


class ClaimsSchedulesTwice(MemoryJobLedger):
    """Reads the due schedules and claims them in two transactions."""

    window = RaceWindow()

    def claim_schedules(self, limit, lease_ms):
        with self._locked() as table:
            until = dict(table.claimed_until_ms)
        self.window.open()
        with self._locked() as table:
            table.claimed_until_ms = until
            return super().claim_schedules(limit, lease_ms)


class ClaimsOfOneLedger(MemoryJobLedger):
    def claim_schedules(self, limit, lease_ms):
        until, self._table.claimed_until_ms = self._table.claimed_until_ms, {}
        try:
            return super().claim_schedules(limit, lease_ms)
        finally:
            self._table.claimed_until_ms = until


BROKEN_SCHEDULES = [
    (SchedulesOfAllTenants, "check_set_schedule"),
    (SchedulesKeepTheirTimes, "check_set_schedule"),
    (EveryScheduleVersion, "check_set_schedule"),
    (StoresInvalidSchedules, "check_invalid_schedule"),
    (DeletesSchedulesOfAllTenants, "check_deleted_schedule"),
    (ChangesResumeSchedules, "check_paused_schedule"),
    (RunsTimesOfPauses, "check_paused_schedule"),
    (ClaimsSchedulesAgain, "check_schedule_claim"),
    (SchedulesDueEarly, "check_schedule_claim"),
    (RunsWithoutJobsForgetTheLast, "check_schedule_claim"),
    (RunsEveryMissedTime, "check_missed_times"),
    (LostRunsCollapse, "check_lost_schedule_claim"),
    (RecordsLateRuns, "check_lost_schedule_claim"),
    (RunsOfAnyVersion, "check_schedule_changed_during_run"),
    (RunsResumeSchedules, "check_schedule_paused_during_run"),
    (ChangesKeepClaims, "check_change_ends_schedule_claim"),
    (ClaimsSchedulesByName, "check_claimed_schedules_in_order"),
    (ClaimsSchedulesTwice, "check_schedule_race"),
    (ClaimsOfOneLedger, "check_schedules_survive_restart"),
]
