"""The operations of clients: submit, read and list jobs.

Submission is idempotent, and in bulk, as far as the queues accept jobs.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, Final

from typing_extensions import override

from headrace.core.errors import (
    HeadraceError,
    IdempotencyError,
    JobError,
    JobLedgerUnavailableError,
    QueueClosedError,
    QueueFullError,
)
from headrace.jobs.counters import CountedEvent
from headrace.jobs.history import HistoryEntry
from headrace.jobs.job import Job, NewJob, new_job_id, wall_ms
from headrace.jobs.lanes import AGEING_MS_MAX, lane_text
from headrace.jobs.ledger import (
    FAILURES_READ_MAX,
    FailureGroup,
    JobFilter,
    JobLedger,
    Page,
    QueueSettings,
    SubmitReply,
)
from headrace.jobs.ledgers.database import (
    DatabaseOperations,
    Row,
    Transaction,
    read_statement,
    reading,
    writing,
)
from headrace.jobs.ledgers.dependencies import Waits, add_dependencies, read_prerequisites, unfinished
from headrace.jobs.ledgers.job_actions import read_visible
from headrace.jobs.ledgers.listing import find_page
from headrace.jobs.ledgers.output_names import claim_names
from headrace.jobs.ledgers.rows import (
    after_ms,
    clean,
    delete_jobs,
    dump_spec,
    entry_of,
    read_by_id,
    read_by_keys,
    read_jobs,
)
from headrace.jobs.state import JobState

RETRY_AFTER_S: Final = 1.0
_STATEMENT_JOBS: Final = 500
_ROUNDS_MAX: Final = 8
_TEXTS: Final = ("queue", "model", "tenant", "body_digest", "correlation_id", "idempotency_key", "region")
"""Fields of NewJob that are stored unchanged in text columns."""
HISTORY_MAX: Final = 1000
"""The number of last entries that are returned of a longer history."""

_INSERT: Final = read_statement("insert_jobs")
_INSERT_TAGS: Final = read_statement("insert_tags")
_INSERT_QUEUES: Final = read_statement("insert_queues")
_QUEUES: Final = read_statement("queues")
_COUNT_PENDING: Final = read_statement("count_pending")
_FAILURE_GROUPS: Final = read_statement("failure_groups")
_HISTORY: Final = read_statement("history")

Identity = tuple[str, str, str]


class _RolledBack(Exception):  # noqa: N818 - ends a transaction, not an operation
    """The transaction of a submission is undone, because some of its jobs are refused."""

    def __init__(self, replies: list[SubmitReply | Exception]) -> None:
        super().__init__()
        self.replies = replies


class ClientOperations(DatabaseOperations, JobLedger):
    """The operations of a ledger that clients of the job API request."""

    _wall_ms: Callable[[], int] = staticmethod(wall_ms)
    """Returns the time that new ids begin with. Ids sort by it; nothing else depends on it."""

    @override
    def submit(
        self, jobs: Sequence[NewJob], *, all_or_nothing: bool = False
    ) -> list[SubmitReply | Exception]:
        if not jobs:
            return []
        at_ms = self._wall_ms()
        # Before the transaction, so that a repeated one finds the jobs of the first.
        new_ids: set[str] = set()
        named: list[NewJob] = []
        for new in jobs:
            job_id = new.id or new_job_id(at_ms)
            if not new.id:
                new_ids.add(job_id)
            named.append(_cleaned(new, job_id))
        try:
            return self._submit(named, new_ids, all_or_nothing)
        except _RolledBack as refused:
            return refused.replies

    @writing
    def _submit(
        self, transaction: Transaction, jobs: Sequence[NewJob], new_ids: set[str], all_or_nothing: bool
    ) -> list[SubmitReply | Exception]:
        submissions = _Submissions(transaction, list(jobs), new_ids)
        for _ in range(_ROUNDS_MAX):
            remaining = [index for index in range(len(jobs)) if index not in submissions.replies]
            if not remaining:
                replies = [submissions.replies[index] for index in range(len(jobs))]
                if all_or_nothing and any(isinstance(reply, Exception) for reply in replies):
                    raise _RolledBack(replies)
                return replies
            submissions.answer(remaining)
        raise JobLedgerUnavailableError(
            "jobs with these ids or keys changed during the submission, nothing was queued: try again"
        )

    @override
    @reading
    def count_pending(self, transaction: Transaction, tenant: str, *, limit: int) -> int:
        return transaction.run(_COUNT_PENDING, tenant=tenant, row_limit=max(limit, 0))[0][0]

    @override
    @reading
    def get(self, transaction: Transaction, job_id: str, *, tenant: str | None = None) -> Job:
        return read_visible(transaction, job_id, tenant)

    @override
    @reading
    def get_many(self, transaction: Transaction, job_ids: Sequence[str]) -> dict[str, Job]:
        return read_by_id(transaction, job_ids)

    @override
    @reading
    def get_by_key(self, transaction: Transaction, tenant: str, idempotency_key: str) -> Job | None:
        jobs = read_by_keys(transaction, [(tenant, idempotency_key)] if idempotency_key else [])
        return jobs[0] if jobs else None

    @override
    @reading
    def history(self, transaction: Transaction, job_id: str) -> list[HistoryEntry]:
        """Return the last 1000 entries of the history, oldest first; none for an unknown job."""
        rows = transaction.run(_HISTORY, job_id=job_id, row_limit=HISTORY_MAX)
        return [entry_of(row) for row in rows][::-1]

    @override
    @reading
    def find(
        self, transaction: Transaction, job_filter: JobFilter, *, after: str = "", limit: int = 100
    ) -> Page:
        """Return a page of jobs. Raise DataError for an invalid `after`."""
        return find_page(transaction, job_filter, after, limit)

    @override
    @reading
    def failure_groups(
        self, transaction: Transaction, *, tenant: str | None = None, limit: int = 100
    ) -> list[FailureGroup]:
        values: dict[str, Any] = {"jobs_max": FAILURES_READ_MAX, "row_limit": max(limit, 0)}
        condition = "TRUE"
        if tenant is not None:
            condition, values["tenant"] = "job.tenant = :tenant", tenant
        rows = transaction.run(_FAILURE_GROUPS.filled("conditions", condition), **values)
        jobs = read_by_id(transaction, [row[-1] for row in rows])
        return [
            FailureGroup(fingerprint, count, first_ms, last_ms, jobs[job_id])
            for fingerprint, count, first_ms, last_ms, job_id in rows
        ]


@dataclass(slots=True)
class _Submissions:
    """The jobs of one call and their replies. All jobs have ids; the call assigned `new_ids`."""

    transaction: Transaction
    jobs: list[NewJob]
    new_ids: set[str]
    replies: dict[int, SubmitReply | Exception] = field(default_factory=dict[int, SubmitReply | Exception])

    def answer(self, remaining: Sequence[int]) -> None:
        """Answer as many submissions as one pass can; of several for one job the first goes ahead."""
        jobs, replies = self.jobs, self.replies
        first: dict[Identity, int] = {}
        for index in remaining:
            first.setdefault(_identity(jobs[index]), index)
        ahead = {index: jobs[index] for index in first.values()}
        waits = self._plan(ahead)
        inserted = _insert(self.transaction, list(ahead.values()), waits)
        taken = self._claim_names(inserted, [new.id for new in ahead.values() if new.id in inserted])
        dropped = self._write_dependencies(inserted, waits)
        replies |= {index: taken[new.id] for index, new in ahead.items() if new.id in taken}
        missing = {
            index: new for index, new in ahead.items() if new.id not in inserted and new.id not in taken
        }
        replies |= {
            index: SubmitReply(inserted[new.id], True) for index, new in ahead.items() if new.id in inserted
        }
        for job in inserted.values():
            self.transaction.counters.add(CountedEvent.SUBMITTED, job.spec)
        found = _find_existing(self.transaction, list(missing.values())) if missing else {}
        refused: dict[int, NewJob] = {}
        for index, new in missing.items():
            job = found.get(_identity(new)) or found.get(("", "", new.id))
            if job is None:
                refused[index] = new
            else:
                replies[index] = _existing_reply(new, job, self.new_ids)
        for index in remaining:
            leader = first[_identity(jobs[index])]
            leading = replies.get(leader)
            if index != leader and isinstance(leading, SubmitReply):
                replies[index] = _existing_reply(jobs[index], leading.job, set())
            elif jobs[leader].id in taken:
                replies[index] = taken[jobs[leader].id]
        if not refused:
            return
        queues = sorted({new.queue for new in refused.values()})
        created = self.transaction.run(_INSERT_QUEUES, [{"queue_name": name} for name in queues])
        # A submission that precedes others in a full queue may be in the ledger already. Only if a
        # whole pass yields nothing do the queues give the reason.
        if not created and len(refused) == len(ahead):
            self._refuse([index for index in remaining if jobs[index].id not in dropped])

    def _plan(self, ahead: dict[int, NewJob]) -> dict[str, tuple[str, ...]]:
        """Decide about the jobs of `ahead` that come after others. Return what each of them waits for.

        Known and refused jobs are answered and removed from `ahead`. So are, without an answer, those
        that come after an earlier job of the call which a later pass answers.
        """
        dependent = {index: new for index, new in ahead.items() if new.after}
        if not dependent:
            return {}
        found = _find_existing(self.transaction, list(dependent.values()))
        for index, new in dependent.items():
            job = found.get(_identity(new)) or found.get(("", "", new.id))
            if job is not None:
                self.replies[index] = _existing_reply(new, job, self.new_ids)
                del ahead[index]
        earlier = {new.id: index for index, new in reversed(list(enumerate(self.jobs)))}
        new_jobs = [self._renamed(index, earlier) for index in dependent if index in ahead]
        known = read_prerequisites(self.transaction, (job_id for new in new_jobs for job_id in new.after))
        together: dict[str, NewJob] = {}
        waits: dict[str, tuple[str, ...]] = {}
        for index in sorted(ahead):
            new = ahead[index] = self.jobs[index]
            before = {earlier[job_id] for job_id in new.after if earlier.get(job_id, index) < index}
            if any(each not in ahead and each not in self.replies for each in before):
                del ahead[index]
                continue
            try:
                waits[new.id] = unfinished(new, known, together)
            except JobError as error:
                self.replies[index] = error
                del ahead[index]
            else:
                together[new.id] = new
        return waits

    def _renamed(self, index: int, earlier: Mapping[str, int]) -> NewJob:
        """Replace ids of earlier jobs of the tenant that stand for known jobs by the ids of these."""
        new = self.jobs[index]
        replies = {job_id: self.replies.get(earlier.get(job_id, index)) for job_id in new.after}
        after = tuple(
            reply.job.id if isinstance(reply, SubmitReply) and reply.job.spec.tenant == new.tenant else job_id
            for job_id, reply in replies.items()
        )
        if after != new.after:
            new = self.jobs[index] = replace(new, after=after)
        return new

    def _write_dependencies(self, inserted: dict[str, Job], waits: Waits) -> set[str]:
        """Write the dependencies of blocked jobs. Remove and return jobs that come after a refused one."""
        dropped: set[str] = set()
        kept: dict[str, tuple[str, ...]] = {}
        for job_id, after_ids in waits.items():
            if job_id in inserted and any(each in waits and each not in inserted for each in after_ids):
                del inserted[job_id]
                dropped.add(job_id)
            elif job_id in inserted and after_ids:
                kept[job_id] = after_ids
        delete_jobs(self.transaction, sorted(dropped))
        add_dependencies(self.transaction, kept)
        return dropped

    def _claim_names(self, inserted: dict[str, Job], job_ids: Sequence[str]) -> dict[str, HeadraceError]:
        """Claim the output names of the inserted jobs, in the order of their ids here.

        Remove and return those that are refused.
        """
        refused: dict[str, HeadraceError] = {}
        jobs = [inserted[job_id] for job_id in job_ids]
        for job_id, claimed in claim_names(self.transaction, jobs).items():
            if isinstance(claimed, Job):
                inserted[job_id] = claimed
            else:
                del inserted[job_id]
                refused[job_id] = claimed
        delete_jobs(self.transaction, list(refused))
        return refused

    def _refuse(self, remaining: Sequence[int]) -> None:
        queues = {queue.name: queue for queue in read_queues(self.transaction)}
        for index in remaining:
            error = _refusal(queues.get(self.jobs[index].queue))
            if index not in self.replies and error is not None:
                self.replies[index] = error


def read_queues(transaction: Transaction) -> list[QueueSettings]:
    """Return the settings of all queues, by name."""
    return [queue_of(row) for row in transaction.run(_QUEUES)]


def queue_of(row: Row) -> QueueSettings:
    """Return the queue settings of a row: name, paused, draining, pending_max, ageing_ms."""
    name, paused, draining, pending_max, ageing_ms = row
    ageing_s = inf if ageing_ms >= AGEING_MS_MAX else ageing_ms / 1000
    return QueueSettings(name, bool(paused), bool(draining), pending_max, ageing_s)


def _cleaned(new: NewJob, job_id: str) -> NewJob:
    """Return the job with this id and with texts that every database accepts."""
    values: dict[str, str] = {}
    for name in _TEXTS:
        text: str = getattr(new, name)
        cleaned = clean(text)
        if cleaned is not text:
            values[name] = cleaned
    cleaned_id = clean(job_id)
    if cleaned_id != new.id:
        values["id"] = cleaned_id
    # Copying a value with many fields costs more than these comparisons. Most jobs have an id and
    # need no change.
    return replace(new, **values) if values else new  # pyright: ignore[reportArgumentType]


def _refusal(queue: QueueSettings | None) -> Exception | None:
    if queue is None:
        return None
    if queue.draining:
        return QueueClosedError(f"queue {queue.name} is draining: submit to another one, or later")
    if queue.pending_max is None:
        return None
    return QueueFullError(
        f"queue {queue.name} has {queue.pending_max} pending jobs of the tenant, its limit: submit later",
        retry_after_s=RETRY_AFTER_S,
    )


def _identity(new: NewJob) -> Identity:
    """Return a job's identity: its tenant and key, or else its id."""
    return (new.tenant, new.idempotency_key, "") if new.idempotency_key else ("", "", new.id)


