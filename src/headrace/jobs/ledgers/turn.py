"""Settling attempts and claiming jobs: what workers do all day, in one transaction."""

from collections.abc import Sequence
from typing import Final

from headrace.jobs.job import CRASHES_TOGETHER_MAX, Job, Settlement
from headrace.jobs.ledger import ClaimRequest, Turn
from headrace.jobs.ledgers.changes import write_changes
from headrace.jobs.ledgers.database import Statement, Transaction
from headrace.jobs.ledgers.dialect import CLOCK, NOW_MS, known_by_id
from headrace.jobs.ledgers.reading import read_jobs
from headrace.jobs.ledgers.rows import NOT_OVER, RETURNED, clean, job_of
from headrace.jobs.ledgers.transitions import Change, settled
from headrace.jobs.state import JobEvent, JobState, after, sources

SLEEPERS_MAX: Final = 1000
"""Jobs whose due time came since the last upkeep are put in order with the others, up to so many of a queue."""

_RUNNING: Final = JobState.RUNNING.value
assert sources(JobEvent.CLAIM) == {JobState.PENDING}
assert after(JobState.PENDING, JobEvent.CLAIM) is JobState.RUNNING

_CANDIDATE: Final = f"""
    SELECT job.id AS candidate_id, job.priority AS candidate_priority, job.due_at_ms AS candidate_due,
        job.crashes >= {CRASHES_TOGETHER_MAX} AS alone
    FROM headrace_job AS job
    WHERE job.queue = :queue AND {NOT_OVER}"""
_AWAKE: Final = "job.state = 'pending' AND NOT job.asleep"
_IN_ORDER: Final = "ORDER BY job.priority, job.due_at_ms, job.id LIMIT :room"
# A few at most: upkeep gives them their places in the index of those that are awake. They are found by the index of those
# that sleep, and then by their ids.
_SLEEPER: Final = f"""{known_by_id("job", JobState.PENDING)} AND job.asleep AND job.id IN (
        SELECT sleeper.id FROM headrace_job AS sleeper
        WHERE sleeper.queue = :queue AND sleeper.state = 'pending' AND sleeper.asleep AND sleeper.due_at_ms <= {NOW_MS}
        ORDER BY sleeper.due_at_ms LIMIT {SLEEPERS_MAX}
    )"""
_NUMBERED: Final = """
    SELECT candidate_id, alone,
        row_number() OVER (ORDER BY candidate_priority, candidate_due, candidate_id) AS place
    FROM (SELECT * FROM awake UNION ALL SELECT * FROM woken) AS candidate"""

# What is found is locked before anything is changed, in steps of their own that cannot be planned into the rest, or more
# might be taken than was asked for. Of jobs that must be alone the first one is taken if nothing else is, and nothing
# behind it.
_CLAIM = Statement(
    lambda dialect: (
        f"""
WITH {CLOCK}, awake AS MATERIALIZED ({_CANDIDATE}
        AND {_AWAKE} AND NOT EXISTS (SELECT 1 FROM headrace_queue WHERE name = :queue AND paused)
    {_IN_ORDER} {dialect.lock_free}
), woken AS MATERIALIZED ({_CANDIDATE}
        AND {_SLEEPER} AND NOT EXISTS (SELECT 1 FROM headrace_queue WHERE name = :queue AND paused)
    {_IN_ORDER} {dialect.lock_free}
), numbered AS MATERIALIZED ({_NUMBERED})
UPDATE headrace_job SET
    state = '{_RUNNING}', asleep = FALSE, attempt = headrace_job.attempt + 1, lease = headrace_job.lease + 1,
    worker = :worker, started_at_ms = now_ms, lease_until_ms = now_ms + :lease_ms, progress = NULL
FROM numbered, clock
WHERE headrace_job.id = candidate_id AND {known_by_id("headrace_job", JobState.PENDING)} AND place <= :room
    AND (place < coalesce((SELECT min(place) FROM numbered WHERE alone), :room + 1) OR (place = 1 AND :taken = 0))
RETURNING {RETURNED}
"""
    )
)

_ALONE_NEXT = Statement(
    lambda _: (
        f"""
WITH awake AS ({_CANDIDATE} AND {_AWAKE} {_IN_ORDER}), woken AS ({_CANDIDATE} AND {_SLEEPER} {_IN_ORDER})
SELECT alone FROM (SELECT * FROM awake UNION ALL SELECT * FROM woken) AS candidate
ORDER BY candidate_priority, candidate_due, candidate_id LIMIT 1
"""
    )
)

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


def turn(transaction: Transaction, settlements: Sequence[Settlement], claim: ClaimRequest | None) -> Turn:
    """See `JobLedger.turn`."""
    accepted = _settle(transaction, settlements)
    if claim is None:
        return Turn(accepted, ())
    queues = list(dict.fromkeys(claim.queues))
    claimed = _claim(transaction, claim, queues)
    if len(claimed) >= claim.jobs_max:
        return Turn(accepted, tuple(claimed))
    due_in_ms = transaction.run(_DUE_IN, [{"queue_name": name} for name in queues])[0][0]
    return Turn(accepted, tuple(claimed), None if due_in_ms is None else max(0, due_in_ms))


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
            changes[job.id] = settled(job, settlement)
        accepted.append(counts)
    write_changes(transaction, list(changes.values()))
    return tuple(accepted)


def _claim(transaction: Transaction, claim: ClaimRequest, queues: Sequence[str]) -> list[Job]:
    claimed: list[Job] = []
    for place, queue in enumerate(queues):
        room = claim.jobs_max - len(claimed)
        if room <= 0 or (claimed and place and _alone_is_next(transaction, queues[place - 1])):
            break
        rows = transaction.run(
            _CLAIM,
            queue=queue,
            room=room,
            taken=len(claimed),
            worker=clean(claim.worker),
            lease_ms=claim.lease_ms,
        )
        found = sorted(map(job_of, rows), key=_order)
        claimed += found
        if found and found[0].alone:
            break
    transaction.news.changed = transaction.news.changed or bool(claimed)
    return claimed


def _alone_is_next(transaction: Transaction, queue: str) -> bool:
    """Whether what was claimed ended before a job that must be alone, so that nothing may go ahead of that."""
    return any(row[0] for row in transaction.run(_ALONE_NEXT, queue=queue, room=1))


def _order(job: Job) -> tuple[int, int, str]:
    return job.spec.priority, job.due_at_ms, job.id
