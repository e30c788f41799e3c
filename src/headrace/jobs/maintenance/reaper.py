"""Takes leases back from the dead, and ends what has expired."""

import logging
from typing import Final

from headrace.jobs.ledger import JobLedger

_log = logging.getLogger("headrace.jobs")

ROUND_JOBS: Final = 500


class Reaper:
    """One `tick` is one round over the ledger; any number of reapers may be at it."""

    def __init__(self, ledger: JobLedger, *, round_jobs: int = ROUND_JOBS) -> None:
        self._ledger = ledger
        self.round_jobs = round_jobs

    def tick(self) -> int:
        """How many jobs it changed."""
        done = self._ledger.maintain(self.round_jobs)
        if done.returned or done.failed or done.cancelled or done.expired:
            _log.warning(
                "leases ran out, or jobs expired",
                extra={
                    "returned": done.returned,
                    "failed": done.failed,
                    "cancelled": done.cancelled,
                    "expired": done.expired,
                },
            )
        return done.total
