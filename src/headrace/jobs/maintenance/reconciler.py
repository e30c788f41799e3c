"""Announces again what a dispatcher was told but perhaps lost: jobs that wait longer than they should."""

from collections.abc import Callable
from typing import Final

from headrace.jobs.ledger import JobFilter, JobLedger
from headrace.jobs.state import JobState

ROUND_JOBS: Final = 500
LOOKED_AT_MAX: Final = 10_000
_PAGE_JOBS: Final = 500


class Reconciler:
    """One `tick` announces jobs of each queue that are due for longer than `patience_s`, if there are any.

    Workers look at the ledger by themselves every now and then; this is for those that are only woken by a dispatcher, and
    for what scales workers by the dispatcher's messages. So it need not be every job: the newest that are overdue, up to
    `round_jobs`, among the newest `LOOKED_AT_MAX` that wait.
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
            ids = self._overdue(queue.name)
            if ids:
                self._announce(queue.name, ids)
                again += len(ids)
        return again

    def _overdue(self, queue: str) -> list[str]:
        before_ms = self._ledger.now_ms() - round(self._patience_s * 1000)
        wanted = JobFilter(queue=queue, states=frozenset({JobState.PENDING}), created_before_ms=before_ms + 1)
        ids: list[str] = []
        after, looked_at = "", 0
        while len(ids) < self._round_jobs and looked_at < LOOKED_AT_MAX:
            page = self._ledger.find(wanted, after=after, limit=_PAGE_JOBS)
            ids += [job.id for job in page.jobs if job.due_at_ms <= before_ms]
            after, looked_at = page.next_after, looked_at + _PAGE_JOBS
            if not after:
                break
        return ids[: self._round_jobs]
