"""Announces again the jobs that wait longer than they should, in case an announcement was lost."""

from collections.abc import Callable
from typing import Final

from headrace.jobs.ledger import JobFilter, JobLedger
from headrace.jobs.state import JobState

ROUND_JOBS: Final = 500
SCANNED_JOBS_MAX: Final = 10_000
_PAGE_JOBS: Final = 500


class Reconciler:
    """A maintenance task that announces the jobs that are due for longer than `overdue_s`.

    Workers poll the ledger by themselves. The task serves workers that only a wakeup broker wakes,
    and autoscalers that count its messages. It need not announce every job: each round covers the
    newest overdue jobs, up to `round_jobs`, among the newest `SCANNED_JOBS_MAX` pending ones.
    """

    def __init__(
        self,
        ledger: JobLedger,
        announce: Callable[[str, list[str]], None],
        *,
        overdue_s: float = 30.0,
        round_jobs: int = ROUND_JOBS,
    ) -> None:
        self._ledger = ledger
        self._announce = announce
        self._overdue_s = overdue_s
        self._round_jobs = round_jobs

    def tick(self) -> int:
        """Run one round. Return the number of announced jobs."""
        announced = 0
        for queue in self._ledger.queues():
            oldest_ms = self._ledger.counts(queue.name).oldest_due_ms
            if queue.paused or oldest_ms is None or oldest_ms < self._overdue_s * 1000:
                continue
            ids = self._overdue(queue.name)
            if ids:
                self._announce(queue.name, ids)
                announced += len(ids)
        return announced

    def _overdue(self, queue: str) -> list[str]:
        before_ms = self._ledger.now_ms() - round(self._overdue_s * 1000)
        job_filter = JobFilter(
            queue=queue, states=frozenset({JobState.PENDING}), created_before_ms=before_ms + 1
        )
        ids: list[str] = []
        after, scanned = "", 0
        while len(ids) < self._round_jobs and scanned < SCANNED_JOBS_MAX:
            page = self._ledger.find(job_filter, after=after, limit=_PAGE_JOBS)
            ids += [job.id for job in page.jobs if job.due_at_ms <= before_ms]
            after, scanned = page.next_after, scanned + _PAGE_JOBS
            if not after:
                break
        return ids[: self._round_jobs]
