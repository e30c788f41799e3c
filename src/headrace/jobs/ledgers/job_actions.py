"""The manual changes of jobs: cancel, requeue, republish and delete, one job or many at once."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from typing_extensions import override

from headrace.core.errors import HeadraceError, JobNotFoundError, JobStateError
from headrace.jobs.actions import ActionReply, JobAction, SkipReason, skip_reason
from headrace.jobs.audit import AuditEntry
from headrace.jobs.history import HistoryEvent
from headrace.jobs.job import Job
from headrace.jobs.ledger import JobLedger
from headrace.jobs.ledgers.audit_operations import write_audit
from headrace.jobs.ledgers.database import (
    DatabaseOperations,
    Transaction,
    read_statement,
    writing,
    writing_once,
)
from headrace.jobs.ledgers.dependencies import (
    Waits,
    add_dependencies,
    read_prerequisites,
    unfinished_again,
    write_changes,
)
from headrace.jobs.ledgers.output_names import claim_name
from headrace.jobs.ledgers.rows import (
    Change,
    Note,
    change,
    delete_jobs,
    read_by_id,
    write_notes,
)
from headrace.jobs.paths import output_location
from headrace.jobs.state import JobEvent, JobState, source_states

_INSERT_QUEUES: Final = read_statement("insert_queues")
_REQUEST_CANCEL: Final = read_statement("request_cancel")


class ActionOperations(DatabaseOperations, JobLedger):
    """The operations of a ledger that change jobs manually."""

    @override
    @writing
    def cancel(
        self, transaction: Transaction, job_id: str, *, tenant: str | None = None, by: str = ""
    ) -> Job:
        job = read_visible(transaction, job_id, tenant, lock=True)
        if job.state is JobState.CANCELLED or (job.cancel_requested and not job.state.ended):
            return job
        if job.state not in source_states(JobEvent.CANCEL):
            why = "an ended job cannot be cancelled" if job.state.ended else "its work is done"
            raise JobStateError(job_id, job.state.value, why)
        return _cancel_jobs(transaction, [job], by)[job_id]

    @override
    @writing_once
    def requeue(
        self, transaction: Transaction, job_id: str, *, tenant: str | None = None, by: str = ""
    ) -> Job:
        job = _read_ended(transaction, job_id, tenant, "only an ended job can be requeued")
        waits, refused = unfinished_again([job], read_prerequisites(transaction, job.spec.after))
        if job_id in refused:
            raise refused[job_id]
        change = requeue_change(claim_name(transaction, job, "fail"), by, blocked=bool(waits[job_id]))
        return _write_requeues(transaction, [change], waits)[job_id]

    @override
    @writing_once
    def republish(
        self, transaction: Transaction, job_id: str, *, tenant: str | None = None, by: str = ""
    ) -> Job:
        job = read_visible(transaction, job_id, tenant, lock=True)
        if job.state not in source_states(JobEvent.REPUBLISH):
            raise JobStateError(job_id, job.state.value, "only a failed publication can be repeated")
        change = _republish_change(claim_name(transaction, job, "fail"), by)
        return _write_requeues(transaction, [change], {})[job_id]

    @override
    @writing_once
    def delete(self, transaction: Transaction, job_id: str, *, tenant: str | None = None) -> Job:
        job = _read_ended(transaction, job_id, tenant, "only an ended job can be deleted; cancel it first")
        delete_jobs(transaction, [job_id])
        return job

    @override
    @writing_once
    def apply_action(
        self,
        transaction: Transaction,
        action: JobAction,
        job_ids: Sequence[str],
        *,
        tenant: str | None = None,
        by: str = "",
        audit: AuditEntry | None = None,
    ) -> ActionReply:
        jobs = read_by_id(transaction, job_ids, lock=True)
        skipped: Counter[SkipReason] = Counter()
        chosen: list[Job] = []
        for job_id in dict.fromkeys(job_ids):
            job = jobs.get(job_id)
            reason = skip_reason(action, job, tenant)
            if job is None or reason is not None:
                skipped[reason or SkipReason.GONE] += 1
            else:
                chosen.append(job)
        changed = _act(transaction, action, chosen, by, skipped)
        if audit is not None and changed:
            write_audit(transaction, replace(audit, jobs=len(changed)))
        return ActionReply(tuple(changed[job.id] for job in chosen if job.id in changed), skipped)


def _act(
    transaction: Transaction,
    action: JobAction,
    jobs: Sequence[Job],
    by: str,
    skipped: Counter[SkipReason],
) -> dict[str, Job]:
    """Change locked jobs in states that permit it. Return the changed ones by id, and count the others."""
    if not jobs:
        return {}
    if action is JobAction.DELETE:
        delete_jobs(transaction, [job.id for job in jobs])
        return {job.id: job for job in jobs}
    if action is JobAction.CANCEL:
        return _cancel_jobs(transaction, jobs, by)
    return _restart(transaction, jobs, by, skipped, republishes=action is JobAction.RETRY)


def _restart(
    transaction: Transaction,
    jobs: Sequence[Job],
    by: str,
    skipped: Counter[SkipReason],
    *,
    republishes: bool,
) -> dict[str, Job]:
    """Requeue jobs, or with `republishes` publish the results again that are not published.

    A job whose prerequisites do not permit it takes no name over. One whose prerequisite cannot be
    requeued, because another job has its name, is found only after that.
    """
    published = {job.id for job in jobs if republishes and job.state is JobState.PUBLISH_FAILED}
    known = read_prerequisites(transaction, (job_id for job in jobs for job_id in job.spec.after))
    again = [job for job in jobs if job.id not in published]
    _, early = unfinished_again(again, known, published)
    named = _named(transaction, [job for job in jobs if job.id not in early])
    published &= {job.id for job in named}
    waits, late = unfinished_again([job for job in named if job.id not in published], known, published)
    for reason, number in (
        (SkipReason.PREREQUISITE, len(early) + len(late)),
        (SkipReason.OUTPUT_TAKEN, len(jobs) - len(early) - len(named)),
    ):
        if number:
            skipped[reason] += number
    changes = [
        _republish_change(job, by)
        if job.id in published
        else requeue_change(job, by, blocked=bool(waits[job.id]))
        for job in named
        if job.id not in late
    ]
    return _write_requeues(transaction, changes, waits)


def _cancel_jobs(transaction: Transaction, jobs: Sequence[Job], by: str) -> dict[str, Job]:
    """Cancel locked jobs: waiting ones at once, running ones by a request."""
    note = Note(HistoryEvent.CANCEL_REQUESTED, by=by)
    waiting = [job for job in jobs if job.state is not JobState.RUNNING]
    running = [job for job in jobs if job.state is JobState.RUNNING]
    cancelled = write_changes(transaction, [change(job, JobEvent.CANCEL, note=note) for job in waiting])
    if running:
        transaction.run(_REQUEST_CANCEL, [{"running_id": job.id} for job in running])
        write_notes(transaction, [(job, note) for job in running])
        transaction.notice.queues.update(job.spec.queue for job in running)
        transaction.notice.changed = True
    return cancelled | {job.id: replace(job, cancel_requested=True) for job in running}


def _named(transaction: Transaction, jobs: Sequence[Job]) -> list[Job]:
    """Return the jobs that own the names of their outputs, or took them over, in their order.

    Concurrent transactions lock the names in one order.
    """
    named: dict[str, Job] = {}
    for job in sorted(jobs, key=_location):
        try:
            named[job.id] = claim_name(transaction, job, "fail")
        except HeadraceError:
            continue
    return [named[job.id] for job in jobs if job.id in named]


def _location(job: Job) -> str:
    try:
        return output_location(job.spec) if job.spec.output_uri and job.spec.key else ""
    except HeadraceError:
        return ""


def _write_requeues(transaction: Transaction, changes: Sequence[Change], waits: Waits) -> dict[str, Job]:
    queues = sorted({each.before.spec.queue for each in changes})
    if queues:
        transaction.run(_INSERT_QUEUES, [{"queue_name": name} for name in queues])
    written = write_changes(transaction, changes)
    add_dependencies(transaction, waits)
    return written


def read_visible(transaction: Transaction, job_id: str, tenant: str | None, *, lock: bool = False) -> Job:
    """Return a job. Raise JobNotFoundError, also for another tenant's."""
    job = read_by_id(transaction, [job_id], lock=lock).get(job_id)
    if job is None or tenant not in (None, job.spec.tenant):
        raise JobNotFoundError(job_id)
    return job


def _read_ended(transaction: Transaction, job_id: str, tenant: str | None, why: str) -> Job:
    job = read_visible(transaction, job_id, tenant, lock=True)
    if not job.state.ended:
        raise JobStateError(job_id, job.state.value, why)
    return job


def _republish_change(job: Job, by: str) -> Change:
    note = Note(HistoryEvent.REPUBLISHED, by=by)
    return change(job, JobEvent.REPUBLISH, note=note, publish_in_ms=0)


def requeue_change(job: Job, by: str, *, blocked: bool = False) -> Change:
    """Return the change of an ended job that is requeued: lease number, crashes and cursor stay."""
    return change(
        job,
        JobEvent.BLOCK if blocked else JobEvent.REQUEUE,
        due_in_ms=0,
        restart_times=True,
        note=Note(HistoryEvent.REQUEUED, by=by),
        attempt=0,
        started_at_ms=None,
        cancel_requested=False,
        progress=None,
        result=None,
        failure=None,
    )
