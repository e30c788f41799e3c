"""Each broken job ledger fails the check of the guarantee that it breaks."""

from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from math import inf

import pytest

from cases import for_each
from headrace.core.errors import JobLedgerUnavailableError, JobNotFoundError, JobStateError, QueueFullError
from headrace.jobs.actions import ActionReply, JobAction
from headrace.jobs.audit import AuditPage
from headrace.jobs.counters import JobCounters, JobGroups
from headrace.jobs.history import HistoryEvent
from headrace.jobs.job import Failed, Released
from headrace.jobs.ledger import (
    DAY_MS,
    NO_REPORT,
    HeartbeatReply,
    MaintenanceCounts,
    Page,
    QueueCounts,
    SubmitReply,
    UsageReply,
)
from headrace.jobs.state import Cause, JobEvent, JobState
from headrace.jobs.worker_registry import WorkerInfo, WorkerRecord
from headrace.testing import (
    JOB_LEDGER_CHECKS,
    LedgerBench,
    ManualWallClock,
    MemoryJobLedger,
    job_checks,
    job_ledger_memory,
    memory_jobs,
)
from headrace.testing.job_checks import bench, wakeups
from headrace.testing.job_rules import apply_event
from testing.broken_pools import BROKEN_POOLS
from testing.broken_schedules import BROKEN_SCHEDULES
from testing.race_window import RaceWindow

_CHECKS = {check.__name__: check for check in JOB_LEDGER_CHECKS}


class NotFenced(MemoryJobLedger):
    def _running(self, job_id, lease):
        job = self._table.jobs.get(job_id)
        return job if job and job.state is JobState.RUNNING else None


class EndedJobsSettleAgain(MemoryJobLedger):
    def _settle(self, settlement):
        job = self._table.jobs.get(settlement.job_id)
        if job and job.lease == settlement.lease and job.state is JobState.PENDING:
            self._table.jobs[job.id] = replace(job, state=JobState.RUNNING)
        return super()._settle(settlement)


class HeartbeatsDoNotExtend(MemoryJobLedger):
    def _heartbeat(self, job, heartbeat, lease_ms):
        super()._heartbeat(job, heartbeat, lease_ms)
        sent = self._table.jobs[job.id]
        self._table.jobs[job.id] = replace(sent, lease_until_ms=job.lease_until_ms)


class HeartbeatsReportNothing(MemoryJobLedger):
    def heartbeat(self, worker, heartbeats, lease_ms, report=NO_REPORT):
        reply = super().heartbeat(worker, heartbeats, lease_ms, report)
        return HeartbeatReply(reply.lost, frozenset(), frozenset())


class PrioritiesIgnored(MemoryJobLedger):
    def _rank_ms(self, job):
        return job.due_at_ms


class NeverAges(MemoryJobLedger):
    def _queue(self, name):
        return replace(super()._queue(name), ageing_s=inf)


class BlocksNothing(MemoryJobLedger):
    def _submit(self, new):
        with_after = super()._submit(new)
        if isinstance(with_after, SubmitReply) and with_after.job.state is JobState.BLOCKED:
            self._table.jobs[with_after.job.id] = replace(with_after.job, state=JobState.PENDING)
            self._table.ranks_ms[with_after.job.id] = 0
            del self._table.waits[with_after.job.id]
        return with_after


class NeverUnblocks(MemoryJobLedger):
    def _end_dependents(self, job):
        if job.state is not JobState.COMPLETED:
            super()._end_dependents(job)


class UnblocksAtFirst(MemoryJobLedger):
    def _end_dependency(self, job, before):
        self._table.waits[job.id] &= {before.id}
        return super()._end_dependency(job, before)


class UnblocksAtResults(MemoryJobLedger):
    def _put(self, job, cause):
        super()._put(job, cause)
        if job.state is JobState.PUBLISHING:
            self._end_dependents(replace(job, state=JobState.COMPLETED))


class UnblocksAtAnyEnd(MemoryJobLedger):
    def _end_dependency(self, job, before):
        return super()._end_dependency(job, replace(before, state=JobState.COMPLETED))


class UnblocksQuietly(MemoryJobLedger):
    def _end_dependents(self, job):
        listeners, self._table.listeners = self._table.listeners, []
        super()._end_dependents(job)
        self._table.listeners = listeners


class UnblocksWithoutRecord(MemoryJobLedger):
    def _record(self, job, event, **values):
        if event is not HistoryEvent.UNBLOCKED:
            super()._record(job, event, **values)


class UnblocksAtOnce(MemoryJobLedger):
    def _end_dependency(self, job, before):
        after = super()._end_dependency(job, before)
        return after and replace(after, due_at_ms=self.now_ms())


class FailsNobody(MemoryJobLedger):
    def _end_dependents(self, job):
        if job.state is JobState.COMPLETED:
            super()._end_dependents(job)


class FailsNextOnly(MemoryJobLedger):
    def _end_dependents(self, job):
        if not (job.failure and job.failure.cause is Cause.PREREQUISITE):
            super()._end_dependents(job)

    def _put(self, job, cause):
        super()._put(job, cause)
        if job.failure and job.failure.cause is Cause.PREREQUISITE:
            for waits in self._table.waits.values():
                waits.discard(job.id)


class FailsWithoutReason(MemoryJobLedger):
    def _end_dependency(self, job, before):
        return super()._end_dependency(job, replace(before, id="?") if before.failure else before)


class ChangesFewDependents(MemoryJobLedger):
    changed = 0

    def _end_dependency(self, job, before):
        self.changed += 1
        return super()._end_dependency(job, before) if self.changed <= 500 else None


class ForgetsWaitsOfRequeues(MemoryJobLedger):
    def requeue(self, job_id, *, tenant=None, by=""):
        job = super().requeue(job_id, tenant=tenant, by=by)
        if job.state is JobState.BLOCKED:
            self._put(apply_event(job, JobEvent.UNBLOCK, self.now_ms()), "")
        return self._table.jobs[job_id]


class RetriesInAnyOrder(MemoryJobLedger):
    def _prerequisites_first(self, job_ids):
        return list(job_ids)


