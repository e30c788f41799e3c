"""Settling attempts and claiming jobs in one transaction: the main operation of workers."""

from collections.abc import Mapping, Sequence
from typing import Final

from headrace.jobs.job import CRASHES_TOGETHER_MAX, Job, Settlement
from headrace.jobs.ledger import ClaimRequest, SettleAndClaimReply
from headrace.jobs.ledgers.changes import write_changes
from headrace.jobs.ledgers.database import Statement, Transaction
from headrace.jobs.ledgers.dialect import CLOCK, NOW_MS, SqlDialect, known_by_id
from headrace.jobs.ledgers.lookup import read_jobs
from headrace.jobs.ledgers.rows import NOT_OVER, RETURNED, clean, job_of
from headrace.jobs.ledgers.transitions import Change, settlement_change
from headrace.jobs.state import JobEvent, JobState, next_state, source_states

SLEEPERS_MAX: Final = 1000
"""The number of a queue's jobs that became due since the last maintenance and are claimed in order.
"""

_RUNNING: Final = JobState.RUNNING.value
assert source_states(JobEvent.CLAIM) == {JobState.PENDING}
assert next_state(JobState.PENDING, JobEvent.CLAIM) is JobState.RUNNING

_CANDIDATE: Final = f"""
    SELECT job.id AS candidate_id, job.priority AS candidate_priority, job.due_at_ms AS candidate_due,
        job.crashes >= {CRASHES_TOGETHER_MAX} AS alone
    FROM headrace_job AS job
    WHERE job.queue = :queue AND {NOT_OVER}"""
_AWAKE: Final = "job.state = 'pending' AND NOT job.asleep"
_IN_ORDER: Final = "ORDER BY job.priority, job.due_at_ms, job.id LIMIT :row_limit"
# Only a few: maintenance moves them to the index of jobs that are awake. They are found by the
# index of sleeping jobs, and then by their ids.
_SLEEPER: Final = f"""{known_by_id("job", JobState.PENDING)} AND job.asleep AND job.id IN (
        SELECT sleeper.id FROM headrace_job AS sleeper
        WHERE sleeper.queue = :queue AND sleeper.state = 'pending' AND sleeper.asleep
            AND sleeper.due_at_ms <= {NOW_MS}
        ORDER BY sleeper.due_at_ms LIMIT {SLEEPERS_MAX}
    )"""
_ALL: Final = {"awake": _AWAKE, "woken": _SLEEPER}
# The condition on length makes the index of regions usable: each of the two regions has its jobs
# there in order.
_OF_REGION: Final = f"{_AWAKE} AND length(job.region) >= 0 AND job.region"
_NEAR: Final = {
    "own": f"{_OF_REGION} = :region",
    "nowhere": f"{_OF_REGION} = ''",
    "woken": f"{_SLEEPER} AND job.region IN (:region, '')",
}
"""The sources of candidates by name: jobs of all regions, or those of the worker's own and of none.
"""


def _union(candidates: Mapping[str, str]) -> str:
    return " UNION ALL ".join(f"SELECT * FROM {name}" for name in candidates)


# The candidates are locked before anything is changed, in separate steps that cannot be merged into
# the rest; otherwise more might be claimed than requested. Of jobs that must run alone, the first
# is claimed if no other job is, and no job behind it.
def _claiming(dialect: SqlDialect, candidates: Mapping[str, str]) -> str:
    found = ", ".join(
        f"""{name} AS MATERIALIZED ({_CANDIDATE}
        AND {condition} AND NOT EXISTS (SELECT 1 FROM headrace_queue WHERE name = :queue AND paused)
    {_IN_ORDER} {dialect.lock_free}
)"""
        for name, condition in candidates.items()
    )
    return f"""
WITH {CLOCK}, {found}, numbered AS MATERIALIZED (
    SELECT candidate_id, alone,
        row_number() OVER (ORDER BY candidate_priority, candidate_due, candidate_id) AS place
    FROM ({_union(candidates)}) AS candidate
)
UPDATE headrace_job SET
    state = '{_RUNNING}', asleep = FALSE, attempt = headrace_job.attempt + 1, lease = headrace_job.lease + 1,
    worker = :worker, worker_region = :region, started_at_ms = now_ms,
    lease_until_ms = now_ms + :lease_ms, progress = NULL
FROM numbered, clock
WHERE headrace_job.id = candidate_id AND {known_by_id("headrace_job", JobState.PENDING)}
    AND place <= :row_limit
    AND (place < coalesce((SELECT min(place) FROM numbered WHERE alone), :row_limit + 1)
        OR (place = 1 AND :taken = 0))
RETURNING {RETURNED}
"""


