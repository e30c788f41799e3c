"""The outcome of a simulation: waiting times, costs, utilisation, and the backlog over time."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from headrace.scaling.planner.load import Load, Seconds
from headrace.scaling.planner.machine import Machine

MONTH_DAYS: Final = 30
_HOUR_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Quantiles of times in seconds."""

    p50_s: float
    p95_s: float
    p99_s: float


@dataclass(frozen=True, slots=True, eq=False)
class PoolTimeline:
    """The backlog and the workers over time, in equal steps."""

    step_s: float
    backlog: Seconds
    """Jobs that are due or run, at the end of each step."""
    workers: Seconds
    """Machines that exist, starting ones included: the mean of each step."""


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """The jobs and machines of a simulation. All times are seconds from its start.

    Args:
        load: The jobs.
        machine: The machine of each worker.
        began_s: For each job, the start of its first attempt.
        attempt_s: For each job, the start of its last attempt.
        ended_s: For each job, its end.
        requested_s: For each machine, the time at which it was started.
        ready_s: For each machine, the time from which it ran jobs; infinite if it never did.
        gone_s: For each machine, its end.
        cold_starts: Machines that were added during the simulation.
        interruptions: Interrupted machines.
        lost_s: Seconds of attempts that an interruption ended.
        end_s: The end of the simulation: that of the load's span, or of the last job.
        kept: Machines that the pool keeps without jobs. They cost nothing after the span of the load,
            since they would be there in any case.
    """

    load: Load
    machine: Machine
    began_s: Seconds
    attempt_s: Seconds
    ended_s: Seconds
    requested_s: Seconds
    ready_s: Seconds
    gone_s: Seconds
    cold_starts: int
    interruptions: int
    lost_s: float
    end_s: float
    kept: int = 0

    @property
    def waits_s(self) -> Seconds:
        """For each job, the seconds from its arrival to the start of its first attempt."""
        return self.began_s - self.load.arrived_s

    @property
    def wait(self) -> Quantiles:
        """Quantiles of the waiting times."""
        return _quantiles(self.waits_s)

    @property
    def result(self) -> Quantiles:
        """Quantiles of the times from arrival to result."""
        return _quantiles(self.ended_s - self.load.arrived_s)

    @property
    def billed_s(self) -> float:
        """Seconds that all machines cost."""
        begun_s = self.requested_s if self.machine.start_billed else self.ready_s
        billed_s = float(np.maximum(0.0, self.gone_s - begun_s).sum())
        last = int(np.count_nonzero((self.gone_s >= self.end_s) & (begun_s <= self.load.span_s)))
        return billed_s - min(self.kept, last) * (self.end_s - self.load.span_s)

    @property
    def cost_per_day(self) -> float:
        """The mean cost of a day."""
        return self.billed_s / _HOUR_S * self.machine.price_per_h / self.load.days

    @property
    def cost_per_month(self) -> float:
        """The mean cost of 30 days."""
        return self.cost_per_day * MONTH_DAYS

    @property
    def utilisation(self) -> float:
        """The share of the slots of billed machines that ran jobs, lost attempts included."""
        capacity_s = self.billed_s * self.machine.concurrency
        return min(1.0, self._occupied_s / capacity_s) if capacity_s else 0.0

    @property
    def workers_max(self) -> int:
        """The largest number of machines at one time."""
        times = np.concatenate([self.requested_s, self.gone_s])
        changes = np.concatenate([np.ones(len(self.requested_s)), -np.ones(len(self.gone_s))])
        # At equal times, ends come first.
        return int(changes[np.lexsort((changes, times))].cumsum().max(initial=0))

    @property
    def _occupied_s(self) -> float:
        return float((self.ended_s - self.attempt_s).sum()) + self.lost_s

    def timeline(self, steps: int) -> PoolTimeline:
        """Return the backlog and the workers over time."""
        edges = np.linspace(0.0, self.end_s, steps + 1)
        step_s = self.end_s / steps
        due = np.searchsorted(self.load.due, edges[1:], side="right")
        ended = np.searchsorted(np.sort(self.ended_s), edges[1:], side="right")
        # The machine-seconds until each edge.
        passed = _elapsed(self.requested_s, edges) - _elapsed(self.gone_s, edges)
        return PoolTimeline(step_s, (due - ended).astype(np.float64), np.diff(passed) / step_s)


def busy_cost_per_day(load: Load, machine: Machine) -> float:
    """Return the cost of a day if machines with full slots could be paid for the run times of jobs alone."""
    return load.busy_s / machine.capacity / _HOUR_S * machine.price_per_h / load.days


def _quantiles(times_s: Seconds) -> Quantiles:
    p50_s, p95_s, p99_s = np.quantile(times_s, (0.5, 0.95, 0.99))
    return Quantiles(float(p50_s), float(p95_s), float(p99_s))


def _elapsed(times_s: Seconds, at_s: Seconds) -> Seconds:
    """Return, for each time, the sum of the seconds since all earlier `times_s`."""
    ordered = np.sort(times_s)
    sums = np.concatenate([[0.0], ordered.cumsum()])
    earlier = np.searchsorted(ordered, at_s, side="right")
    return earlier * at_s - sums[earlier]
