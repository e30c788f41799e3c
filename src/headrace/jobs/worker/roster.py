"""What a worker has in hand: the attempts under its leases."""

import threading
from dataclasses import dataclass

from headrace.jobs.attempt import Attempt, StopReason


@dataclass(slots=True)
class Held:
    """An attempt in hand, and when its time is over, on the worker's own clock."""

    attempt: Attempt
    limit_s: float | None = None


class Roster:
    """Attempts by job id; safe from any thread. An attempt is in it from its claim until its settlement was answered."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._held: dict[str, Held] = {}

    def add(self, attempt: Attempt) -> None:
        """Take one in hand."""
        with self._changed:
            self._held[attempt.job.id] = Held(attempt)

    def limit(self, attempt: Attempt, limit_s: float) -> None:
        """Its time is over at `limit_s`."""
        with self._changed:
            held = self._held.get(attempt.job.id)
            if held is not None and held.attempt is attempt:
                held.limit_s = limit_s

    def remove(self, attempt: Attempt) -> None:
        """It is settled, or lost."""
        with self._changed:
            held = self._held.get(attempt.job.id)
            # The same job may be in hand again under a later lease.
            if held is not None and held.attempt is attempt:
                del self._held[attempt.job.id]
                self._changed.notify_all()

    def held(self) -> tuple[Held, ...]:
        """All that is in hand."""
        with self._changed:
            return tuple(self._held.values())

    def get(self, job_id: str) -> Attempt | None:
        """The attempt at a job that is in hand."""
        with self._changed:
            held = self._held.get(job_id)
            return held.attempt if held is not None else None

    def stop(self, job_id: str, reason: StopReason) -> None:
        """Tell the attempt at a job to stop, if it is in hand."""
        attempt = self.get(job_id)
        if attempt is not None:
            attempt.stop(reason)

    def stop_all(self, reason: StopReason) -> None:
        """Tell all to stop."""
        for held in self.held():
            held.attempt.stop(reason)

    def overdue(self, now_s: float) -> tuple[Attempt, ...]:
        """Those whose time is over and that were not told."""
        return tuple(
            held.attempt
            for held in self.held()
            if held.limit_s is not None and held.limit_s <= now_s and held.attempt.stopped is None
        )

    def next_limit_s(self) -> float | None:
        """When the next one's time will be over; None where no time is set."""
        limits = [h.limit_s for h in self.held() if h.limit_s is not None and h.attempt.stopped is None]
        return min(limits, default=None)

    def wait_until_empty(self, timeout_s: float) -> bool:
        """Block until nothing is in hand, or `timeout_s` have passed; whether nothing is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._held, timeout_s)

    def __len__(self) -> int:
        with self._changed:
            return len(self._held)
