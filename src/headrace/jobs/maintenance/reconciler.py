"""Announces again what a dispatcher was told but perhaps lost: jobs that wait longer than they should."""

from collections.abc import Callable
from typing import Final

from headrace.jobs.ledger import JobFilter, JobLedger
from headrace.jobs.state import JobState

ROUND_JOBS: Final = 500


class Reconciler:
    """One `tick` announces the jobs of each queue that are due for longer than `patience_s`, if there are any.

    Workers look at the ledger by themselves every now and then; this is for those that are only woken by a dispatcher, and
    for what scales workers by the dispatcher's messages.
    """

    def __init__(
        self,
        ledger: JobLedger,
        announce: Callable[[str, list[str]], None],
        *,
        patience_s: float = 30.0,
        round_jobs: int = ROUND_JOBS,
    ) -> None:
        self._ledger = ledger
        self._announce = announce
        self._patience_s = patience_s
        self._round_jobs = round_jobs

    def tick(self) -> int:
        """How many jobs it announced again."""
        again = 0
        for queue in self._ledger.queues():
            oldest_ms = self._ledger.counts(queue.name).oldest_due_ms
            if queue.paused or oldest_ms is None or oldest_ms < self._patience_s * 1000:
                continue
            wanted = JobFilter(queue=queue.name, states=frozenset({JobState.PENDING}))
            ids = [job.id for job in self._ledger.find(wanted, limit=self._round_jobs).jobs]
            self._announce(queue.name, ids)
            again += len(ids)
        return again