def _existing_reply(new: NewJob, job: Job, new_ids: set[str]) -> SubmitReply | Exception:
    """Return the reply for a job in the ledger; an id in `new_ids` was inserted by this same call."""
    if job.id == new.id and job.id in new_ids:
        return SubmitReply(job, created=True)
    if (job.spec.body_digest, job.spec.tenant) != (new.body_digest, new.tenant):
        return IdempotencyError(new.idempotency_key or new.id, job.id)
    return SubmitReply(job, created=False)


def _insert(transaction: Transaction, jobs: Sequence[NewJob], waits: Waits) -> dict[str, Job]:
    """Insert jobs as far as their queues accept them; those that wait for others are blocked."""
    inserted: dict[str, Job] = {}
    for begin in range(0, len(jobs), _STATEMENT_JOBS):
        places: Counter[tuple[str, str]] = Counter()
        records = [
            _record(new, places, blocked=bool(waits.get(new.id)))
            for new in jobs[begin : begin + _STATEMENT_JOBS]
        ]
        inserted |= {job.id: job for job in read_jobs(transaction, _INSERT, records=records)}
    tags = [
        {
            "tagged_id": job.id,
            "tag_name": clean(name),
            "tag_value": clean(value),
            "tagged_at_ms": job.created_at_ms,
        }
        for job in inserted.values()
        for name, value in job.spec.tags.items()
    ]
    if tags:
        transaction.run(_INSERT_TAGS, tags)
    if inserted:
        transaction.notice.changed = True
        transaction.notice.queues.update(
            job.spec.queue
            for job in inserted.values()
            if job.state is JobState.PENDING and job.due_at_ms <= job.created_at_ms
        )
    return inserted