class CancelsInAnyOrder(MemoryJobLedger):
    def _prerequisites_first(self, job_ids):
        return list(job_ids)[::-1]


class BlockedJobsNeverExpire(MemoryJobLedger):
    def _overdue(self):
        return [job for job in super()._overdue() if job.state is JobState.PENDING]


class CountsNoBlockedJobs(MemoryJobLedger):
    def counts(self, queue, *, tenant=None):
        return replace(super().counts(queue, tenant=tenant), blocked=0)


class ChecksPrerequisitesFirst(MemoryJobLedger):
    def _submit(self, new):
        for job_id in new.after:
            if job_id not in self._table.jobs:
                return JobNotFoundError(job_id)
        return super()._submit(new)


class BlockedJobsFillQueues(MemoryJobLedger):
    def _submit(self, new):
        full = super()._submit(replace(new, after=())) if new.after and not new.idempotency_key else None
        if isinstance(full, SubmitReply):
            self._remove(full.job)
        return full if isinstance(full, QueueFullError) else super()._submit(new)


class EndsInTwoTransactions(MemoryJobLedger):
    """Reads what a blocked job waits for, and writes it in another transaction."""

    window = RaceWindow()

    def _end_dependency(self, job, before):
        waits = set(self._table.waits[job.id])
        self._table.lock.release()
        try:
            self.window.open()
        finally:
            self._table.lock.acquire()
        self._table.waits[job.id] = waits
        return super()._end_dependency(job, before)


class SubmitsInTwoTransactions(MemoryJobLedger):
    """Reads the state of a prerequisite, and writes the dependency in another transaction."""

    window = RaceWindow()

    def settle_and_claim(self, settlements, claim=None):
        if settlements:
            self.window.open()
        return super().settle_and_claim(settlements, claim)

    def _block(self, job_id, waits):
        self._table.lock.release()
        try:
            if waits:
                self.window.open()
        finally:
            self._table.lock.acquire()
        super()._block(job_id, waits)


class SharesNothingFairly(MemoryJobLedger):
    def _candidate(self, job):
        candidate = super()._candidate(job)
        return replace(candidate, lane=replace(candidate.lane, tenant=""))


class ForgetsTurns(MemoryJobLedger):
    def _claim(self, claim):
        self._shares.clear()
        return super()._claim(claim)


class WeightsIgnored(MemoryJobLedger):
    def _claim_state(self):
        return replace(super()._claim_state(), weights={})


class LimitsIgnored(MemoryJobLedger):
    def _claim_state(self):
        return replace(super()._claim_state(), capacity={})


class LimitsPerVersion(MemoryJobLedger):
    def _claim_state(self):
        state = super()._claim_state()
        return replace(
            state, capacity={key: 9 if key[1] == "m" else most for key, most in state.capacity.items()}
        )


class ClaimsBelowLimitsTwice(MemoryJobLedger):
    """Reads the state of limits and claims in two transactions."""

    window = RaceWindow()

    def settle_and_claim(self, settlements, claim=None):
        if claim is None:
            return super().settle_and_claim(settlements)
        with self._locked():
            state = self._claim_state()
        self.window.open()
        with self._locked():
            self._claim_state = lambda: state
            try:
                return super().settle_and_claim(settlements, claim)
            finally:
                del self._claim_state


class ChoosesOnce(MemoryJobLedger):
    def _choose(self, queue, waiting, most, taken):
        return replace(super()._choose(queue, waiting, most, taken), stopped=True)


class EndpointsWithoutVersions(MemoryJobLedger):
    def _add_version(self, name, settings, by, *, deleted):
        self._table.endpoints.pop(name, None)
        return super()._add_version(name, settings, by, deleted=deleted)


class EveryEndpointVersion(MemoryJobLedger):
    def set_endpoint(self, name, settings, *, by=""):
        super().set_endpoint(name, settings, by=by)
        return self._add_version(name, settings, by, deleted=False)


class AllEndpointVersionsKept(MemoryJobLedger):
    def endpoint_versions(self, name):
        found = super().endpoint_versions(name)
        return [*found, *found[-1:]]


class DeletedEndpointsForgotten(MemoryJobLedger):
    def delete_endpoint(self, name, *, by=""):
        return self._table.endpoints.pop(name, None) is not None


class EndpointLimitsIgnored(MemoryJobLedger):
    def set_endpoint(self, name, settings, *, by=""):
        return super().set_endpoint(name, replace(settings, running_max=None), by=by)


class OwnRetentionIgnored(MemoryJobLedger):
    def _submit(self, new):
        return super()._submit(replace(new, keep_s=None))


class ChangesEndpointTwice(MemoryJobLedger):
    """Reads the versions of an endpoint and adds one in two transactions."""

    window = RaceWindow()

    def set_endpoint(self, name, settings, *, by=""):
        with self._locked():
            versions = self.endpoint_versions(name)
        self.window.open()
        with self._locked() as table:
            table.endpoints[name] = versions
            return super().set_endpoint(name, settings, by=by)


class QueueOrderIgnored(MemoryJobLedger):
    def _pending(self, queues):
        return super()._pending(sorted(queues))


class OverdueJobsClaimed(MemoryJobLedger):
    def _claimable(self, claim):
        return [job for job in self._pending(claim.queues) if job.due_at_ms <= self.now_ms()]


class DelayedJobsClaimed(MemoryJobLedger):
    def _claimable(self, claim):
        return self._pending(claim.queues)


class RegionsIgnored(MemoryJobLedger):
    def _claimable(self, claim):
        return super()._claimable(replace(claim, region=""))


class OtherRegionsNever(MemoryJobLedger):
    def _claimable(self, claim):
        return super()._claimable(replace(claim, other_regions=not claim.region))


class OtherRegionsAlike(MemoryJobLedger):
    def _claimable(self, claim):
        return super()._claimable(replace(claim, region="") if claim.other_regions else claim)


class OnlyOwnRegion(MemoryJobLedger):
    def _claimable(self, claim):
        found = super()._claimable(claim)
        return [job for job in found if job.spec.region] if claim.region else found


class DueTimesOfAllRegions(MemoryJobLedger):
    def _due_in_ms(self, claim):
        return super()._due_in_ms(replace(claim, region=""))


