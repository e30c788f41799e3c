"""Publishes the ends of jobs whose worker did not come to it: it died, or there was no worker any more."""

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
PATIENCE_MS: Final = 10_000
"""How long the worker that ended a job has to publish it itself."""
FAILING_MAX: Final = 10_000
"""How many jobs that cannot be published are remembered, and gone past."""
GIVE_UP_MS: Final = 86_400_000
"""How long after its end it is tried: whoever is to be told of it is told then."""
_AGAIN_S: Final = 30.0
_AGAIN_MAX_S: Final = 3600.0


@dataclass(slots=True)
class _Failing:
    tries: int
    again_s: float


class Publisher:
    """One `tick` publishes what is left; any number of publishers may be at it, since each writes the same.

    A job that cannot be published is tried again after a delay that doubles, up to an hour, for a day; meanwhile those behind
    it are published. Use it in one thread.
    """

    def __init__(
        self,
        ledger: JobLedger,
        publication: Publication,
        *,
        patience_ms: int = PATIENCE_MS,
        round_jobs: int = ROUND_JOBS,
        clock: Clock | None = None,
    ) -> None:
        self._ledger = ledger
        self._publication = publication
        self._patience_ms = patience_ms
        self._clock = clock or SystemClock()
        self._failing: dict[str, _Failing] = {}
        self.round_jobs = round_jobs

    def tick(self) -> int:
        """How many jobs' ends it published."""
        now_ms = self._ledger.now_ms()
        before_ms = now_ms - self._patience_ms
        limit = self.round_jobs + len(self._failing)
        jobs = self._ledger.unpublished(ended_before_ms=before_ms, limit=limit)
        # What is there no more has been removed, put back, or published by somebody else.
        left = {job.id for job in jobs}
        self._failing = {job_id: f for job_id, f in self._failing.items() if job_id in left}
        away: set[str] = set()
        return sum(self._publish(job, away, now_ms) for job in jobs if self._is_due(job))

    def _is_due(self, job: Job) -> bool:
        failing = self._failing.get(job.id)
        return failing is None or failing.again_s <= self._clock.now()

    def _publish(self, job: Job, away: set[str], now_ms: int) -> bool:
        """Whether it was; `away` are the places of this round that did not take what came before."""
        place = _place(job)
        if place in away:
            return False
        try:
            if self._publication.publish(job):
                self._failing.pop(job.id, None)
                return True
        except JobLedgerUnavailableError:
            raise
        except HeadraceError as error:
            away.add(place)
            _log.warning("a job's end could not be published: %s", error, extra={"job": job.id})
            if (job.ended_at_ms or 0) < now_ms - GIVE_UP_MS:
                self._publication.give_up(job)
        except Exception:  # noqa: BLE001 - the others are published all the same
            _log.exception("a job's end could not be published", extra={"job": job.id})
        self._failed(job.id)
        return False

    def _failed(self, job_id: str) -> None:
        known = self._failing.get(job_id)
        if known is None and len(self._failing) >= FAILING_MAX:
            return
        tries = 1 if known is None else known.tries + 1
        delay_s = min(_AGAIN_S * 2 ** min(tries - 1, 16), _AGAIN_MAX_S)
        self._failing[job_id] = _Failing(tries, self._clock.now() + delay_s)


def _place(job: Job) -> str:
    """The scheme and bucket it goes to: what is asked for long, where it does not answer, is not asked for each job."""
    try:
        where = parse(job.spec.output_uri)
    except HeadraceError:
        return job.id
    return f"{where.scheme}://{where.bucket}" if where.bucket else job.id
