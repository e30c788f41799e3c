"""The operations of workers: settling attempts and claiming jobs, heartbeats, and maintenance."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from typing_extensions import override

from headrace.jobs.cause import Cause
from headrace.jobs.job import (
    CRASHES_TOGETHER_MAX,
    Job,
    JobEvent,
    JobFailure,
    JobState,
    Settlement,
    next_state,
    source_states,
)
from headrace.jobs.ledger import (
    ClaimRequest,
    Heartbeat,
    HeartbeatReply,
    JobLedger,
    MaintenanceCounts,
    SettleAndClaimReply,
)
from headrace.jobs.ledgers.database import (
    DatabaseOperations,
    Transaction,
    read_statement,
    writing,
    writing_once,
)
from headrace.jobs.ledgers.rows import clean, dump, dump_mapping
from headrace.jobs.ledgers.stored_jobs import read_by_id, read_jobs, write_changes
from headrace.jobs.ledgers.transitions import Change, change, lost_lease_change, settlement_change

# `claim.sql` makes these transitions itself.
assert source_states(JobEvent.CLAIM) == {JobState.PENDING}
assert next_state(JobState.PENDING, JobEvent.CLAIM) is JobState.RUNNING

_CLAIM: Final = read_statement("claim")
_CLAIM_NEAR: Final = read_statement("claim_near")
_NEXT_IS_ALONE: Final = read_statement("next_is_alone")
_NEXT_IS_ALONE_NEAR: Final = read_statement("next_is_alone_near")
_DUE_IN: Final = read_statement("due_in")
_DUE_IN_NEAR: Final = read_statement("due_in_near")
_HEARTBEAT: Final = read_statement("heartbeat")
_MARK_PUBLISHED: Final = read_statement("mark_published")
_LOST_LEASES: Final = read_statement("lost_leases")
_PAST_TIME_TO_LIVE: Final = read_statement("past_time_to_live")
_PAST_DEADLINE: Final = read_statement("past_deadline")
_WAKE: Final = read_statement("wake_jobs")


class WorkOperations(DatabaseOperations, JobLedger):
    """The operations of a ledger that run jobs."""

    @override
    def settle_and_claim(
        self, settlements: Sequence[Settlement], claim: ClaimRequest | None = None
    ) -> SettleAndClaimReply:
        if not settlements and claim is None:
            return SettleAndClaimReply((), ())
        return self._settle_and_claim(settlements, claim)

    @writing_once
    def _settle_and_claim(
        self, transaction: Transaction, settlements: Sequence[Settlement], claim: ClaimRequest | None
    ) -> SettleAndClaimReply:
        accepted = _settle(transaction, settlements)
        if claim is None:
            return SettleAndClaimReply(accepted, ())
        queues = list(dict.fromkeys(claim.queues))
        near = bool(claim.region)
        claimed = _claim(transaction, claim, queues, near=near)
        if near and claim.other_regions:
            near = False
            # The region has no jobs: claim the next job of any region.
            claimed = claimed or _claim(transaction, claim, queues, near=False)
        if len(claimed) >= claim.jobs_max:
            return SettleAndClaimReply(accepted, tuple(claimed))
        records = [{"queue_name": name} for name in queues]
        region = {"region": clean(claim.region)} if near else {}
        due_in_ms = transaction.run(_DUE_IN_NEAR if near else _DUE_IN, records, **region)[0][0]
        due_in_ms = None if due_in_ms is None else max(0, due_in_ms)
        return SettleAndClaimReply(accepted, tuple(claimed), due_in_ms)

    @override
    @writing
    def heartbeat(
        self, transaction: Transaction, worker: str, heartbeats: Sequence[Heartbeat], lease_ms: int
    ) -> HeartbeatReply:
        del worker  # a lease number identifies its worker
        if not heartbeats:
            return HeartbeatReply(frozenset(), frozenset(), frozenset())
        records = [
            {
                "beat_id": item.job_id,
                "beat_lease": item.lease,
                "new_progress": dump(item.progress),
                "new_cursor": dump_mapping(item.cursor),
            }
            for item in heartbeats
        ]
        rows = transaction.run(_HEARTBEAT, records, lease_ms=lease_ms)
        alive = {(row[0], row[1]) for row in rows}
        _notify_progress(
            transaction,
            [
                item.job_id
                for item in heartbeats
                if item.notify_progress and (item.job_id, item.lease) in alive
            ],
        )
        transaction.notice.changed = any(item.progress is not None for item in heartbeats)
        return HeartbeatReply(
            lost=frozenset(item.job_id for item in heartbeats if (item.job_id, item.lease) not in alive),
            cancel=frozenset(row[0] for row in rows if row[2]),
            expired=frozenset(row[0] for row in rows if row[3]),
        )

    @override
    @writing
    def mark_published(self, transaction: Transaction, job_id: str, lease: int, uri: str) -> bool:
        job = read_by_id(transaction, [job_id], lock=True).get(job_id)
        if job is None or not job.state.ended or job.lease != lease:
            return False
        completed = job.state is JobState.COMPLETED
        transaction.run(
            _MARK_PUBLISHED,
            id=job_id,
            published_uri=clean(uri) if completed else "",
            failure=dump(job.failure if completed else _failure_with_uri(job, uri)),
        )
        if transaction.outbox:
            transaction.outbox.job_published(transaction, job, uri)
        transaction.notice.changed = True
        return True

    @override
    @writing
    def maintain(self, transaction: Transaction, limit: int) -> MaintenanceCounts:
        limit = max(limit, 0)
        lost = read_jobs(transaction, _LOST_LEASES, row_limit=limit)
        changed = write_changes(transaction, [lost_lease_change(job) for job in lost])
        states = [job.state for job in changed.values()]
        over = read_jobs(transaction, _PAST_DEADLINE, row_limit=limit)
        expired = write_changes(transaction, [change(job, JobEvent.EXPIRE) for job in over])
        over = read_jobs(transaction, _PAST_TIME_TO_LIVE, row_limit=limit - len(expired))
        expired |= write_changes(transaction, [change(job, JobEvent.EXPIRE) for job in over])
        woken = [row[0] for row in transaction.run(_WAKE, row_limit=limit)]
        transaction.notice.queues.update(woken)
        return MaintenanceCounts(
            returned=states.count(JobState.PENDING),
            failed=states.count(JobState.FAILED),
            cancelled=states.count(JobState.CANCELLED),
            expired=len(expired),
            woken=len(woken),
        )


def _settle(transaction: Transaction, settlements: Sequence[Settlement]) -> tuple[bool, ...]:
    jobs = read_by_id(transaction, [settlement.job_id for settlement in settlements], lock=True)
    changes: dict[str, Change] = {}
    accepted: list[bool] = []
    for settlement in settlements:
        job = jobs.get(settlement.job_id)
        counts = (
            job is not None
            and job.id not in changes
            and job.state is JobState.RUNNING
            and job.lease == settlement.lease
        )
        if counts and job is not None:
            changes[job.id] = settlement_change(job, settlement)
        accepted.append(counts)
    write_changes(transaction, list(changes.values()))
    return tuple(accepted)


def _claim(transaction: Transaction, claim: ClaimRequest, queues: Sequence[str], *, near: bool) -> list[Job]:
    """Claim from the queues in order; `near` takes the jobs of the worker's region and of none."""
    claimed: list[Job] = []
    for place, queue in enumerate(queues):
        free = claim.jobs_max - len(claimed)
        if free <= 0 or (
            claimed and place and _next_is_alone(transaction, claim, queues[place - 1], near=near)
        ):
            break
        found = read_jobs(
            transaction,
            _CLAIM_NEAR if near else _CLAIM,
            queue=queue,
            row_limit=free,
            taken=len(claimed),
            worker=clean(claim.worker),
            region=clean(claim.region),
            lease_ms=claim.lease_ms,
            crashes_together_max=CRASHES_TOGETHER_MAX,
        )
        found.sort(key=lambda job: (job.spec.priority, job.due_at_ms, job.id))
        claimed += found
        if found and found[0].alone:
            break
    transaction.notice.changed = transaction.notice.changed or bool(claimed)
    return claimed


def _next_is_alone(transaction: Transaction, claim: ClaimRequest, queue: str, *, near: bool) -> bool:
    """Return True if the next job must run alone: no other job may overtake it."""
    values: dict[str, Any] = {"queue": queue, "crashes_together_max": CRASHES_TOGETHER_MAX}
    if near:
        rows = transaction.run(_NEXT_IS_ALONE_NEAR, region=clean(claim.region), **values)
    else:
        rows = transaction.run(_NEXT_IS_ALONE, **values)
    return any(row[0] for row in rows)


def _notify_progress(transaction: Transaction, job_ids: Sequence[str]) -> None:
    if not transaction.outbox:
        return
    for job in read_by_id(transaction, job_ids).values():
        if job.progress is not None:
            transaction.outbox.job_progressed(transaction, job, job.progress)


def _failure_with_uri(job: Job, uri: str) -> JobFailure:
    """Return the reason of an end without a result, with the URI of the object that explains it."""
    failure = job.failure or JobFailure(Cause(job.state.value), f"the job was {job.state.value}")
    return replace(failure, uri=clean(uri))
