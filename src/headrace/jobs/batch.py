"""Batches of submissions: many jobs in one request, each with its own reply, or all of them or none."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, cast

from headrace.core.errors import (
    DataError,
    HeadraceError,
    JobLedgerUnavailableError,
    QueueFullError,
)
from headrace.jobs.access import ApiKey, Scope
from headrace.jobs.intake import PASSING_REFUSALS, CheckedJob, JobIntake
from headrace.jobs.job import NewJob
from headrace.jobs.ledger import SubmitReply
from headrace.jobs.submission import (
    Submission,
    SubmissionHeaders,
    SubmissionLimits,
    format_value,
    read_object,
    read_submission,
    refuse_unknown,
)

BATCH_JOBS_MAX: Final = 1_000
STORING_THREADS: Final = 16
"""The number of payloads of a batch that are stored at the same time."""
_FIELDS: Final = ("jobs", "all_or_nothing")

BatchEntry = Submission | HeadraceError
BatchReply = SubmitReply | Exception


@dataclass(frozen=True, slots=True)
class SubmissionBatch:
    """Submissions of one request, in order; one that is malformed is an error."""

    entries: tuple[BatchEntry, ...]
    all_or_nothing: bool = False


def read_batch(
    body: bytes, limits: SubmissionLimits, *, trace: str = "", model_optional: bool = False
) -> SubmissionBatch:
    """Parse a batch: ``{"jobs": [...], "all_or_nothing": false}``.

    Each job is a document as `read_document` parses it, and may have an ``idempotency_key``. Raise
    DataError for another shape, and for more than `BATCH_JOBS_MAX` jobs.
    """
    document = read_object(body)
    refuse_unknown(document, _FIELDS, "a batch")
    jobs, all_or_nothing = document.get("jobs"), document.get("all_or_nothing", False)
    if not isinstance(jobs, list) or not jobs:
        raise DataError(f"jobs: must be a list of at least one submission, not {format_value(jobs)}")
    if not isinstance(all_or_nothing, bool):
        raise DataError(f"all_or_nothing: must be true or false, not {format_value(all_or_nothing)}")
    submitted = cast("list[Any]", jobs)
    if len(submitted) > BATCH_JOBS_MAX:
        raise DataError(f"jobs: {len(submitted)} jobs exceed the limit of {BATCH_JOBS_MAX} in a batch")
    read = partial(_read_entry, limits=limits, trace=trace, model_optional=model_optional)
    return SubmissionBatch(tuple(map(read, submitted)), all_or_nothing)


def _read_entry(found: Any, *, limits: SubmissionLimits, trace: str, model_optional: bool) -> BatchEntry:
    try:
        if not isinstance(found, dict):
            raise DataError(f"a job must be a JSON object, not {format_value(found)}")
        document = dict(cast("dict[str, Any]", found))
        key: Any = document.pop("idempotency_key", None)
        if not isinstance(key, str | None):
            raise DataError(f"idempotency_key: must be a string, not {format_value(key)}")
        headers = SubmissionHeaders(idempotency_key=key or "", trace=trace)
        return read_submission(document, headers, limits, model_optional=model_optional)
    except HeadraceError as error:
        return error


class BatchIntake(JobIntake):
    """The intake of jobs, also of many in one call."""

    def submit_batch(self, key: ApiKey, batch: SubmissionBatch) -> list[BatchReply]:
        """Queue the jobs of a batch in one transaction. Return one reply for each, in order.

        Jobs are refused as `submit` refuses them. The tenant's quota admits the new jobs of a batch
        together, or none of them. With `all_or_nothing`, the error of the first refused job is raised
        with its index in the message, and nothing was queued.

        Also raise ForbiddenError without the scope, and JobLedgerUnavailableError: the batch may be
        queued then, and may be sent again if its jobs have idempotency keys.
        """
        key.require(Scope.SUBMIT)
        replies: dict[int, BatchReply] = {}
        checked: dict[int, CheckedJob] = {}
        for index, entry in enumerate(batch.entries):
            outcome = self._checked_or_reply(key, entry)
            if isinstance(outcome, CheckedJob):
                checked[index] = outcome
            else:
                replies[index] = outcome
        if checked and not _is_refused(batch, replies):
            replies |= self._admit_batch(key, batch, checked)
        if _is_refused(batch, replies):
            raise _first_refusal(replies)
        return [replies[index] for index in range(len(batch.entries))]

    def _checked_or_reply(self, key: ApiKey, entry: BatchEntry) -> CheckedJob | BatchReply:
        """Return an entry that may be queued, or its reply without that."""
        if isinstance(entry, HeadraceError):
            return entry
        try:
            checked = self._check(key, entry)
            try:
                return self._use(key, checked)
            except PASSING_REFUSALS as refusal:
                return self._existing_reply(checked) or refusal
        except JobLedgerUnavailableError:
            raise
        except HeadraceError as error:
            return error

    def _admit_batch(
        self, key: ApiKey, batch: SubmissionBatch, checked: Mapping[int, CheckedJob]
    ) -> dict[int, BatchReply]:
        """Queue checked jobs if the tenant's quota has places for all of them."""
        try:
            self._admit(key, len(checked))
        except QueueFullError as full:
            return {index: self._existing_reply(each) or full for index, each in checked.items()}
        try:
            return self._queue(key, batch, checked)
        finally:
            self._arrived(key, len(checked))

    def _queue(
        self, key: ApiKey, batch: SubmissionBatch, checked: Mapping[int, CheckedJob]
    ) -> dict[int, BatchReply]:
        """Store the payloads of admitted jobs and queue them. Delete payloads that no job has."""
        jobs: dict[int, NewJob] = {}
        replies: dict[int, BatchReply] = {}
        with ThreadPoolExecutor(min(STORING_THREADS, len(checked)), "headrace-batch") as threads:
            storing = {index: threads.submit(self._with_input, key, each) for index, each in checked.items()}
        for index, stored in storing.items():
            try:
                jobs[index] = stored.result()
            except HeadraceError as error:
                replies[index] = error
        if jobs and not _is_refused(batch, replies):
            found = self._submitter.submit_together(
                list(jobs.values()),
                [checked[index].warnings for index in jobs],
                all_or_nothing=batch.all_or_nothing,
            )
            replies |= zip(jobs, found, strict=True)
        is_refused = _is_refused(batch, replies)
        for index, job in jobs.items():
            reply = replies.get(index)
            is_new = not is_refused and isinstance(reply, SubmitReply) and reply.created
            if not is_new and (uri := checked[index].stored_uri(job)):
                self._clean(uri)
        return replies


def _is_refused(batch: SubmissionBatch, replies: Mapping[int, BatchReply]) -> bool:
    """Return True if no job of the batch may be queued."""
    return batch.all_or_nothing and any(isinstance(reply, Exception) for reply in replies.values())


def _first_refusal(replies: Mapping[int, BatchReply]) -> Exception:
    """Return the first error among replies, with its index in the message."""
    index, error = min((index, reply) for index, reply in replies.items() if isinstance(reply, Exception))
    error.args = (f"nothing was queued, because of jobs[{index}]: {error}", *error.args[1:])
    return error
