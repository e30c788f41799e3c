"""Publication of a job's end: ``KEY.out``, or ``KEY.error`` with the reason.

An attempt writes under its lease number, and the ledger decides whose result counts. Only then is
it copied to the public name. Readers of that name therefore never see a result that does not count,
and repeating the publication is harmless.
"""

import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import orjson

from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import AccessDeniedError, HeadraceError, JobLedgerUnavailableError, NotFoundError
from headrace.jobs.job import Job
from headrace.jobs.ledger import JobLedger
from headrace.jobs.paths import error_uri, result_uri, without_query
from headrace.jobs.state import JobState
from headrace.storage.resolve import Stores
from headrace.storage.uri import parse

_log = logging.getLogger("headrace.jobs")

FAILED_SUFFIX: Final = ".failed"
_TIMES_MAX: Final = 10
"""How often a job may be requeued and end during its publication; then the maintenance task
publishes it.
"""
PUBLISHED_JOBS_MAX: Final = 100
PUBLISH_AFTER_MS: Final = 10_000
"""The time in which a worker publishes the ends of its own jobs."""
FAILING_MAX: Final = 10_000
"""The number of unpublishable jobs that are remembered and skipped."""
GIVE_UP_MS: Final = 86_400_000
"""The time after its end for which publication is retried; then notifications are released."""
_RETRY_S: Final = 30.0
_RETRY_MAX_S: Final = 3600.0


class Publication:
    """A publisher of ended jobs. Thread-safe."""

    def __init__(self, ledger: JobLedger, stores: Stores) -> None:
        self._ledger = ledger
        self._stores = stores

    def publish(self, job: Job) -> str:
        """Publish a job's end and record it in the ledger.

        Return the object's URI, "" if there is none.

        If the job was requeued and ended again meanwhile, its latest end is published. The last
        writer reads the ledger after writing, so that the last end stays. If the job was requeued
        earlier, the output of its earlier end is removed.

        Publication releases the notifications of the end. A result that no longer exists is given
        up, with a log message.

        Raises ConfigError for an invalid location, storage errors, and JobLedgerUnavailableError;
        the call may then be repeated.
        """
        uri = ""
        for _ in range(_TIMES_MAX):
            if not job.needs_publication:
                return ""
            uri = self._result(job) if job.state is JobState.COMPLETED else self._error(job)
            if self._ledger.mark_published(job.id, job.lease, uri):
                return uri
            _log.warning("a job was requeued while its end was published", extra={"job": job.id, "uri": uri})
            now = self._ledger.get_many([job.id]).get(job.id)
            if now is None:
                return uri
            job = now
        return uri

    def give_up(self, job: Job) -> None:
        """Record that publication is impossible. This releases the notifications of the end."""
        _log.error("a job's end is not published, giving up", extra={"job": job.id})
        self._ledger.mark_published(job.id, job.lease, "")

    def _result(self, job: Job) -> str:
        assert job.result is not None, "completed jobs have one"
        uri = result_uri(job.spec.output_uri, job.spec.key or job.id)
        if not self._exists(job.result.uri):
            _log.error("a job's result no longer exists", extra={"job": job.id, "uri": job.result.uri})
            return ""
        # The result is written last: a reader that waits for it finds the other objects complete.
        failed = job.result.uri + FAILED_SUFFIX
        if self._exists(failed):
            self._copy(failed, uri + FAILED_SUFFIX)
        elif _was_requeued(job):
            self._remove(uri + FAILED_SUFFIX)
        if _was_requeued(job):
            self._remove(error_uri(job.spec.output_uri, job.spec.key or job.id))
        self._copy(job.result.uri, uri)
        return uri

    def _error(self, job: Job) -> str:
        key = job.spec.key or job.id
        uri = error_uri(job.spec.output_uri, key)
        if _was_requeued(job) and job.spec.kind == "infer":
            result = result_uri(job.spec.output_uri, key)
            self._remove(result)
            self._remove(result + FAILED_SUFFIX)
        self._stores.for_uri(uri).put(uri, orjson.dumps(error_document(job), option=orjson.OPT_INDENT_2))
        return uri

    def _exists(self, uri: str) -> bool:
        try:
            self._stores.for_uri(uri).head(uri)
        except NotFoundError:
            return False
        return True

    def _copy(self, source: str, target: str) -> None:
        with self._stores.for_uri(target).writer(target) as writer:
            for piece in self._stores.for_uri(source).stream(source):
                writer.write(piece)

    def _remove(self, uri: str) -> None:
        """Delete an object if permitted.

        Many keys may only write; the ledger then tells which end is the last.
        """
        with suppress(AccessDeniedError):
            self._stores.for_uri(uri).delete(uri)