class CountsNoRegions(MemoryJobLedger):
    def counts(self, queue):
        return replace(super().counts(queue), due_by_region={})


class NeverAlone(MemoryJobLedger):
    def _claimable(self, claim):
        return [replace(job, crashes=0) for job in super()._claimable(claim)]


class NoDueTime(MemoryJobLedger):
    def _due_in_ms(self, claim):
        return None


class KeysShared(MemoryJobLedger):
    def _submit(self, new):
        return super()._submit(replace(new, tenant="") if new.idempotency_key else new)


class DigestsIgnored(MemoryJobLedger):
    def _submit(self, new):
        return super()._submit(replace(new, body_digest=""))


class KeysForgotten(MemoryJobLedger):
    def _submit(self, new):
        return super()._submit(replace(new, idempotency_key=""))


class DrainsNothing(MemoryJobLedger):
    def _queue(self, name):
        return replace(super()._queue(name), draining=False)


class ModelsIgnored(MemoryJobLedger):
    def _claim(self, claim):
        return super()._claim(replace(claim, without_models=frozenset()))


class DueTimesOfAllModels(MemoryJobLedger):
    def _due_in_ms(self, claim):
        return super()._due_in_ms(replace(claim, without_models=frozenset()))


class PausesNothing(MemoryJobLedger):
    def _queue(self, name):
        return replace(super()._queue(name), paused=False)


class NeverFull(MemoryJobLedger):
    def _queue(self, name):
        return replace(super()._queue(name), pending_max=None)


class CountsJobsOfAllTenants(MemoryJobLedger):
    def _submit(self, new):
        queue, jobs = self._queue(new.queue), list(self._queue_jobs(new.queue))
        pending = sum(job.state is JobState.PENDING for job in jobs)
        if queue.pending_max is not None and pending >= queue.pending_max:
            return QueueFullError("full", retry_after_s=1)
        return super()._submit(new)


class OneRefusalRefusesAll(MemoryJobLedger):
    def submit(self, jobs, *, all_or_nothing=False):
        replies = super().submit(jobs, all_or_nothing=all_or_nothing)
        refused = [reply for reply in replies if isinstance(reply, Exception)]
        return refused[:1] * len(replies) if refused else replies


class QueuesTheRest(MemoryJobLedger):
    def submit(self, jobs, *, all_or_nothing=False):
        return super().submit(jobs)


class LimitIgnored(MemoryJobLedger):
    def maintain(self, limit):
        return super().maintain(10**6)


class KeepsExpiredLeases(MemoryJobLedger):
    def _expired_leases(self):
        return []


class ExpiresValidLeases(MemoryJobLedger):
    def _expired_leases(self):
        return [job for job in self._table.jobs.values() if job.state is JobState.RUNNING]


class WakesRepeatedly(MemoryJobLedger):
    def _wake_due(self, limit):
        super()._wake_due(limit)
        return sum(job.state is JobState.PENDING for job in self._table.jobs.values())


class MaintainsTwice(MemoryJobLedger):
    """Looks for leases and takes them back in two transactions."""

    window = RaceWindow()

    def maintain(self, limit):
        with self._locked():
            found = self._expired_leases()[:limit]
        self.window.open()
        with self._locked():
            for job in found:
                self._lose(job)
            return MaintenanceCounts(returned=len(found))


class ClaimsTwice(MemoryJobLedger):
    """Looks for jobs and claims them in two transactions."""

    window = RaceWindow()

    def settle_and_claim(self, settlements, claim=None):
        with self._locked():
            found = self._claimable(claim)[: claim.jobs_max] if claim else []
        self.window.open()
        with self._locked() as table:
            reply = super().settle_and_claim(settlements)
            for job in found:
                table.jobs[job.id] = job_ledger_memory.claim_job(job, claim, self.now_ms())
            return replace(reply, claimed=tuple(table.jobs[job.id] for job in found))


class PagesByNumber(MemoryJobLedger):
    def find(self, wanted, *, after="", limit=100):
        jobs = super().find(wanted, limit=10**6).jobs
        start = int(after or 0)
        more = len(jobs) > start + limit
        return Page(jobs[start : start + limit], str(start + limit) if more else "")


class PagesNeverEnd(MemoryJobLedger):
    def find(self, wanted, *, after="", limit=100):
        page = super().find(wanted, after=after, limit=limit)
        return replace(
            page, next_after=page.next_after or (memory_jobs._sort_key(page.jobs[-1]) if page.jobs else "")
        )


class TagsIgnored(MemoryJobLedger):
    def find(self, wanted, *, after="", limit=100):
        return super().find(replace(wanted, tags={}), after=after, limit=limit)


class ActionsOfAnyTenant(MemoryJobLedger):
    def apply_action(self, action, job_ids, *, tenant=None, by="", audit=None):
        return super().apply_action(action, job_ids, by=by, audit=audit)


class ActionsStopAtASkip(MemoryJobLedger):
    def apply_action(self, action, job_ids, *, tenant=None, by="", audit=None):
        for number, job_id in enumerate(job_ids):
            reply = super().apply_action(action, [job_id], tenant=tenant, by=by)
            if reply.skipped:
                return super().apply_action(action, job_ids[number:][:1], tenant=tenant, by=by)
        return ActionReply()


class RetriesRequeueOnly(MemoryJobLedger):
    def _apply(self, action, job_id, tenant, by):
        return super()._apply(JobAction.REQUEUE if action is JobAction.RETRY else action, job_id, tenant, by)


class ActionsTakeOutputs(MemoryJobLedger):
    def _claim_name(self, job, if_exists):
        return super()._claim_name(job, "replace" if job.state.ended else if_exists)


class ActionsUnaudited(MemoryJobLedger):
    def apply_action(self, action, job_ids, *, tenant=None, by="", audit=None):
        return super().apply_action(action, job_ids, tenant=tenant, by=by)


class AuditsAttempts(MemoryJobLedger):
    def apply_action(self, action, job_ids, *, tenant=None, by="", audit=None):
        self.record_audit(replace(audit, jobs=len(job_ids)))
        return super().apply_action(action, job_ids, tenant=tenant, by=by)


