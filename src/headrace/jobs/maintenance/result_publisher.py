"""Publishes the ends of jobs that their worker did not publish, because it died or stopped."""

import logging
from dataclasses import dataclass
from typing import Final

from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import HeadraceError, JobLedgerUnavailableError
from headrace.jobs.job import Job
from headrace.jobs.ledger import JobLedger
from headrace.jobs.publication import Publication
from headrace.storage.uri import parse

_log = logging.getLogger("headrace.jobs")

ROUND_JOBS: Final = 100
PUBLISH_AFTER_MS: Final = 10_000
"""The time in which a worker publishes the ends of its own jobs."""
FAILING_MAX: Final = 10_000
"""The number of unpublishable jobs that are remembered and skipped."""
GIVE_UP_MS: Final = 86_400_000
"""The time after its end for which publication is retried; then notifications are released."""
_RETRY_S: Final = 30.0
_RETRY_MAX_S: Final = 3600.0


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
        round_jobs: int = ROUND_JOBS,
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
