"""A job ledger in memory, for tests of workers and servers. It is the reference implementation.

This module has the operations of submissions, workers and maintenance.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from typing_extensions import override

from headrace.core.errors import (
    HeadraceError,
    IdempotencyError,
    JobError,
    OutputTakenError,
    QueueClosedError,
    QueueFullError,
)
from headrace.jobs.counters import RELEASED
from headrace.jobs.history import HistoryEvent
from headrace.jobs.job import Job, JobFailure, NewJob, Settlement, new_job_id
from headrace.jobs.lanes import (
    Candidate,
    Choice,
    ClaimState,
    QueueShares,
    choose,
    claim_state,
    is_shared,
    lane_text,
    lanes_to_read,
    parse_lane,
)
from headrace.jobs.ledger import (
    NO_REPORT,
    PUBLISH_DELAY_MAX_MS,
    PUBLISH_DELAY_MS,
    ClaimRequest,
    Heartbeat,
    HeartbeatReply,
    MaintenanceCounts,
    SettleAndClaimReply,
    SubmitReply,
)
from headrace.jobs.state import JobEvent, JobState
from headrace.jobs.worker_registry import WorkerReport
from headrace.testing.job_rules import (
    apply_event,
    blocked_by,
    claim_job,
    create_job,
    is_overdue,
    lose_lease,
    matches_region,
    needs_publication,
    past_deadline,
    permits_claim,
    publish_job,
    settle_job,
)
from headrace.testing.memory_pools import MemoryPools
from headrace.testing.memory_schedules import MemorySchedules
from headrace.testing.memory_workers import MemoryWorkers

_RETRY_AFTER_S: Final = 1.0


class MemoryJobLedger(MemoryPools, MemorySchedules, MemoryWorkers):
    """A `JobLedger` in memory, for tests. `MemoryJobs` describes its arguments."""

    # Submission

    @override
    def submit(
        self, jobs: Sequence[NewJob], *, all_or_nothing: bool = False
    ) -> list[SubmitReply | Exception]:
        replies: list[SubmitReply | Exception] = []
        taken: dict[tuple[str, str], OutputTakenError] = {}
        known: dict[tuple[str, str], str] = {}
        with self._locked() as table:
            before = table.copy() if all_or_nothing else None
            for each in jobs:
                after = tuple(known.get((each.tenant, job_id), job_id) for job_id in each.after)
                new = replace(each, after=after)
                identity = (new.tenant, new.idempotency_key or new.id)
                reply = taken.get(identity) or self._submit(new)
                if isinstance(reply, OutputTakenError) and identity[1]:
                    taken[identity] = reply
                if isinstance(reply, SubmitReply) and new.id:
                    known.setdefault((new.tenant, new.id), reply.job.id)
                replies.append(reply)
            if before is not None and any(isinstance(reply, Exception) for reply in replies):
                table.restore(before)
        return replies

    def _submit(self, new: NewJob) -> SubmitReply | Exception:
        table = self._table
        known = table.keys.get((new.tenant, new.idempotency_key)) if new.idempotency_key else new.id
        if known and (job := table.jobs.get(known)):
            if (job.spec.body_digest, job.spec.tenant) != (new.body_digest, new.tenant):
                return IdempotencyError(new.idempotency_key or new.id, job.id)
            return SubmitReply(job, created=False)
        try:
            waits = blocked_by(new, table.jobs)
        except JobError as error:
            return error
        queue = self._queue(new.queue)
        if queue.draining:
            return QueueClosedError(f"queue {queue.name} is being drained: submit to another, or later")
        pending = (job for job in self._queue_jobs(queue.name) if job.state is JobState.PENDING)
        waiting = sum(job.spec.tenant == new.tenant for job in pending)
        if queue.pending_max is not None and waiting >= queue.pending_max and not waits:
            why = f"queue {queue.name} has {waiting} pending jobs of the tenant, its limit: submit later"
            return QueueFullError(why, retry_after_s=_RETRY_AFTER_S)
        table.queues.setdefault(queue.name, queue)
        job = create_job(new, new.id or new_job_id(self.now_ms()), self.now_ms(), blocked=bool(waits))
        try:
            job = self._claim_name(job, job.spec.if_exists)
        except HeadraceError as error:
            return error
        table.histories[job.id] = []
        if new.idempotency_key:
            table.keys[new.tenant, new.idempotency_key] = job.id
        self._store(job)
        self._block(job.id, waits)
        return SubmitReply(job, created=True)

    # Workers

    @override
    def settle_and_claim(
        self, settlements: Sequence[Settlement], claim: ClaimRequest | None = None
    ) -> SettleAndClaimReply:
        with self._locked():
            accepted = tuple(self._settle(settlement) for settlement in settlements)
            if claim is None:
                return SettleAndClaimReply(accepted, ())
            taken = self._claim(claim)
            if len(taken) >= claim.jobs_max:
                return SettleAndClaimReply(accepted, taken)
            return SettleAndClaimReply(accepted, taken, self._due_in_ms(claim), self._is_limited(claim))

    def _settle(self, settlement: Settlement) -> bool:
        job = self._running(settlement.job_id, settlement.lease)
        if job is None:
            return False
        if settlement.progress is not None:
            job = replace(job, progress=settlement.progress)
        after, event = settle_job(job, settlement.outcome, self.now_ms())
        self._store(after, cause=RELEASED if event is HistoryEvent.RELEASED else "")
        if event is HistoryEvent.ATTEMPT_FAILED and after.failure:
            self._record(job, event, cause=after.failure.cause.value, message=after.failure.message)
        elif event:
            self._record(job, event)
        return True

    def _claim(self, claim: ClaimRequest) -> tuple[Job, ...]:
        taken: list[Job] = []
        claimable = self._claimable(claim)
        for queue in dict.fromkeys(job.spec.queue for job in claimable):
            waiting = {job.id: job for job in claimable if job.spec.queue == queue}
            choice = Choice(("",))
            while choice.job_ids and not choice.stopped and len(taken) < claim.jobs_max:
                choice = self._choose(queue, list(waiting.values()), claim.jobs_max - len(taken), len(taken))
                for job_id in choice.job_ids:
                    taken.append(claim_job(waiting.pop(job_id), claim, self.now_ms()))
                    self._store(taken[-1])
            if choice.stopped:
                break
        return tuple(taken)

    def _choose(self, queue: str, waiting: Sequence[Job], most: int, taken: int) -> Choice:
        """Choose from the lanes that a database would read."""
        state, shares = self._claim_state(), self._shares.setdefault(queue, QueueShares())
        candidates = list(map(self._candidate, waiting))
        first = sorted(candidates, key=lambda each: each.place, reverse=True)
        heads = {each.lane: each.place for each in first}
        read, several = lanes_to_read(heads, queue, state, shares, most), is_shared(heads, state)
        found = [each for each in candidates if each.lane in read]
        return choose(found, most, queue=queue, taken=taken, is_shared=several, state=state, shares=shares)

    def _candidate(self, job: Job) -> Candidate:
        return Candidate(job.id, parse_lane(lane_text(job.spec)), self._table.ranks_ms[job.id], job.alone)

    def _claim_state(self) -> ClaimState:
        running = Counter(
            (job.spec.queue, lane_text(job.spec))
            for job in self._table.jobs.values()
            if job.state is JobState.RUNNING
        )
        return claim_state(self._table.limits.values(), running)

    def _is_open(self, job: Job) -> bool:
        return self._claim_state().capacity_of(self._candidate(job).lane, 1) > 0

    def _is_limited(self, claim: ClaimRequest) -> bool:
        due = self._due(claim)
        if not claim.other_regions:
            due = [job for job in due if matches_region(job, claim)]
        queues = {job.spec.queue for job in due}
        return bool(queues - {job.spec.queue for job in due if self._is_open(job)})

    def _due(self, claim: ClaimRequest) -> list[Job]:
        now_ms, waiting = self.now_ms(), self._pending(claim.queues)
        return [job for job in waiting if job.due_at_ms <= now_ms and permits_claim(job, claim, now_ms)]

    def _claimable(self, claim: ClaimRequest) -> list[Job]:
        due = [job for job in self._due(claim) if self._is_open(job)]
        matching = [job for job in due if matches_region(job, claim)]
        return matching or due if claim.other_regions else matching

    def _pending(self, queues: Iterable[str]) -> list[Job]:
        """Return the pending jobs of queues that are not paused, in claiming order."""
        found: list[Job] = []
        for name in dict.fromkeys(queues):
            if not self._queue(name).paused:
                pending = [job for job in self._queue_jobs(name) if job.state is JobState.PENDING]
                found += sorted(pending, key=lambda job: (self._table.ranks_ms[job.id], job.id))
        return found

    def _due_in_ms(self, claim: ClaimRequest) -> int | None:
        now_ms = self.now_ms()
        waiting = [j for j in self._pending(claim.queues) if claim.other_regions or matches_region(j, claim)]
        permitted = [job for job in waiting if permits_claim(job, claim, now_ms)]
        dues = [job.due_at_ms for job in permitted if job.due_at_ms > now_ms or self._is_open(job)]
        return max(0, min(dues) - now_ms) if dues else None

    @override
    def heartbeat(
        self, worker: str, heartbeats: Sequence[Heartbeat], lease_ms: int, report: WorkerReport = NO_REPORT
    ) -> HeartbeatReply:
        lost: set[str] = set()
        cancel: set[str] = set()
        expired: set[str] = set()
        with self._locked():
            for heartbeat in heartbeats:
                job = self._running(heartbeat.job_id, heartbeat.lease)
                if job is None:
                    lost.add(heartbeat.job_id)
                    continue
                self._heartbeat(job, heartbeat, lease_ms)
                if job.cancel_requested:
                    cancel.add(job.id)
                if past_deadline(job, self.now_ms()):
                    expired.add(job.id)
            registered, draining = self._record_report(worker, report)
        return HeartbeatReply(frozenset(lost), frozenset(cancel), frozenset(expired), draining, registered)

    def _heartbeat(self, job: Job, heartbeat: Heartbeat, lease_ms: int) -> None:
        updated = replace(
            job,
            lease_until_ms=self.now_ms() + lease_ms,
            progress=job.progress if heartbeat.progress is None else heartbeat.progress,
            cursor=job.cursor if heartbeat.cursor is None else heartbeat.cursor,
        )
        self._table.jobs[job.id] = updated
        if heartbeat.progress is not None:
            self._notify(None)

    @override
    def mark_published(self, job_id: str, lease: int, uri: str, digest: str = "") -> bool:
        with self._locked():
            job = self._published(job_id, lease)
            if job is None or job.state is JobState.PUBLISH_FAILED:
                return False
            owner = self.output_owner(job)
            if owner is not None and owner.id != job_id:
                return False
            if needs_publication(job):
                self._end_publication(publish_job(job, uri, digest, self.now_ms()))
            return True

    @override
    def mark_publish_failed(self, job_id: str, lease: int, failure: JobFailure, *, final: bool) -> bool:
        with self._locked():
            job = self._published(job_id, lease)
            if job is None or not needs_publication(job):
                return False
            if job.state is not JobState.PUBLISHING:
                if final:
                    self._end_publication(publish_job(job, "", "", self.now_ms()))
            elif final:
                self._store(apply_event(job, JobEvent.GIVE_UP, self.now_ms(), failure=failure))
            else:
                self._table.jobs[job_id] = replace(job, failure=failure)
                self._notify(None)
            return True

    def _published(self, job_id: str, lease: int) -> Job | None:
        job = self._table.jobs.get(job_id)
        if job is None or job.lease != lease or not job.spec.output_uri:
            return None
        return job if job.state.ended or job.state is JobState.PUBLISHING else None

    def _end_publication(self, job: Job) -> None:
        ends = not self._table.jobs[job.id].state.ended
        if ends:
            self._count(self._table.jobs[job.id], job, "")
        self._table.jobs[job.id] = job
        if ends:
            self._end_dependents(job)
        self._table.publish_at_ms.pop(job.id, None)
        self._notify(None)

    @override
    def claim_publications(self, limit: int) -> list[Job]:
        with self._locked() as table:
            due = sorted((at_ms, job_id) for job_id, at_ms in table.publish_at_ms.items())
            claimed = [job_id for at_ms, job_id in due if at_ms <= self.now_ms()][:limit]
            for job_id in claimed:
                job = table.jobs[job_id]
                delay_ms = min(PUBLISH_DELAY_MS * 2**job.publish_tries, PUBLISH_DELAY_MAX_MS)
                table.publish_at_ms[job_id] = self.now_ms() + delay_ms
                table.jobs[job_id] = replace(job, publish_tries=job.publish_tries + 1)
            return [table.jobs[job_id] for job_id in claimed]

    @override
    def maintain(self, limit: int) -> MaintenanceCounts:
        with self._locked():
            states = [self._lose(job) for job in self._expired_leases()[:limit]]
            over = self._overdue()[:limit]
            # A job that is overdue itself expires, also if it comes after another one that does.
            expired = [apply_event(job, JobEvent.EXPIRE, self.now_ms()) for job in over]
            for job in expired:
                self._put(job, "")
            for job in expired:
                self._end_dependents(job)
            return MaintenanceCounts(
                returned=states.count(JobState.PENDING),
                failed=states.count(JobState.FAILED),
                cancelled=states.count(JobState.CANCELLED),
                expired=len(over),
                woken=self._wake_due(limit),
            )

    def _expired_leases(self) -> list[Job]:
        now_ms, jobs = self.now_ms(), self._table.jobs.values()
        return [job for job in jobs if job.lease_until_ms is not None and job.lease_until_ms <= now_ms]

    def _lose(self, job: Job) -> JobState:
        after = lose_lease(job, self.now_ms(), self._lost_delay_ms(job))
        self._store(after)
        cause = after.failure.cause.value if after.failure else ""
        self._record(job, HistoryEvent.LEASE_LOST, cause=cause)
        return after.state

    def _overdue(self) -> list[Job]:
        now_ms, jobs = self.now_ms(), self._table.jobs.values()
        waiting = (JobState.PENDING, JobState.BLOCKED)
        return [job for job in jobs if job.state in waiting and is_overdue(job, now_ms)]

    def _wake_due(self, limit: int) -> int:
        table, now_ms = self._table, self.now_ms()
        woken = [job_id for job_id in sorted(table.asleep) if table.jobs[job_id].due_at_ms <= now_ms][:limit]
        table.asleep.difference_update(woken)
        for queue in {table.jobs[job_id].spec.queue for job_id in woken}:
            self._notify(queue)
        return len(woken)