def _find_existing(transaction: Transaction, jobs: Sequence[NewJob]) -> dict[Identity, Job]:
    """Return the jobs that are in the ledger already, by identity."""
    keys = [(new.tenant, new.idempotency_key) for new in jobs if new.idempotency_key]
    by_key = {_identity(job.spec): job for job in read_by_keys(transaction, keys)}
    by_id = read_by_id(transaction, [new.id for new in jobs])
    return {("", "", job_id): job for job_id, job in by_id.items()} | by_key


def _record(new: NewJob, places: Counter[tuple[str, str]], *, blocked: bool) -> dict[str, Any]:
    """Return the record of a job. `places` counts the pending jobs by queue and tenant."""
    places[new.queue, new.tenant] += not blocked
    return {
        "new_id": new.id,
        "new_state": (JobState.BLOCKED if blocked else JobState.PENDING).value,
        "place": places[new.queue, new.tenant],
        "new_queue": new.queue,
        "new_model": new.model,
        "new_kind": new.kind,
        "new_tenant": new.tenant,
        "new_priority": new.priority,
        "new_attempts_max": new.attempts_max,
        "new_body_digest": new.body_digest,
        "new_correlation_id": new.correlation_id,
        "new_key": new.idempotency_key or None,
        "new_spec": dump_spec(new),
        "new_region": new.region,
        "new_lane": clean(lane_text(new)),
        "delay_ms": max(0, new.delay_ms),
        "expires_in_ms": after_ms(new.time_to_live_s),
        "deadline_in_ms": after_ms(new.deadline_s),
        "new_keep_ms": after_ms(new.keep_s),
    }