class AuditOfAllKeys(MemoryJobLedger):
    def audit(self, *, done_by="", action="", after="", limit=100):
        return super().audit(action=action, after=after, limit=limit)


class AuditKeptForever(MemoryJobLedger):
    def audit(self, *, done_by="", action="", after="", limit=100):
        with self._locked() as table:
            found = [entry for entry in reversed(table.audit) if not after or entry.number < int(after)]
            return AuditPage(tuple(found[:limit]), str(found[limit - 1].number) if found[limit:] else "")


class TenantsIgnored(MemoryJobLedger):
    def get(self, job_id, *, tenant=None):
        return super().get(job_id)


class DeletesRunningJobs(MemoryJobLedger):
    def delete(self, job_id, *, tenant=None):
        try:
            return super().delete(job_id, tenant=tenant)
        except JobStateError:
            job = self.get(job_id)
            self._remove(job)
            return job


class KeepsHistories(MemoryJobLedger):
    def _remove(self, job):
        history = self._table.histories[job.id]
        super()._remove(job)
        self._table.histories[job.id] = history


class GroupsAllTenants(MemoryJobLedger):
    def failure_groups(self, *, tenant=None, limit=100):
        return super().failure_groups(limit=limit)


class RecordsNoStarts(MemoryJobLedger):
    def history(self, job_id):
        return [replace(entry, started_at_ms=None) for entry in super().history(job_id)]


class ForgetsEnds(MemoryJobLedger):
    def history(self, job_id):
        return [entry for entry in super().history(job_id) if entry.event is not HistoryEvent.FAILED]


class RecordsNoHistory(MemoryJobLedger):
    def _record(self, job, event, **more):
        """Record nothing."""


class CancelsEndedJobs(MemoryJobLedger):
    def cancel(self, job_id, *, tenant=None, by=""):
        try:
            return super().cancel(job_id, tenant=tenant, by=by)
        except JobStateError:
            return self.get(job_id, tenant=tenant)


class CancelsRunningJobsAtOnce(MemoryJobLedger):
    def cancel(self, job_id, *, tenant=None, by=""):
        job = super().cancel(job_id, tenant=tenant, by=by)
        if job.state is JobState.RUNNING:
            self._store(
                replace(job, state=JobState.CANCELLED, lease_until_ms=None, ended_at_ms=self.now_ms())
            )
        return self.get(job_id)


class PublishesForAnyLease(MemoryJobLedger):
    def mark_published(self, job_id, lease, uri):
        job = self.get_many([job_id]).get(job_id)
        return super().mark_published(job_id, job.lease if job else lease, uri)


class CountsDelayedAsDue(MemoryJobLedger):
    def counts(self, queue):
        counts = super().counts(queue)
        return QueueCounts(counts.due + counts.later, 0, counts.running, counts.oldest_due_ms)


class CountsAllTenants(MemoryJobLedger):
    def counts(self, queue, *, tenant=None):
        return super().counts(queue)


class CountsPendingQueuesOnly(MemoryJobLedger):
    def tenant_counts(self, tenant):
        found = super().tenant_counts(tenant)
        return {queue: counts for queue, counts in found.items() if counts.backlog or counts.later}


class DeletesQueuesInUse(MemoryJobLedger):
    def delete_queue(self, name):
        with self._locked() as table:
            return table.queues.pop(name, None) is not None


class DeletesQueuesOfPublishedJobs(MemoryJobLedger):
    def delete_queue(self, name):
        counts = self.counts(name)
        if counts.backlog or counts.later:
            return super().delete_queue(name)
        return self._table.queues.pop(name, None) is not None


class RequeuesToNoQueue(MemoryJobLedger):
    def requeue(self, job_id, *, tenant=None, by=""):
        queues = dict(self._table.queues)
        job = super().requeue(job_id, tenant=tenant, by=by)
        self._table.queues.clear()
        self._table.queues.update(queues)
        return job


class ForgetsRunningJobs(MemoryJobLedger):
    def forget(self, job_ids):
        jobs = self.get_many(job_ids)
        for job in jobs.values():
            self._remove(job)
        return len(jobs)


class NotifiesNobody(MemoryJobLedger):
    def _notify(self, queue):
        """Notify no listener."""


class WakesNoListener(MemoryJobLedger):
    def _add_listener(self, queues):
        listener = super()._add_listener(queues)
        listener.wake = lambda: None
        return listener


class ForgetsKeysAtStop(MemoryJobLedger):
    def stop(self, *, drain=True):
        super().stop(drain=drain)
        self._table.keys.clear()


class RespondsWhenStopped(MemoryJobLedger):
    @contextmanager
    def _locked(self):
        with self._table.lock:
            yield self._table


class ForgetsQueuesWithoutJobs(MemoryJobLedger):
    def _remove(self, job):
        super()._remove(job)
        self._table.queues.pop(job.spec.queue, None)


class SharesNothing(MemoryJobLedger):
    def __init__(self, clock, *, beside=None):
        super().__init__(clock)


class UsesAnyBytes(MemoryJobLedger):
    def use_bytes(self, key_name, nbytes, *, limit):
        return super().use_bytes(key_name, nbytes, limit=10**30)


class HidesWhatIsLeft(MemoryJobLedger):
    def use_bytes(self, key_name, nbytes, *, limit):
        return replace(super().use_bytes(key_name, nbytes, limit=limit), left_bytes=0)


