"""Jobs that come after others: the rows of ``headrace_dependency``, and the ends of prerequisites.

A blocked job has a row for each job of its `after` that has not completed. The transaction that ends
such a prerequisite also changes the jobs that come after it. It locks these before it counts the rows
that are left: of two transactions that end the last two prerequisites of a job at the same time, the
later one sees the rows that the earlier one has deleted.

`write_changes` writes all changes of jobs except claims. A job that no other comes after costs no
further statement.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from headrace.core.errors import JobNotFoundError, JobStateError
from headrace.jobs.history import HistoryEvent
from headrace.jobs.job import Job, JobFailure, NewJob
from headrace.jobs.ledgers.database import Row, Transaction, read_statement
from headrace.jobs.ledgers.rows import Change, Note, change, read_by_id, write_rows
from headrace.jobs.state import Cause, JobEvent, JobState

_STATEMENT_ROWS: Final = 500
"""The number of jobs, or of pairs of jobs, that one statement reads or writes."""
_WILL_NOT_COMPLETE: Final = "it will not complete: retry it first, or leave it out of `after`"
_RETRY_FIRST: Final = "a job that comes after it cannot be retried: retry it first"

_INSERT: Final = read_statement("insert_dependencies")
_SET_DEPENDENTS: Final = read_statement("set_dependents")
_DEPENDENTS: Final = read_statement("dependents")
_DELETE: Final = read_statement("delete_dependencies")
_DELETE_OF: Final = read_statement("delete_dependencies_of")
_STILL_BLOCKED: Final = read_statement("still_blocked")

_T = TypeVar("_T")
Waits = Mapping[str, tuple[str, ...]]
"""The unfinished jobs that others come after, by the ids of these."""


def write_changes(transaction: Transaction, changes: Sequence[Change]) -> dict[str, Job]:
    """Write changes of locked jobs, and those that follow for the jobs that come after them.

    Return the changed jobs among `changes` by id.
    """
    written = write_rows(transaction, changes)
    _delete_of(transaction, [each.before.id for each in changes if each.before.state is JobState.BLOCKED])
    _resolve(transaction, _prerequisites(written.values()))
    return written


def read_prerequisites(transaction: Transaction, job_ids: Iterable[str]) -> dict[str, Job]:
    """Lock the existing jobs among these ids, and return them by id.

    Workers whose claims skip the locked jobs meanwhile are woken afterwards.
    """
    found: dict[str, Job] = {}
    for some in _batches(sorted(set(job_ids))):
        found |= read_by_id(transaction, some, lock=True)
    pending = (job for job in found.values() if job.state is JobState.PENDING)
    transaction.notice.queues.update(job.spec.queue for job in pending)
    return found


def add_dependencies(transaction: Transaction, waits: Waits) -> None:
    """Write the rows of blocked jobs, whose prerequisites are locked or new, and mark these."""
    pairs = [(job_id, after_id) for job_id, after_ids in waits.items() for after_id in after_ids]
    for some in _batches(pairs):
        transaction.run(_INSERT, _pairs(some))
        prerequisites = sorted({after_id for _, after_id in some})
        transaction.run(_SET_DEPENDENTS, [{"prerequisite_id": job_id} for job_id in prerequisites])


def unfinished(new: NewJob, known: Mapping[str, Job], together: Mapping[str, NewJob]) -> tuple[str, ...]:
    """Return the jobs of `after` that a new job waits for.

    `together` are earlier jobs of the same submission. Raise JobNotFoundError for a job that does not
    exist or belongs to another tenant, and JobStateError for one that ended without completing.
    """
    waits: list[str] = []
    for job_id in new.after:
        job = known.get(job_id)
        spec = together.get(job_id) if job is None else job.spec
        if spec is None or spec.tenant != new.tenant:
            raise JobNotFoundError(job_id)
        if job is None or not job.state.ended:
            waits.append(job_id)
        elif job.state is not JobState.COMPLETED:
            raise JobStateError(job_id, job.state.value, _WILL_NOT_COMPLETE)
    return tuple(waits)


def unfinished_again(
    jobs: Sequence[Job], known: Mapping[str, Job], republished: Collection[str] = ()
) -> tuple[dict[str, tuple[str, ...]], dict[str, JobStateError]]:
    """Return the jobs of `after` that each of `jobs` waits for if these are requeued, and the refused ones.

    A job is refused if one that it comes after ended without completing, unless that one is restarted
    together with it: it is among `jobs` and not refused itself, or among the `republished` ids. Deleted
    jobs count as completed.
    """
    refused = _refused(jobs, known, republished)
    restarted = {job.id for job in jobs if job.id not in refused} | set(republished)
    waits: dict[str, tuple[str, ...]] = {}
    for job in jobs:
        if job.id not in refused:
            before = [known[job_id] for job_id in job.spec.after if job_id in known]
            waits[job.id] = tuple(
                each.id
                for each in before
                if each.spec.tenant == job.spec.tenant and (each.id in restarted or not each.state.ended)
            )
    return waits, refused


def _refused(
    jobs: Sequence[Job], known: Mapping[str, Job], republished: Collection[str]
) -> dict[str, JobStateError]:
    """Return the refusals of jobs that come after one that stays ended without having completed."""
    restarted = {job.id for job in jobs} | set(republished)
    dependents: dict[str, list[Job]] = {}
    for job in jobs:
        for job_id in job.spec.after:
            dependents.setdefault(job_id, []).append(job)
    refused: dict[str, JobStateError] = {}
    failed = [job for job in known.values() if job.id not in restarted and _did_not_complete(job)]
    while failed:
        before = failed.pop()
        for job in dependents.get(before.id, ()):
            if job.id not in refused and job.spec.tenant == before.spec.tenant:
                refused[job.id] = JobStateError(before.id, before.state.value, _RETRY_FIRST)
                if _did_not_complete(job):
                    failed.append(job)
    return refused


def _did_not_complete(job: Job) -> bool:
    return job.state.ended and job.state is not JobState.COMPLETED


def dependent_change(job: Job, ended: Sequence[Job], *, waits: bool) -> Change | None:
    """Return the change of a blocked job after jobs of its `after` ended; None if it stays blocked.

    `waits`: the job comes after others that are unfinished.
    """
    failed = next(filter(_did_not_complete, ended), None)
    if failed is not None:
        why = f"job {failed.id} of `after` is {failed.state.value}: retry it first, then this job"
        return change(job, JobEvent.FAIL, failure=JobFailure(Cause.PREREQUISITE, why))
    if waits:
        return None
    note = Note(HistoryEvent.UNBLOCKED)
    return change(job, JobEvent.UNBLOCK, due_in_ms=max(0, job.spec.delay_ms), note=note)


def _resolve(transaction: Transaction, ended: list[Job]) -> None:
    """Unblock or fail the jobs that come after ended ones, then those that come after the failed, and so on.

    Each statement reads and writes a bounded number of rows. Every round deletes the rows that it has read,
    so that the next one finds others.
    """
    while ended:
        some, ended = ended[:_STATEMENT_ROWS], ended[_STATEMENT_ROWS:]
        by_id = {job.id: job for job in some}
        records = [{"ended_id": job_id} for job_id in by_id]
        while pairs := transaction.run(_DEPENDENTS, records, row_limit=_STATEMENT_ROWS):
            ended += _resolve_some(transaction, by_id, pairs)


def _resolve_some(transaction: Transaction, ended: Mapping[str, Job], pairs: Sequence[Row]) -> list[Job]:
    """Change the jobs of some pairs. Return those that failed by it and that others come after."""
    before: dict[str, list[Job]] = {}
    for job_id, after_id in pairs:
        before.setdefault(job_id, []).append(ended[after_id])
    locked = read_by_id(transaction, list(before), lock=True)
    # Deleted and counted after the lock, in statements of their own: they see what other transactions
    # have committed that held the lock.
    transaction.run(_DELETE, _pairs(pairs))
    waiting = {row[0] for row in transaction.run(_STILL_BLOCKED, [_dependent(job_id) for job_id in before])}
    changes = [
        following
        for job in locked.values()
        if job.state is JobState.BLOCKED
        and (following := dependent_change(job, before[job.id], waits=job.id in waiting)) is not None
    ]
    written = write_rows(transaction, changes)
    _delete_of(transaction, [job.id for job in written.values() if job.state.ended and job.id in waiting])
    return _prerequisites(written.values())


def _prerequisites(jobs: Iterable[Job]) -> list[Job]:
    return [job for job in jobs if job.has_dependents and job.state.ended]


def _delete_of(transaction: Transaction, job_ids: Sequence[str]) -> None:
    for some in _batches(job_ids):
        transaction.run(_DELETE_OF, list(map(_dependent, some)))


def _dependent(job_id: str) -> dict[str, Any]:
    return {"dependent_id": job_id}


def _pairs(pairs: Iterable[Sequence[Any]]) -> list[dict[str, Any]]:
    return [{"dependent_id": job_id, "prerequisite_id": after_id} for job_id, after_id in pairs]


def _batches(values: Sequence[_T]) -> Iterator[Sequence[_T]]:
    return (values[begin : begin + _STATEMENT_ROWS] for begin in range(0, len(values), _STATEMENT_ROWS))
