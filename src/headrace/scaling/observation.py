"""The load and the workers of a pool, read from a ledger and an actuator."""

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from headrace.jobs.counters import ARRIVALS, RELEASED, CountedEvent, JobCount
from headrace.jobs.ledger import QueueCounts, QueueSettings
from headrace.jobs.worker_registry import WorkerRecord, WorkerState
from headrace.scaling.actuator import Members
from headrace.scaling.policy import Observation

RATES_S: Final = 300.0
"""Seconds over which rates are measured."""
_UNCLAIMED_S: Final = 10.0
"""Seconds after which a due job counts although other workers have free slots: they do not take it."""
_READING_S: Final = 10.0
"""Least seconds between two readings of counters."""


@dataclass(frozen=True, slots=True)
class _Totals:
    """Numbers since the ledger exists, of all jobs of some queues, at one time."""

    at_ms: int
    arrived: int = 0
    attempts: int = 0
    """Ended attempts, without those that a worker returned."""
    run_ms: int = 0
    """Run times of these attempts."""


class JobRates:
    """Arrivals and run times of the jobs of some queues, over the last `RATES_S`. Not thread-safe."""

    def __init__(self, queues: Collection[str]) -> None:
        self._queues = frozenset(queues)
        self._readings: deque[_Totals] = deque()

    def is_due(self, at_ms: int) -> bool:
        """Return True if the last reading is too old."""
        return not self._readings or at_ms - self._readings[-1].at_ms >= _READING_S * 1000

    def add(self, at_ms: int, counts: Iterable[JobCount]) -> None:
        """Add a reading of the counters of a ledger."""
        arrived = attempts = run_ms = 0
        for count in counts:
            if count.group.queue not in self._queues:
                continue
            if count.event in ARRIVALS:
                arrived += count.jobs
            elif count.event in (CountedEvent.RETRIED, CountedEvent.FINISHED) and count.cause != RELEASED:
                attempts += count.jobs
                run_ms += count.total_ms
        self.add_totals(at_ms, arrived=arrived, attempts=attempts, run_ms=run_ms)

    def add_totals(self, at_ms: int, *, arrived: int, attempts: int, run_ms: int) -> None:
        """Add a reading of the jobs that ever arrived, their ended attempts and the run times of these."""
        self._readings.append(_Totals(at_ms, arrived, attempts, run_ms))
        # The first reading is at least as old as the window.
        while len(self._readings) > 1 and at_ms - self._readings[1].at_ms >= RATES_S * 1000:
            self._readings.popleft()

    @property
    def arrivals_per_s(self) -> float:
        """Arrived jobs each second; 0 before the second reading."""
        if not self._readings:
            return 0.0
        first, last = self._readings[0], self._readings[-1]
        passed_ms = last.at_ms - first.at_ms
        return (last.arrived - first.arrived) * 1000 / passed_ms if passed_ms > 0 else 0.0

    @property
    def run_s(self) -> float | None:
        """Mean seconds of an attempt: lately, or ever if none ended lately. None before the first end."""
        if not self._readings:
            return None
        first, last = self._readings[0], self._readings[-1]
        attempts, run_ms = last.attempts - first.attempts, last.run_ms - first.run_ms
        if not attempts:
            attempts, run_ms = last.attempts, last.run_ms
        return run_ms / attempts / 1000 if attempts else None


def living_workers(records: Iterable[WorkerRecord], queues: Collection[str]) -> list[WorkerRecord]:
    """Return the workers that live and take jobs from at least one of the queues."""
    ended = (WorkerState.STOPPED, WorkerState.LOST)
    wanted = frozenset(queues)
    return [
        record
        for record in records
        if record.state not in ended and not wanted.isdisjoint(record.info.queues)
    ]


def observe(
    at_ms: int,
    queues: Sequence[tuple[QueueSettings, QueueCounts]],
    living: Sequence[WorkerRecord],
    members: Members,
    rates: JobRates,
    *,
    slots: int,
    drains: bool,
) -> Observation:
    """Return the observation of a pool.

    `living` are all workers of its queues. Jobs that run on workers of other pools are not its load, nor
    are due jobs for which those have free slots, until one has waited for `_UNCLAIMED_S`. Paused queues
    have no due jobs. `slots` counts until a member reports its own.
    """
    own = {record.info.name for record in members.registered}
    others = [record for record in living if record.info.name not in own]
    claiming = [record for record in members.registered if not record.draining]
    given_out = [counts for settings, counts in queues if not settings.paused]
    due = sum(counts.due for counts in given_out)
    oldest_s = max((counts.oldest_seconds for counts in given_out), default=0.0)
    if oldest_s < _UNCLAIMED_S:
        # Later, the others are dying, ending or of another region, or a limit holds the jobs back.
        free = sum(max(0, each.info.slots - each.running) for each in others if not each.draining)
        due = max(0, due - free)
    # Running jobs whose workers are gone count, too: they return soon.
    elsewhere = sum(each.running for each in others)
    on_members = sum(each.running for each in members.registered)
    running = max(on_members, sum(counts.running for _, counts in queues) - elsewhere)
    return Observation(
        at_ms,
        due=due,
        running=running,
        slots=max((each.info.slots for each in members.registered), default=slots),
        workers=len(claiming),
        starting=members.starting,
        draining=len(members.registered) - len(claiming),
        busy=sum(each.running > 0 for each in claiming),
        oldest_s=oldest_s if due else 0.0,
        run_s=rates.run_s,
        arrivals_per_s=rates.arrivals_per_s,
        drains=drains,
    )