class KeepsUsageOfYesterday(MemoryJobLedger):
    def use_bytes(self, key_name, nbytes, *, limit):
        day, used = self._table.usage.get(key_name, (0, 0))
        if day:
            self._table.usage[key_name] = (self.now_ms() // DAY_MS, used)
        return super().use_bytes(key_name, nbytes, limit=limit)


class ReturnsBytesOfAnyDay(MemoryJobLedger):
    def return_bytes(self, key_name, nbytes, *, day):
        today = self.now_ms() // DAY_MS
        super().return_bytes(key_name, nbytes, day=today)


class UsesBytesTwice(MemoryJobLedger):
    """Reads the usage and counts the bytes in two transactions."""

    window = RaceWindow()

    def use_bytes(self, key_name, nbytes, *, limit):
        with self._locked() as table:
            used = table.usage.get(key_name, (0, 0))[1]
        self.window.open()
        granted = used + nbytes <= limit
        return super().use_bytes(key_name, nbytes, limit=10**9) if granted else REFUSED


REFUSED = UsageReply(False, 0, 0, 0)


class DrainsForever(MemoryJobLedger):
    def register_worker(self, info, report=NO_REPORT):
        known = self._table.workers.get(info.name)
        if known is not None:
            info = replace(info, start_id=known.info.start_id)
        super().register_worker(info, report)


class DrainsUntilRegistered(MemoryJobLedger):
    def register_worker(self, info, report=NO_REPORT):
        self._table.workers.pop(info.name, None)
        super().register_worker(info, report)


class RegistersAtHeartbeats(MemoryJobLedger):
    def _record_report(self, worker, report):
        self._table.workers.setdefault(worker, WORKER)
        return super()._record_report(worker, report)


class RevivesStoppedWorkers(MemoryJobLedger):
    def _record_report(self, worker, report):
        record = self._table.workers.get(worker)
        if record is not None:
            self._table.workers[worker] = replace(record, stopped_at_ms=None)
        return super()._record_report(worker, report)


class IdleWorkersReportNothing(MemoryJobLedger):
    def heartbeat(self, worker, heartbeats, lease_ms, report=NO_REPORT):
        return super().heartbeat(worker, heartbeats, lease_ms, report if heartbeats else NO_REPORT)


class HeartbeatsHideDrains(MemoryJobLedger):
    def heartbeat(self, worker, heartbeats, lease_ms, report=NO_REPORT):
        return replace(super().heartbeat(worker, heartbeats, lease_ms, report), draining=False)


class EndsForgotten(MemoryJobLedger):
    def end_worker(self, name):
        """Record nothing."""


class WorkersNeverLost(MemoryJobLedger):
    def worker(self, name):
        record = super().worker(name)
        return replace(record, seen_at_ms=record.read_at_ms)


class KeepsAllWorkers(MemoryJobLedger):
    def _is_kept(self, record):
        return True


class ForgetsLostWorkers(MemoryJobLedger):
    def _is_kept(self, record):
        return record.stopped_at_ms is not None or super()._is_kept(replace(record, stopped_at_ms=0))


class CountsAllRunningJobs(MemoryJobLedger):
    def workers(self):
        running = sum(job.state is JobState.RUNNING for job in self._table.jobs.values())
        return [replace(record, running=running) for record in super().workers()]


class DrainsCancelJobs(MemoryJobLedger):
    def set_worker_draining(self, name, *, draining, by=""):
        for job in self.list_running(name):
            self.cancel(job.id)
        return super().set_worker_draining(name, draining=draining, by=by)


class DrainsEveryName(MemoryJobLedger):
    def set_worker_draining(self, name, *, draining, by=""):
        self._table.workers.setdefault(name, replace(WORKER, seen_at_ms=self.now_ms()))
        return super().set_worker_draining(name, draining=draining, by=by)


class DrainsQuietly(MemoryJobLedger):
    def set_worker_draining(self, name, *, draining, by=""):
        listeners, self._table.listeners = self._table.listeners, []
        try:
            return super().set_worker_draining(name, draining=draining, by=by)
        finally:
            self._table.listeners = listeners


class OrdersOfOthers(MemoryJobLedger):
    def worker_orders(self, worker):
        jobs = self._table.jobs.values()
        cancelled = frozenset(job.id for job in jobs if job.cancel_requested)
        return replace(super().worker_orders(worker), cancelled=cancelled)


class ForgetsFieldsOfWorkers(MemoryJobLedger):
    def register_worker(self, info, report=NO_REPORT):
        super().register_worker(replace(info, region=""), report)


class RegistersTwice(MemoryJobLedger):
    """Reads the registry and writes it in two transactions."""

    window = RaceWindow()

    def register_worker(self, info, report=NO_REPORT):
        with self._locked() as table:
            workers = dict(table.workers)
        self.window.open()
        with self._locked() as table:
            table.workers = workers
            super().register_worker(info, report)


class KeepsModelsOfOneWorker(MemoryJobLedger):
    def register_worker(self, info, report=NO_REPORT):
        self._table.reported.clear()
        super().register_worker(info, report)


class KeepsModelsForever(MemoryJobLedger):
    def reported_models(self):
        pairs = self._table.reported
        return {queue: frozenset(m for q, m in pairs if q == queue) for queue, _ in pairs}


WORKER = WorkerRecord(WorkerInfo("w"), NO_REPORT, 0, False, "", 0, 0, None, 0)


class CountsNoCauses(MemoryJobLedger):
    def _count(self, earlier, job, cause):
        super()._count(earlier, job, "")


class CountsEveryJobAsFailed(MemoryJobLedger):
    def _count(self, earlier, job, cause):
        super()._count(earlier, replace(job, state=JobState.FAILED) if job.state.ended else job, cause)


class CountsRefusedOutcomes(MemoryJobLedger):
    def _settle(self, settlement):
        accepted = super()._settle(settlement)
        if not accepted:
            job = self._table.jobs[settlement.job_id]
            self._count(replace(job, state=JobState.RUNNING), job, "")
        return accepted


class WaitsFromSubmission(MemoryJobLedger):
    def _count(self, earlier, job, cause):
        super()._count(earlier, replace(job, due_at_ms=job.created_at_ms), cause)


class RunsFromSubmission(MemoryJobLedger):
    def _count(self, earlier, job, cause):
        super()._count(earlier and replace(earlier, started_at_ms=earlier.created_at_ms), job, cause)


class PublicationsEndJobsAgain(MemoryJobLedger):
    def _end_publication(self, job):
        earlier = self._table.jobs[job.id]
        super()._end_publication(job)
        self._count(replace(earlier, state=JobState.PUBLISHING), job, "")


class CountsKnownJobs(MemoryJobLedger):
    def _submit(self, new):
        reply = super()._submit(new)
        if getattr(reply, "created", True) is False:
            self._count(None, reply.job, "")
        return reply


class CountsOfAllTenantsTogether(MemoryJobLedger):
    def _count(self, earlier, job, cause):
        super()._count(earlier, replace(job, spec=replace(job.spec, tenant="")), cause)


class CountsEndWithTheirJobs(MemoryJobLedger):
    def _remove(self, job):
        super()._remove(job)
        self._table.counters = JobCounters()


class CountsEveryGroup(MemoryJobLedger):
    def _count(self, earlier, job, cause):
        self._table.groups = JobGroups()
        super()._count(earlier, job, cause)


class CountsTwice(MemoryJobLedger):
    """Reads the counters and writes them in two transactions."""

    window = RaceWindow()

    def settle_and_claim(self, settlements, claim=None):
        with self._locked() as table:
            counters = deepcopy(table.counters)
        self.window.open()
        with self._locked() as table:
            table.counters = counters
            return super().settle_and_claim(settlements, claim)


class OtherClock(MemoryJobLedger):
    def now_ms(self):
        return super().now_ms() + 600_000


def _known_only(rule):
    return lambda new, jobs: rule(replace(new, after=tuple(each for each in new.after if each in jobs)), jobs)


def _of_all_tenants(rule):
    return lambda new, jobs: rule(
        new, {key: replace(job, spec=replace(job.spec, tenant=new.tenant)) for key, job in jobs.items()}
    )


# Broken rules of `headrace.testing.job_rules`: (name, replacement, the check that finds it).
_RULES = [
    ("blocked_by", _known_only, "check_refused_prerequisites"),
    ("blocked_by", _known_only, "check_order_in_one_call"),
    ("blocked_by", _known_only, "check_refused_job_in_one_call"),
    ("blocked_by", _of_all_tenants, "check_refused_prerequisites"),
    ("blocked_by", _of_all_tenants, "check_order_in_one_call"),
    ("blocked_again", lambda _: lambda _job, _jobs: set(), "check_requeue_after_others"),
    ("blocked_again", lambda _: lambda _job, _jobs: set(), "check_action_on_jobs_after_others"),
    ("settle_name", lambda _: lambda *_claim: None, "check_output_names"),
    ("settle_name", lambda _: lambda *_claim: None, "check_output_names_of_tenants"),
    ("settle_name", lambda _: lambda *_claim: None, "check_versions_of_a_name"),
    ("needs_publication", lambda _: lambda _job: False, "check_claim_publications"),
    ("needs_publication", lambda _: lambda _job: False, "check_publication_failures"),
    (
        "claim_job",
        lambda rule: lambda job, *a: replace(rule(job, *a), attempt=job.attempt),
        "check_last_attempt",
    ),
    ("claim_job", lambda rule: lambda job, *a: replace(rule(job, *a), lease=1), "check_leases_only_grow"),
    ("claim_job", lambda rule: lambda job, *a: replace(rule(job, *a), cursor=None), "check_retrying"),
    ("settle_job", lambda rule: lambda job, o, at: _attempt_lost(rule, job, o, at), "check_releasing"),
    (
        "settle_job",
        lambda rule: lambda job, o, at: rule(replace(job, cancel_requested=False), o, at),
        "check_cancelled_jobs_are_not_retried",
    ),
    (
        "settle_job",
        lambda rule: (
            lambda job, o, at: rule(job, replace(o, crashed=False) if isinstance(o, Failed) else o, at)
        ),
        "check_crash_count",
    ),
    (
        "settle_job",
        lambda rule: lambda job, o, at: _without_failure(*rule(job, o, at)),
        "check_permanent_failure",
    ),
    (
        "lose_lease",
        lambda rule: lambda job, *a: replace(rule(job, *a), crashes=job.crashes),
        "check_lost_leases",
    ),
    ("lose_lease", lambda rule: lambda job, at, delay: rule(job, at, 0), "check_lost_leases"),
    (
        "lose_lease",
        lambda rule: lambda job, at, delay: rule(job, at, 500),
        "check_delay_after_lost_leases_grows",
    ),
    (
        "lose_lease",
        lambda rule: lambda job, *a: rule(replace(job, cancel_requested=False), *a),
        "check_lost_lease_of_cancelled_jobs",
    ),
    ("lose_lease", lambda rule: lambda job, *a: rule(replace(job, attempt=0), *a), "check_last_attempt_lost"),
    (
        "requeue_job",
        lambda rule: lambda job, at, **kw: replace(rule(job, at, **kw), attempt=job.attempt),
        "check_requeue_resets_job",
    ),
    (
        "requeue_job",
        lambda rule: lambda job, at, **kw: replace(rule(job, at, **kw), lease=0),
        "check_requeue_resets_job",
    ),
    (
        "requeue_job",
        lambda rule: lambda job, at, **kw: replace(rule(job, at, **kw), started_at_ms=1),
        "check_requeued_time_to_live",
    ),
    (
        "create_job",
        lambda rule: lambda new, *a, **kw: rule(replace(new, trace=""), *a, **kw),
        "check_submit_keeps_all_fields",
    ),
    ("past_deadline", lambda rule: lambda job, at: False, "check_heartbeat_reply"),
    ("is_overdue", lambda rule: lambda job, at: False, "check_expiry"),
]


def _attempt_lost(rule, job, outcome, at_ms):
    after, event = rule(job, outcome, at_ms)
    return (replace(after, attempt=job.attempt) if isinstance(outcome, Released) else after), event


def _without_failure(job, event):
    return replace(job, failure=None), event


_LEDGERS = [
    (NotFenced, "check_stale_leases"),
    (EndedJobsSettleAgain, "check_leases_of_stopped_jobs"),
    (HeartbeatsDoNotExtend, "check_heartbeat"),
    (HeartbeatsReportNothing, "check_cancelling_running_jobs"),
    (PrioritiesIgnored, "check_claim_order"),
    (NeverAges, "check_ageing"),
    (PrioritiesIgnored, "check_ageing"),
    (BlocksNothing, "check_job_begins_after_another"),
    (NeverUnblocks, "check_job_begins_after_another"),
    (UnblocksQuietly, "check_job_begins_after_another"),
    (UnblocksWithoutRecord, "check_job_begins_after_another"),
    (UnblocksAtFirst, "check_job_begins_after_all_others"),
    (UnblocksAtResults, "check_job_begins_after_publication"),
    (UnblocksAtOnce, "check_delay_after_unblocking"),
    (NeverUnblocks, "check_completed_prerequisite"),
    (FailsNobody, "check_failed_prerequisite"),
    (FailsNextOnly, "check_failed_prerequisite"),
    (FailsWithoutReason, "check_failed_prerequisite"),
    (UnblocksAtAnyEnd, "check_failed_prerequisite"),
    (UnblocksAtAnyEnd, "check_first_failure_ends_the_wait"),
    (ChangesFewDependents, "check_long_chain"),
    (NeverUnblocks, "check_retried_prerequisite"),
    (NeverUnblocks, "check_order_in_one_call"),
    (BlocksNothing, "check_known_job_in_one_call"),
    (ChecksPrerequisitesFirst, "check_known_job_with_ended_prerequisite"),
    (BlockedJobsFillQueues, "check_queue_of_blocked_jobs"),
    (BlockedJobsFillQueues, "check_limit_of_a_queue_with_blocked_jobs"),
    (CountsNoBlockedJobs, "check_queue_of_blocked_jobs"),
    (BlockedJobsNeverExpire, "check_expiry_of_blocked_jobs"),
    (UnblocksAtAnyEnd, "check_expiry_of_blocked_jobs"),
    (ForgetsWaitsOfRequeues, "check_requeue_after_others"),
    (RetriesInAnyOrder, "check_action_on_jobs_after_others"),
    (CancelsInAnyOrder, "check_cancelling_blocked_jobs"),
    (EndsInTwoTransactions, "check_race_of_the_last_ends"),
    (SubmitsInTwoTransactions, "check_race_of_submission_and_end"),
    (SharesNothingFairly, "check_tenants_share_a_queue"),
    (SharesNothingFairly, "check_weight_of_a_tenant"),
    (ForgetsTurns, "check_tenants_take_turns_in_one_slot"),
    (WeightsIgnored, "check_tenants_take_turns_in_one_slot"),
    (WeightsIgnored, "check_weight_of_a_tenant"),
    (LimitsIgnored, "check_limits_of_running_jobs"),
    (ChoosesOnce, "check_closed_lanes_leave_their_slots_to_others"),
    (LimitsPerVersion, "check_limit_of_a_model_counts_its_versions"),
    (ClaimsBelowLimitsTwice, "check_limit_race"),
    (LimitsIgnored, "check_requeued_job_returns_to_its_lane"),
    (EndpointsWithoutVersions, "check_endpoint_versions"),
    (EveryEndpointVersion, "check_endpoint_versions"),
    (DeletedEndpointsForgotten, "check_deleted_endpoint"),
    (AllEndpointVersionsKept, "check_kept_endpoint_versions"),
    (ChangesEndpointTwice, "check_endpoint_race"),
    (EndpointLimitsIgnored, "check_limit_of_an_endpoint"),
    (OwnRetentionIgnored, "check_own_retention"),
    (QueueOrderIgnored, "check_queue_order"),
    (OverdueJobsClaimed, "check_time_to_live"),
    (OverdueJobsClaimed, "check_deadline_of_pending_jobs"),
    (DelayedJobsClaimed, "check_delayed_job_is_claimed_when_due"),
    (NeverAlone, "check_crashing_job_runs_alone"),
    (NeverAlone, "check_crashing_job_runs_alone_across_queues"),
    (NeverAlone, "check_lost_leases_make_job_run_alone"),
    (NoDueTime, "check_delayed_job_is_claimed_when_due"),
    (RegionsIgnored, "check_own_region_first"),
    (RegionsIgnored, "check_due_time_by_region"),
    (RegionsIgnored, "check_released_jobs_keep_their_region"),
    (RegionsIgnored, "check_region_race"),
    (OtherRegionsNever, "check_other_regions_last"),
    (OtherRegionsAlike, "check_other_regions_last"),
    (OnlyOwnRegion, "check_own_region_first"),
    (DueTimesOfAllRegions, "check_due_time_by_region"),
    (CountsNoRegions, "check_counts_by_region"),
    (PausesNothing, "check_regions_in_paused_queues"),
    (NeverAlone, "check_crashing_job_runs_alone_in_region"),
    (KeysShared, "check_idempotency_keys"),
    (DigestsIgnored, "check_key_with_another_digest"),
    (DigestsIgnored, "check_keys_within_one_call"),
    (KeysForgotten, "check_key_race"),
    (DrainsNothing, "check_draining_queue"),
    (ModelsIgnored, "check_claim_without_models"),
    (DueTimesOfAllModels, "check_claim_without_models"),
    (PausesNothing, "check_paused_queue"),
    (NeverFull, "check_full_queue"),
    (CountsJobsOfAllTenants, "check_full_queue"),
    (NeverFull, "check_full_queue_returns_known_keys"),
    (OneRefusalRefusesAll, "check_full_queue"),
    (QueuesTheRest, "check_all_or_nothing"),
    (LimitIgnored, "check_maintenance_limit"),
    (KeepsExpiredLeases, "check_lost_leases"),
    (ExpiresValidLeases, "check_valid_leases_are_kept"),
    (WakesRepeatedly, "check_waking"),
    (MaintainsTwice, "check_concurrent_maintenance"),
    (ClaimsTwice, "check_claim_race"),
    (PagesByNumber, "check_pages_during_changes"),
    (PagesNeverEnd, "check_pages"),
    (TagsIgnored, "check_find_filters"),
    (ActionsOfAnyTenant, "check_action_reply"),
    (ActionsStopAtASkip, "check_action_reply"),
    (RetriesRequeueOnly, "check_action_changes_jobs_in_its_states"),
    (ActionsTakeOutputs, "check_action_with_taken_output"),
    (ActionsUnaudited, "check_action_is_audited"),
    (AuditsAttempts, "check_action_is_audited"),
    (AuditOfAllKeys, "check_audit_log"),
    (AuditKeptForever, "check_audit_log_ends"),
    (TenantsIgnored, "check_tenant_isolation"),
    (DeletesRunningJobs, "check_delete"),
    (KeepsHistories, "check_delete"),
    (RecordsNoHistory, "check_history"),
    (RecordsNoStarts, "check_history"),
    (GroupsAllTenants, "check_failure_groups"),
    (ForgetsEnds, "check_history"),
    (UsesAnyBytes, "check_bytes_of_a_day"),
    (HidesWhatIsLeft, "check_bytes_of_a_day"),
    (HidesWhatIsLeft, "check_bytes_of_the_next_day"),
    (KeepsUsageOfYesterday, "check_bytes_of_the_next_day"),
    (ReturnsBytesOfAnyDay, "check_returned_bytes"),
    (UsesBytesTwice, "check_usage_race"),
    (CountsNoCauses, "check_counted_ends"),
    (CountsEveryJobAsFailed, "check_counted_ends"),
    (CountsNoCauses, "check_counted_attempts"),
    (CountsRefusedOutcomes, "check_counted_attempts"),
    (WaitsFromSubmission, "check_counted_durations"),
    (RunsFromSubmission, "check_counted_durations"),
    (PublicationsEndJobsAgain, "check_counted_publications"),
    (CountsKnownJobs, "check_counted_arrivals"),
    (CountsOfAllTenantsTogether, "check_counted_groups"),
    (CountsEndWithTheirJobs, "check_counted_groups"),
    (CountsEveryGroup, "check_limit_of_counted_groups"),
    (CountsTwice, "check_counting_race"),
    (CancelsEndedJobs, "check_cancelling_ended_jobs"),
    (CancelsRunningJobsAtOnce, "check_cancelling_running_jobs"),
    (CancelsRunningJobsAtOnce, "check_final_outcome_overrides_cancellation"),
    (PublishesForAnyLease, "check_publishing"),
    (CountsDelayedAsDue, "check_counts"),
    (CountsAllTenants, "check_counts_of_tenants"),
    (CountsPendingQueuesOnly, "check_counts_of_tenants"),
    (DeletesQueuesInUse, "check_delete_queue"),
    (DeletesQueuesOfPublishedJobs, "check_delete_queue"),
    (RequeuesToNoQueue, "check_delete_queue"),
    (ForgetsRunningJobs, "check_retention"),
    (NotifiesNobody, "check_wakeup"),
    (NotifiesNobody, "check_watch"),
    (NotifiesNobody, "check_wakeup_of_cancellations"),
    (WakesNoListener, "check_wait_ends"),
    (ForgetsKeysAtStop, "check_restart"),
    (RespondsWhenStopped, "check_stopped_ledger_is_unavailable"),
    (ForgetsQueuesWithoutJobs, "check_queue_settings"),
    (SharesNothing, "check_ledgers_share_jobs"),
    (OtherClock, "check_clock"),
    (ForgetsFieldsOfWorkers, "check_registered_worker"),
    (DrainsEveryName, "check_unknown_worker"),
    (RegistersAtHeartbeats, "check_reported_heartbeat"),
    (IdleWorkersReportNothing, "check_reported_heartbeat"),
    (WorkersNeverLost, "check_lost_worker"),
    (EndsForgotten, "check_stopped_worker"),
    (RevivesStoppedWorkers, "check_stopped_worker"),
    (KeepsAllWorkers, "check_kept_workers"),
    (ForgetsLostWorkers, "check_kept_workers"),
    (CountsAllRunningJobs, "check_running_jobs_of_workers"),
    (DrainsCancelJobs, "check_draining_worker"),
    (HeartbeatsHideDrains, "check_draining_worker"),
    (DrainsForever, "check_drain_until_new_start"),
    (DrainsUntilRegistered, "check_drain_until_new_start"),
    (DrainsQuietly, "check_wakeup_of_drains"),
    (OrdersOfOthers, "check_orders_to_cancel"),
    (RegistersTwice, "check_registration_race"),
    (KeepsModelsOfOneWorker, "check_registered_models_add_up"),
    (KeepsModelsForever, "check_registered_models_expire"),
    *BROKEN_SCHEDULES,
    *BROKEN_POOLS,
]


def _run_check(kind, check):
    def new_ledgers(clock: ManualWallClock):
        first = kind(clock)
        return lambda: kind(clock, beside=first)

    with LedgerBench(new_ledgers) as bench:
        _CHECKS[check](bench)


@pytest.fixture(autouse=True)
def short_timeouts(monkeypatch):
    for module in (bench, wakeups):
        monkeypatch.setattr(module, "WAKEUP_TIMEOUT_S", 0.3)
    monkeypatch.setattr(wakeups, "_LONG_WAIT_S", 0.6)


@for_each(("kind", "check"), _LEDGERS)
def test_broken_ledger_fails_its_check(kind, check):
    _run_check(MemoryJobLedger, check)
    with pytest.raises(AssertionError):
        _run_check(kind, check)


@for_each(("name", "mutated", "check"), _RULES)
def test_broken_rule_fails_its_check(name, mutated, check, monkeypatch):
    with monkeypatch.context() as patch:
        for module in (job_ledger_memory, memory_jobs):
            if hasattr(module, name):
                patch.setattr(module, name, mutated(getattr(module, name)))
        with pytest.raises(AssertionError):
            _run_check(MemoryJobLedger, check)


def test_error_of_an_unavailable_ledger_passes_through():

    class Away(MemoryJobLedger):
        def start(self):
            super().start()
            self.unavailable = True

    with pytest.raises(JobLedgerUnavailableError):
        _run_check(Away, "check_submit_keeps_all_fields")


def test_endless_maintenance_fails():

    class Busy(MemoryJobLedger):
        def maintain(self, limit):
            return MaintenanceCounts(woken=1)

    with (
        pytest.raises(AssertionError, match="maintain never ends"),
        LedgerBench(lambda clock: lambda: Busy(clock)) as bench,
    ):
        bench.maintain()


def test_suite_has_every_check():
    modules = [value for value in vars(job_checks).values() if hasattr(value, "LedgerBench")]
    defined = {name for module in modules for name in vars(module) if name.startswith("check_")}
    assert defined - {"check_service"} == set(_CHECKS)
    assert len(_CHECKS) == len(JOB_LEDGER_CHECKS)
