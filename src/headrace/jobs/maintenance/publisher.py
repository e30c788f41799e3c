"""Publishes the ends of jobs whose worker did not come to it: it died, or there was no worker any more."""

import logging
from typing import Final

from headrace.core.errors import StorageError
from headrace.jobs.ledger import JobLedger
from headrace.jobs.publication import Publication

_log = logging.getLogger("headrace.jobs")

ROUND_JOBS: Final = 100
PATIENCE_MS: Final = 10_000
"""How long the worker that ended a job has to publish it itself."""


class Publisher:
    """One `tick` publishes what is left; any number of publishers may be at it, since each writes the same."""

    def __init__(
        self,
        ledger: JobLedger,
        publication: Publication,
        *,
        patience_ms: int = PATIENCE_MS,
        round_jobs: int = ROUND_JOBS,
    ) -> None:
        self._ledger = ledger
        self._publication = publication
        self._patience_ms = patience_ms
        self.round_jobs = round_jobs

    def tick(self) -> int:
        """How many jobs' ends it published."""
        before_ms = self._ledger.now_ms() - self._patience_ms
        published = 0
        for job in self._ledger.unpublished(ended_before_ms=before_ms, limit=self.round_jobs):
            try:
                published += bool(self._publication.publish(job))
            except StorageError as error:
                # Others' places may be reachable.
                _log.warning("a job's end could not be published: %s", error, extra={"job": job.id})
        return published
