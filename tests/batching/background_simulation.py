"""Latencies of live requests beside background calls, simulated, as a table in Markdown.

Print it: ``PYTHONPATH=tests python -m batching.background_simulation``.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from headrace.batching.background import BackgroundBudget, BackgroundShare

_INSTANCES = 1
_ASK_S = 1.0
"""Seconds after which a waiting instance asks again, because the share may have changed."""


@dataclass(frozen=True)
class Scenario:
    """One instance, to which live requests come at random, and background calls without a break.

    Live requests go first. No call is interrupted.
    """

    limit_s: float | None = None
    """The limit of the latency; None lets background calls run whenever no live request waits."""
    background_s: float = 0.1
    """The length of a background call; 0.0 leaves background calls out."""
    live_s: float = 0.005
    live_per_s: float = 40.0
    live_requests: int = 40_000
    tail_s: float = 0.0
    """Seconds for which background calls go on after the last live request."""
    seed: int = 1


@dataclass
class Simulated:
    """The results of a simulation."""

    latencies_s: list[float] = field(default_factory=list)
    """Latencies of live requests, in order."""
    background: list[tuple[float, float]] = field(default_factory=list)
    """Begin and end of each background call."""
    span_s: float = 0.0
    """The end of the last live request."""

    def percentile_s(self, percent: float) -> float:
        """Return a percentile of the latencies."""
        return float(np.percentile(self.latencies_s, percent))

    def exceeding(self, limit_s: float) -> float:
        """Return the fraction of latencies above a limit."""
        return float(np.mean(np.array(self.latencies_s) > limit_s))

    def background_share(self, from_s: float = 0.0, until_s: float | None = None) -> float:
        """Return the fraction of a period that background calls used; by default, of the live traffic."""
        until_s = self.span_s if until_s is None else until_s
        used_s = sum(max(0.0, min(end, until_s) - max(begin, from_s)) for begin, end in self.background)
        return used_s / (until_s - from_s)


def simulate(scenario: Scenario) -> Simulated:
    """Return the results of a scenario."""
    draw = np.random.default_rng(scenario.seed)
    arrivals = np.cumsum(draw.exponential(1 / scenario.live_per_s, scenario.live_requests)).tolist()
    share = None if scenario.limit_s is None else BackgroundShare(scenario.limit_s)
    budget = BackgroundBudget()
    simulated = Simulated()
    now, next_live = 0.0, 0
    end_s = arrivals[-1] + scenario.tail_s
    while next_live < len(arrivals) or now < end_s:
        arrival_s = arrivals[next_live] if next_live < len(arrivals) else float("inf")
        value = 1.0 if share is None else share.value(now)
        if arrival_s <= now:
            now += scenario.live_s
            next_live += 1
            simulated.latencies_s.append(now - arrival_s)
            simulated.span_s = now
            if share is not None:
                share.record(now - arrival_s, now)
        elif not scenario.background_s:
            now = min(arrival_s, end_s)
        elif budget.begin(value, _INSTANCES, now):
            simulated.background.append((now, now + scenario.background_s))
            now += scenario.background_s
            budget.end(scenario.background_s, now)
        else:
            begins_s = budget.next_s(value, _INSTANCES, now)
            assert begins_s is not None, "no background call runs while the instance waits"
            now = min(arrival_s, begins_s, now + _ASK_S)
    return simulated


SCENARIOS: dict[str, Scenario] = {
    "none": Scenario(background_s=0.0),
    "100 ms, no limit": Scenario(),
    "100 ms, limit 30 ms": Scenario(limit_s=0.03),
    "100 ms, limit 60 ms": Scenario(limit_s=0.06),
    "100 ms, limit 100 ms": Scenario(limit_s=0.1),
    "100 ms, limit 200 ms": Scenario(limit_s=0.2),
    "20 ms, no limit": Scenario(background_s=0.02),
    "20 ms, limit 30 ms": Scenario(background_s=0.02, limit_s=0.03),
}


def markdown(scenarios: dict[str, Scenario]) -> str:
    """Return the results of scenarios as a table in Markdown."""
    head = ("background calls", "p50", "p99", "p99.5", "above the limit", "time for background")
    rows: list[Sequence[str]] = [head, ("---",) * len(head)]
    for name, scenario in scenarios.items():
        found = simulate(scenario)
        percentiles = (f"{found.percentile_s(each) * 1000:.0f} ms" for each in (50, 99, 99.5))
        above = "" if scenario.limit_s is None else f"{found.exceeding(scenario.limit_s):.2%}"
        rows.append((name, *percentiles, above, f"{found.background_share():.1%}"))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    sys.stdout.write(markdown(SCENARIOS) + "\n")