def _was_requeued(job: Job) -> bool:
    """Return True if the job was due more than once and may have ended before.

    For most jobs this is False and saves requests to the store.
    """
    return job.due_at_ms != job.created_at_ms + job.spec.delay_ms


def error_document(job: Job) -> dict[str, Any]:
    """Return the content of ``KEY.error``."""
    failure = job.failure
    return {
        "v": 1,
        "job": job.id,
        "state": job.state.value,
        "cause": failure.cause.value if failure else job.state.value,
        "error": failure.error if failure else "",
        "message": failure.message if failure else f"the job was {job.state.value}",
        "attempts": job.attempt,
        "input_uri": "" if job.spec.owned_input else without_query(job.spec.input_uri),
        "correlation_id": job.spec.correlation_id,
        "ended_at_ms": job.ended_at_ms,
    }


@dataclass(slots=True)
class _Failing:
    tries: int
    retry_s: float


class ResultPublisher:
    """A publisher of unpublished ends. Any number may run, because each writes the same bytes.

    A job that cannot be published is retried for a day, after a delay that doubles up to an hour.
    Other jobs are published meanwhile. Use it in one thread.
    """

    def __init__(
        self,
        ledger: JobLedger,
        publication: Publication,
        *,
        publish_after_ms: int = PUBLISH_AFTER_MS,
        round_jobs: int = PUBLISHED_JOBS_MAX,
        clock: Clock | None = None,
    ) -> None:
        self._ledger = ledger
        self._publication = publication
        self._publish_after_ms = publish_after_ms
        self._clock = clock or SystemClock()
        self._failing: dict[str, _Failing] = {}
        self.round_jobs = round_jobs

    def tick(self) -> int:
        """Run one round. Return the number of published ends."""
        now_ms = self._ledger.now_ms()
        before_ms = now_ms - self._publish_after_ms
        limit = self.round_jobs + len(self._failing)
        jobs = self._ledger.list_unpublished(ended_before_ms=before_ms, limit=limit)
        # Missing jobs were deleted, requeued, or published by another process.
        remaining = {job.id for job in jobs}
        self._failing = {job_id: f for job_id, f in self._failing.items() if job_id in remaining}
        away: set[str] = set()
        return sum(self._publish(job, away, now_ms) for job in jobs if self._is_due(job))

    def _is_due(self, job: Job) -> bool:
        failing = self._failing.get(job.id)
        return failing is None or failing.retry_s <= self._clock.now()

    def _publish(self, job: Job, away: set[str], now_ms: int) -> bool:
        """Return True if the end was published; `away` are the locations that failed in this round."""
        location = _location(job)
        if location in away:
            return False
        try:
            if self._publication.publish(job):
                self._failing.pop(job.id, None)
                return True
        except JobLedgerUnavailableError:
            raise
        except HeadraceError as error:
            away.add(location)
            _log.warning("a job's end could not be published: %s", error, extra={"job": job.id})
            if (job.ended_at_ms or 0) < now_ms - GIVE_UP_MS:
                self._publication.give_up(job)
        except Exception:  # noqa: BLE001 - the others must be published
            _log.exception("a job's end could not be published", extra={"job": job.id})
        self._failed(job.id)
        return False

    def _failed(self, job_id: str) -> None:
        known = self._failing.get(job_id)
        if known is None and len(self._failing) >= FAILING_MAX:
            return
        tries = 1 if known is None else known.tries + 1
        delay_s = min(_RETRY_S * 2 ** min(tries - 1, 16), _RETRY_MAX_S)
        self._failing[job_id] = _Failing(tries, self._clock.now() + delay_s)


def _location(job: Job) -> str:
    """Return the scheme and bucket of the output: an unavailable one is tried once per round."""
    try:
        where = parse(job.spec.output_uri)
    except HeadraceError:
        return job.id
    return f"{where.scheme}://{where.bucket}" if where.bucket else job.id
