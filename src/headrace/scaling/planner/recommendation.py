"""The recommendation of a mode: the cheapest one in which jobs wait no longer than they may. Pure.

The acceptable wait decides on the kind of service. A user who waits for an answer needs a worker that is
there. A job that may wait for minutes can start a machine, and one that may wait for hours can wait for the
night.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from headrace.core.errors import ConfigError
from headrace.reports.markup import duration, pluralize
from headrace.scaling.planner.load import DAY_S, Load
from headrace.scaling.planner.machine import Machine
from headrace.scaling.planner.modes import (
    ALWAYS_ON,
    GIVEN_POLICY,
    NIGHTLY_BATCH,
    SCALE_TO_ZERO,
    PoolMode,
    offered_machines,
)
from headrace.scaling.planner.outcome import MONTH_DAYS, busy_cost_per_day
from headrace.scaling.settings import WORKERS_MAX

Kind = Literal["real time", "asynchronous", "batch"]

WAIT_S_MAX_DEFAULT: Final = 600.0
_POINTLESS_SAVING: Final = 0.05
"""A share of the cost of machines that are always on. A mode that saves less is not worth its waits."""
_SOON_S: Final = 0.0005


@dataclass(frozen=True, slots=True)
class ModeRecommendation:
    """The mode of a pool to choose, with the reasons in sentences."""

    mode: str
    kind: Kind
    wait_s_max: float
    is_in_time: bool
    """True if the 95th percentile of the waiting times in this mode is within the limit."""
    commands: tuple[str, ...]
    """The commands of headrace that run the mode."""
    reasons: tuple[str, ...]


def recommend(
    load: Load,
    machine: Machine,
    modes: Sequence[PoolMode],
    *,
    wait_s_max: float = WAIT_S_MAX_DEFAULT,
    currency: str = "",
) -> ModeRecommendation:
    """Return the cheapest mode in which 95 % of the jobs begin in time.

    Always-on is preferred to a mode that saves less than 5 % of its cost. If no mode is in time, return the
    one with the shortest wait.

    Args:
        load: The jobs.
        machine: The machine of each worker.
        modes: The simulated modes, among them always-on and scale-to-zero.
        wait_s_max: The longest acceptable wait in seconds, from arrival to the start of a job.
        currency: The currency of costs.

    Raises:
        ConfigError: The longest wait is negative or not a number.
    """
    if not wait_s_max >= 0:
        raise ConfigError(f"the longest acceptable wait must be 0 seconds or more, not {wait_s_max:g}")
    is_user_waiting = wait_s_max < machine.start_s
    candidates = [each for each in modes if each.keeps_workers or not is_user_waiting]
    in_time = [each for each in candidates if each.outcome.wait.p95_s <= wait_s_max]
    by_name = {each.name: each for each in modes}
    if in_time:
        chosen = min(in_time, key=lambda each: each.outcome.cost_per_day)
        always_on = by_name[ALWAYS_ON]
        if always_on in in_time and chosen.saving(always_on) < _POINTLESS_SAVING:
            chosen = always_on
    else:
        chosen = min(candidates, key=lambda each: (each.outcome.wait.p95_s, each.outcome.cost_per_day))
    if is_user_waiting:
        kind: Kind = "real time"
    else:
        kind = "batch" if chosen.name == NIGHTLY_BATCH else "asynchronous"
    reasons = _Reasons(load, machine, by_name, chosen, wait_s_max, currency)
    return ModeRecommendation(
        chosen.name, kind, wait_s_max, bool(in_time), _commands(chosen, kind), tuple(reasons.sentences(kind))
    )


def money(amount: float, currency: str = "", *, decimals: int = 2) -> str:
    """Return an amount: ``17.66``, ``$17.66`` or ``EUR 17.66``."""
    sign = "-" if round(amount, decimals) < 0 else ""
    space = " " if currency[-1:].isalnum() else ""
    return f"{sign}{currency}{space}{abs(amount):,.{decimals}f}"


def percent(share: float) -> str:
    """Return a share in percent with one decimal: ``65.3 %``."""
    return f"{100 * share:.1f} %"


def seconds(time_s: float) -> str:
    """Return ``0 s``, ``350 ms``, ``12.3 s``, ``5 min``, ``4 min 5 s``, ``2 h 3 min`` or ``3 days 4 h``."""
    if time_s < 0.0005:
        return "0 s"
    if time_s >= 2 * DAY_S:
        days, hours = divmod(round(time_s / 3600), 24)
        return f"{days:,} days {hours} h".removesuffix(" 0 h")
    return duration(time_s).removesuffix(" 0 s").removesuffix(" 0 min").replace(".0 s", " s")


def _commands(mode: PoolMode, kind: Kind) -> tuple[str, ...]:
    if mode.name == NIGHTLY_BATCH:
        return ("headrace transform",)
    if mode.name == ALWAYS_ON:
        return ("headrace serve",) if kind == "real time" else ("headrace up",)
    if mode.name == GIVEN_POLICY:
        return ("headrace up", "headrace scale")
    return ("headrace up", f"headrace scale --workers {mode.workers}")


@dataclass(frozen=True, slots=True)
class _Reasons:
    """The sentences about a chosen mode."""

    load: Load
    machine: Machine
    modes: dict[str, PoolMode]
    chosen: PoolMode
    wait_s_max: float
    currency: str

    def sentences(self, kind: Kind) -> Iterator[str]:
        yield self._kind(kind)
        yield self._cost()
        yield from self._missed(kind)
        yield from self._pointless()
        yield from self._overload()
        yield from self._interruptions()

    def _kind(self, kind: Kind) -> str:
        limit, start = seconds(self.wait_s_max), seconds(self.machine.start_s)
        workers = self.chosen.workers
        if kind == "real time":
            return (
                f"Real time: a wait of {limit} is shorter than the start of a machine, {start}, so a worker "
                f"must be there before its job. {self._at_all_times()}"
            )
        if kind == "batch":
            return (
                f"Nightly batch: jobs may wait {limit}, so those of a day can run together at night. Run "
                "`headrace transform` over their files from a schedule."
            )
        asynchronous = (
            f"Asynchronous: jobs may wait {limit}. Submit them to `headrace up` with a notification"
        )
        if self.chosen.name == ALWAYS_ON:
            return f"{asynchronous}, and keep {pluralize(workers.least, 'worker')}."
        if self.chosen.name == GIVEN_POLICY:
            return (
                f"{asynchronous}, and let `headrace scale` run your policy ({workers} workers), "
                "on Kubernetes or other machines of your own."
            )
        return f"{asynchronous}, and let `headrace scale --workers {workers}` start and end the machines."

    def _at_all_times(self) -> str:
        workers = self.chosen.workers
        if self.chosen.name == ALWAYS_ON:
            return f"Run `headrace serve` on {pluralize(workers.least, 'machine')}."
        return f"Let `headrace scale` run your policy ({workers} workers), which always has one."

    def _cost(self) -> str:
        outcome, always_on = self.chosen.outcome, self.modes[ALWAYS_ON]
        cost = (
            f"It costs {self._money(outcome.cost_per_day)} a day and "
            f"{self._money(outcome.cost_per_month)} a month"
        )
        whole, busy = always_on.outcome.cost_per_day, busy_cost_per_day(self.load, self.machine)
        if busy >= whole:
            return f"{cost}."
        ceiling = f"no mode can save more than {percent(1 - busy / whole)}: then only busy time would cost"
        if self.chosen is always_on:
            return f"{cost}; {ceiling}."
        saving = self.chosen.saving(always_on)
        if saving < 0:
            return f"{cost}, {percent(-saving)} more than {ALWAYS_ON}."
        month = self._money((whole - outcome.cost_per_day) * MONTH_DAYS)
        return f"{cost}. That saves {percent(saving)} of {ALWAYS_ON}, {month} a month; {ceiling}."

    def _missed(self, kind: Kind) -> Iterator[str]:
        p95_s = self.chosen.outcome.wait.p95_s
        missed = [each for each in self.modes.values() if each.outcome.wait.p95_s > self.wait_s_max]
        over = [f"{each.name} by {seconds(self._over_s(each))}" for each in missed if each is not self.chosen]
        if self.chosen not in missed:
            within = f"within {seconds(p95_s)}" if p95_s >= _SOON_S else "at once"
            sentence = f"95 % of its jobs begin {within}"
            yield f"{sentence}. Too late: {_listed(over)}." if over else f"{sentence}."
            return
        modes = "mode with a worker at all times" if kind == "real time" else "mode"
        yield (
            f"No {modes} keeps the limit: 95 % of the jobs begin within {seconds(p95_s)} in the fastest, "
            f"{self.chosen.name}, which is {seconds(self._over_s(self.chosen))} more. {self._faster()}"
        )

    def _over_s(self, mode: PoolMode) -> float:
        return mode.outcome.wait.p95_s - self.wait_s_max

    def _faster(self) -> str:
        """Return the options to try for shorter waits."""
        least, most = self.chosen.workers.least, self.chosen.workers.most
        if self.chosen.name == ALWAYS_ON:
            return f"Try --always-on {least + 1}."
        if self.chosen.outcome.workers_max >= most:
            return f"All of its workers were needed: try --workers {least}..{min(WORKERS_MAX, 2 * most)}."
        return f"Try --workers {least + 1}..{max(least + 1, most)}, or more with --always-on."

    def _pointless(self) -> Iterator[str]:
        """Say why scale to zero saves little or nothing, if so."""
        always_on, zero = self.modes[ALWAYS_ON], self.modes.get(SCALE_TO_ZERO)
        if zero is None or not self.machine.price_per_h or zero.saving(always_on) >= _POINTLESS_SAVING:
            return
        if always_on.workers.most < offered_machines(self.load, self.machine):
            return  # Machines that do not do all of the work are no measure.
        saving = zero.saving(always_on)
        result = f"saves {percent(saving)}" if saving >= 0.0005 else "saves nothing"
        if saving <= -0.0005:
            result = f"costs {percent(-saving)} more than always-on"
        window_s, start_s = zero.settings.scale_in_window_s, self.machine.start_s
        gap_s = self.load.span_s / len(self.load.run_s)
        if gap_s < window_s + start_s:
            yield (
                f"Scale to zero {result}: a job comes every {seconds(gap_s)}, so the pool seldom has no "
                f"machine, and it keeps the machines of each peak for {seconds(window_s)}."
            )
        else:
            starts = zero.outcome.cold_starts / self.load.days
            yield (
                f"Scale to zero {result}: each of its {starts:,.0f} cold starts a day takes "
                f"{seconds(start_s)}, and its machine stays for {seconds(window_s)} after its last job."
            )

    def _overload(self) -> Iterator[str]:
        needed = offered_machines(self.load, self.machine)
        small = [
            f"{each.name} ({each.workers.most:,})"
            for each in self.modes.values()
            if each.workers.most < needed
        ]
        if small:
            yield (
                f"The jobs keep {needed:,.1f} machines busy, more than the workers of {_listed(small)}: "
                "the backlog grows from day to day. Permit more workers."
            )

    def _interruptions(self) -> Iterator[str]:
        outcome = self.chosen.outcome
        if outcome.interruptions:
            yield (
                f"{pluralize(outcome.interruptions, 'interruption')} of its machines in "
                f"{seconds(outcome.end_s)} end {seconds(outcome.lost_s)} of work, which runs again; "
                "costs and times to a result include it."
            )

    def _money(self, amount: float) -> str:
        return money(amount, self.currency)


def _listed(words: Sequence[str]) -> str:
    """Return ``a``, ``a and b`` or ``a, b and c``."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
