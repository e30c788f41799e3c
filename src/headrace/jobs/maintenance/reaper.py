"""Takes back expired leases, and expires overdue jobs."""

import logging
from typing import Final

from headrace.jobs.ledger import JobLedger

_log = logging.getLogger("headrace.jobs")

ROUND_JOBS: Final = 500


class Reaper:
    """A maintenance task over the ledger. Any number may run."""

    def __init__(self, ledger: JobLedger, *, round_jobs: int = ROUND_JOBS) -> None:
        self._ledger = ledger
        self.round_jobs = round_jobs

    def tick(self) -> int:
        """Run one round. Return the number of changed jobs."""
        done = self._ledger.maintain(self.round_jobs)
        if done.returned or done.failed or done.cancelled or done.expired:
            _log.warning(
                "leases or jobs expired",
                extra={
                    "returned": done.returned,
                    "failed": done.failed,
                    "cancelled": done.cancelled,
                    "expired": done.expired,
                },
            )
        return done.total
