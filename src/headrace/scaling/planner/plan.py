"""A plan of a pool: the load, the compared modes and the recommendation, as rows of a table and as JSON."""

from dataclasses import asdict, dataclass
from typing import Any, Final

from headrace.reports.markup import pluralize
from headrace.scaling.planner.load import Load
from headrace.scaling.planner.machine import Machine
from headrace.scaling.planner.modes import ALWAYS_ON, PoolMode
from headrace.scaling.planner.outcome import MONTH_DAYS, Quantiles, busy_cost_per_day
from headrace.scaling.planner.recommendation import ModeRecommendation, money, percent, seconds

COLUMNS: Final = (
    "mode",
    "workers",
    "cost a day",
    "a month",
    "wait p50",
    "p95",
    "p99",
    "to result p95",
    "utilisation",
    "cold starts",
)
"""The heads of `PoolPlan.rows`. All columns after the second one are numeric."""

STEPS: Final = 600
"""Steps of the plots over time, on the page and in the picture."""
_WHOLE_FROM: Final = 100


@dataclass(frozen=True, slots=True, eq=False)
class PoolPlan:
    """The modes of a pool, simulated with one load, and the recommended one."""

    load: Load
    machine: Machine
    modes: tuple[PoolMode, ...]
    recommendation: ModeRecommendation
    currency: str = ""

    @property
    def load_text(self) -> str:
        """The load in one line: jobs, days, busy time, and the cost of the busy time alone."""
        load, busy = self.load, self._busy_cost_per_day
        jobs = len(load.run_s)
        return (
            f"{pluralize(jobs, 'job')} in {_days(load.days)} ({_count(jobs / load.days)} a day), "
            f"{seconds(load.busy_s / jobs)} on average: "
            f"the busy time of {seconds(load.busy_s / load.days)} a day alone costs "
            f"{self.money(busy)} a day and {self.money(busy * MONTH_DAYS)} a month"
            + (f", {percent(self._ceiling)} less than {ALWAYS_ON}" if self._ceiling > 0 else "")
        )

    @property
    def recommendation_text(self) -> str:
        """The recommended mode in one line."""
        return f"{self.recommendation.mode} ({self.recommendation.kind})"

    def rows(self) -> list[tuple[str, ...]]:
        """Return the figures of each mode as text."""
        return [self._row(mode) for mode in self.modes]

    def document(self) -> dict[str, Any]:
        """Return all figures as JSON. Times are in seconds."""
        load, busy = self.load, self._busy_cost_per_day
        jobs = len(load.run_s)
        chosen = self.recommendation
        return {
            "load": {
                "jobs": jobs,
                "days": _rounded(load.days),
                "jobs_per_day": _rounded(jobs / load.days),
                "busy_seconds_per_day": _rounded(load.busy_s / load.days),
                "mean_run_seconds": _rounded(load.busy_s / jobs),
            },
            "machine": asdict(self.machine),
            "currency": self.currency,
            "busy_time_alone": {
                "cost_per_day": _rounded(busy),
                "cost_per_month": _rounded(busy * MONTH_DAYS),
                "saving": _rounded(self._ceiling),
            },
            "modes": [self._document(mode) for mode in self.modes],
            "recommendation": {
                "mode": chosen.mode,
                "kind": chosen.kind,
                "wait_seconds_max": chosen.wait_s_max,
                "in_time": chosen.is_in_time,
                "commands": chosen.commands,
                "reasons": chosen.reasons,
            },
        }

    def money(self, amount: float) -> str:
        """Return an amount of the plan's currency."""
        return money(amount, self.currency)

    def _row(self, mode: PoolMode) -> tuple[str, ...]:
        outcome = mode.outcome
        wait = outcome.wait
        return (
            mode.name,
            mode.workers_text,
            self.money(outcome.cost_per_day),
            self.money(outcome.cost_per_month),
            seconds(wait.p50_s),
            seconds(wait.p95_s),
            seconds(wait.p99_s),
            seconds(outcome.result.p95_s),
            percent(outcome.utilisation),
            f"{outcome.cold_starts:,}",
        )

    def _document(self, mode: PoolMode) -> dict[str, Any]:
        outcome = mode.outcome
        return {
            "mode": mode.name,
            "workers": str(mode.workers),
            "cost_per_day": _rounded(outcome.cost_per_day),
            "cost_per_month": _rounded(outcome.cost_per_month),
            "saving": _rounded(mode.saving(self._always_on)),
            "wait_seconds": _quantiles(outcome.wait),
            "result_seconds": _quantiles(outcome.result),
            "utilisation": _rounded(outcome.utilisation),
            "workers_max": outcome.workers_max,
            "cold_starts": outcome.cold_starts,
            "interruptions": outcome.interruptions,
            "lost_seconds": _rounded(outcome.lost_s),
        }

    @property
    def _always_on(self) -> PoolMode:
        return next(mode for mode in self.modes if mode.name == ALWAYS_ON)

    @property
    def _busy_cost_per_day(self) -> float:
        return busy_cost_per_day(self.load, self.machine)

    @property
    def _ceiling(self) -> float:
        """The share of the cost of always-on that no mode can save more of."""
        whole = self._always_on.outcome.cost_per_day
        return 1 - self._busy_cost_per_day / whole if whole else 0.0


def _days(days: float) -> str:
    return f"{_count(days)} day" if days == 1 else f"{_count(days)} days"


def _count(number: float) -> str:
    return f"{number:,.0f}" if number >= _WHOLE_FROM else f"{number:.3g}"


def _rounded(value: float) -> float:
    return round(value, 6)


def _quantiles(times: Quantiles) -> dict[str, float]:
    return {"p50": _rounded(times.p50_s), "p95": _rounded(times.p95_s), "p99": _rounded(times.p99_s)}
