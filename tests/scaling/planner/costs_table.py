"""Costs and waits of autoscalers for 100 jobs of five minutes a day, as a table."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from headrace.scaling.planner.load import DAY_S, Load, Seconds
from headrace.scaling.planner.machine import Machine
from headrace.scaling.planner.outcome import Outcome
from headrace.scaling.planner.simulation import Decide, simulate
from headrace.scaling.policy import Decision, Observation, ScalingMemory
from headrace.scaling.settings import ScalingSettings, WorkerRange
from scaling.planner.aws_alarms import AlarmScaling

DAYS, JOBS, RUN_S = 7, 100, 300.0
"""Days, and jobs of each day."""
PRICE_PER_H = 0.736
ALWAYS_ON = 24 * PRICE_PER_H
DEFAULTS = ScalingSettings(WorkerRange(0, 10))
SPARING = ScalingSettings(WorkerRange(0, 10), backlog_per_worker=5, scale_in_window_s=0)
_HOUR_S = 3600.0
_SEED = 1


def _even(day: int) -> Seconds:
    return (np.arange(JOBS) + 0.5) * DAY_S / JOBS


def _random(day: int, from_h: float, until_h: float) -> Seconds:
    draw = np.random.default_rng(_SEED + day)
    return np.sort(draw.uniform(from_h * _HOUR_S, until_h * _HOUR_S, JOBS))


def _burst(day: int) -> Seconds:
    return np.full(JOBS, 9 * _HOUR_S)


ARRIVALS: dict[str, Callable[[int], Seconds]] = {
    "even over 24 h": _even,
    "random over 24 h": partial(_random, from_h=0, until_h=24),
    "random 09-17 h": partial(_random, from_h=9, until_h=17),
    "one burst at 09:00": _burst,
}


def load(arrivals: str) -> Load:
    """Return the jobs of a week."""
    arrived_s = np.concatenate([day * DAY_S + ARRIVALS[arrivals](day) for day in range(DAYS)])
    return Load(arrived_s, np.full(len(arrived_s), RUN_S), DAYS * DAY_S)


@dataclass(frozen=True)
class Policy:
    """A policy of a pool, with the seconds for which its machines start."""

    name: str
    start_s: float
    alarms: Callable[[], AlarmScaling] | None = None
    """The alarms of a cloud; None for the policy of headrace with these settings."""
    settings: ScalingSettings = DEFAULTS

    def run(self, arrivals: str, *, start_billed: bool = True) -> Outcome:
        """Return the simulation of a week."""
        machine = Machine(PRICE_PER_H, start_s=self.start_s, start_billed=start_billed)
        jobs = load(arrivals)
        if self.alarms is None:
            return simulate(jobs, machine, self.settings)
        return simulate(jobs, machine, self.settings, decide=_until_the_end(jobs, self.alarms()))


def _until_the_end(jobs: Load, alarms: AlarmScaling) -> Decide:
    """Return the decision of alarms. After the last day, jobs that still wait for others get an instance."""
    end_ms = jobs.began_at_ms + jobs.span_s * 1000

    def decide(settings: ScalingSettings, observed: Observation, memory: ScalingMemory) -> Decision:
        decision = alarms.decide(settings, observed, memory)
        if observed.at_ms >= end_ms and observed.backlog:
            return replace(decision, wanted=max(1, decision.wanted))
        return decision

    return decide


POLICIES: dict[str, Policy] = {
    "A": Policy("A cloud: target tracking", 300, AlarmScaling),
    "B": Policy("B cloud: and a wake policy", 300, partial(AlarmScaling, wakes=True)),
    "C": Policy("C cloud: as B, low alarm stays on", 300, partial(AlarmScaling, wakes=True, low_stays=True)),
    "D": Policy("D headrace: `backlog_per_worker = 5`, `scale_in_window_s = 0`", 60, settings=SPARING),
    "E": Policy("E headrace: as D", 300, settings=SPARING),
    "F": Policy("F headrace: defaults", 60),
    "G": Policy("G headrace: defaults", 300),
}


@dataclass(frozen=True)
class Result:
    """The mean cost of a day, and the minutes from submission to result."""

    cost: float
    p50_min: float
    p95_min: float

    @classmethod
    def of(cls, outcome: Outcome) -> "Result":
        """Return the result of a simulation."""
        times = outcome.result
        return cls(outcome.cost_per_day, times.p50_s / 60, times.p95_s / 60)

    def cell(self) -> str:
        """Return the cell of the table."""
        saved = round(100 * (1 - self.cost / ALWAYS_ON))
        return f"${self.cost:.2f} ({saved} %), {self.p50_min:.0f} / {self.p95_min:.0f} min"


def run_all() -> dict[str, list[Result]]:
    """Return the results of each policy, by its letter, for all arrivals."""
    return {
        letter: [Result.of(policy.run(arrivals)) for arrivals in ARRIVALS]
        for letter, policy in POLICIES.items()
    }


def markdown(results: dict[str, list[Result]]) -> str:
    """Return the results as a table in Markdown."""
    head = ("policy", "start", *ARRIVALS)
    rows: list[Sequence[str]] = [head, ("---",) * len(head)]
    for letter, cells in results.items():
        policy = POLICIES[letter]
        rows.append((policy.name, f"{policy.start_s:.0f} s", *(each.cell() for each in cells)))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