def _next_alone(candidates: Mapping[str, str]) -> str:
    found = ", ".join(
        f"{name} AS ({_CANDIDATE} AND {condition} {_IN_ORDER})" for name, condition in candidates.items()
    )
    return f"""
WITH {found} SELECT alone FROM ({_union(candidates)}) AS candidate
ORDER BY candidate_priority, candidate_due, candidate_id LIMIT 1
"""


_CLAIM = Statement(lambda dialect: _claiming(dialect, _ALL))
_CLAIM_NEAR = Statement(lambda dialect: _claiming(dialect, _NEAR))
_ALONE_NEXT = Statement(lambda _: _next_alone(_ALL))
_ALONE_NEXT_NEAR = Statement(lambda _: _next_alone(_NEAR))

_DUE_IN = Statement(
    lambda dialect: (
        f"""
WITH {dialect.records({"queue_name": "text"})}
SELECT min(coalesce(
    (SELECT 0 FROM headrace_job AS job
        WHERE job.queue = queue_name AND job.state = 'pending' AND NOT job.asleep AND {NOT_OVER} LIMIT 1),
    (SELECT job.due_at_ms - {NOW_MS} FROM headrace_job AS job
        WHERE job.queue = queue_name AND job.state = 'pending' AND job.asleep AND {NOT_OVER}
        ORDER BY job.due_at_ms LIMIT 1)
))
FROM given
WHERE NOT EXISTS (SELECT 1 FROM headrace_queue WHERE name = queue_name AND paused)
"""
    )
)

# Sleeping jobs of other regions are skipped up to a limit; polling finds the rest.
_DUE_IN_NEAR = Statement(
    lambda dialect: (
        f"""
WITH {dialect.records({"queue_name": "text"})}
SELECT min(coalesce(
    (SELECT 0 FROM headrace_job AS job
        WHERE job.queue = queue_name AND {_OF_REGION} = :region AND {NOT_OVER} LIMIT 1),
    (SELECT 0 FROM headrace_job AS job
        WHERE job.queue = queue_name AND {_OF_REGION} = '' AND {NOT_OVER} LIMIT 1),
    (SELECT min(sleeper.due_at_ms) - {NOW_MS} FROM (
        SELECT job.region, job.due_at_ms FROM headrace_job AS job
        WHERE job.queue = queue_name AND job.state = 'pending' AND job.asleep AND {NOT_OVER}
        ORDER BY job.due_at_ms LIMIT {SLEEPERS_MAX}
    ) AS sleeper WHERE sleeper.region IN (:region, ''))
))
FROM given
WHERE NOT EXISTS (SELECT 1 FROM headrace_queue WHERE name = queue_name AND paused)
"""
    )
)


def settle_and_claim(
    transaction: Transaction, settlements: Sequence[Settlement], claim: ClaimRequest | None
) -> SettleAndClaimReply:
    """Implement `JobLedger.settle_and_claim`."""
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
    names = [{"queue_name": name} for name in queues]
    rows = (
        transaction.run(_DUE_IN_NEAR, names, region=clean(claim.region))
        if near
        else transaction.run(_DUE_IN, names)
    )
    due_in_ms = rows[0][0]
    return SettleAndClaimReply(accepted, tuple(claimed), None if due_in_ms is None else max(0, due_in_ms))


def _settle(transaction: Transaction, settlements: Sequence[Settlement]) -> tuple[bool, ...]:
    jobs = read_jobs(transaction, [settlement.job_id for settlement in settlements], lock=True)
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
    claimed: list[Job] = []
    for place, queue in enumerate(queues):
        free = claim.jobs_max - len(claimed)
        if free <= 0 or (
            claimed and place and _alone_is_next(transaction, claim, queues[place - 1], near=near)
        ):
            break
        rows = transaction.run(
            _CLAIM_NEAR if near else _CLAIM,
            queue=queue,
            row_limit=free,
            taken=len(claimed),
            worker=clean(claim.worker),
            region=clean(claim.region),
            lease_ms=claim.lease_ms,
        )
        found = sorted(map(job_of, rows), key=_order)
        claimed += found
        if found and found[0].alone:
            break
    transaction.notice.changed = transaction.notice.changed or bool(claimed)
    return claimed


def _alone_is_next(transaction: Transaction, claim: ClaimRequest, queue: str, *, near: bool) -> bool:
    """Return True if the next job must run alone: no other job may overtake it."""
    if near:
        rows = transaction.run(_ALONE_NEXT_NEAR, queue=queue, row_limit=1, region=clean(claim.region))
    else:
        rows = transaction.run(_ALONE_NEXT, queue=queue, row_limit=1)
    return any(row[0] for row in rows)


def _order(job: Job) -> tuple[int, int, str]:
    return job.spec.priority, job.due_at_ms, job.id
