"""The decision how many workers a load needs. Pure.

Three policies recommend a number of workers: by backlog, by steps, and by waiting time. The largest one
counts. Stabilisation windows, cooldowns and limits per step then apply, in this order. They slow down a
change only within the limits of the pool, or of the schedule that is in force: a pool outside of its
limits returns to them at once.

The algorithms are those of the Kubernetes HorizontalPodAutoscaler (the ceiling of load over target,
tolerance, stabilisation windows) and of AWS Application Auto Scaling (cooldowns, step policies, scheduled
limits). Both count due *and* running jobs here, so that a worker is not removed because its job has left
the queue.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil
from typing import Any, Final

from headrace.jobs.schedules import last_time_ms
from headrace.scaling.settings import ScalingSettings, ScheduledLimits, Steps, WorkerRange

_ROUNDING: Final = 1e-9
"""Quotients that exceed a whole number, or a tolerance, by less count as that number."""
_RUN_S_MIN: Final = 0.001
"""The least run time: ledgers count milliseconds."""


@dataclass(frozen=True, slots=True)
class Observation:
    """The load and the workers of a pool at one time.

    A worker is *busy* while it runs a job. Workers that drain are not among `workers`: they claim
    nothing, and end when their jobs have ended.
    """

    at_ms: int
    due: int
    """Jobs that could be claimed."""
    running: int
    slots: int
    """Jobs that a worker runs at once."""
    workers: int = 0
    """Workers that claim jobs."""
    starting: int = 0
    """Workers that were started and do not claim yet."""
    draining: int = 0
    busy: int = 0
    """Busy workers among `workers`."""
    oldest_s: float = 0.0
    """Waiting time of the oldest due job."""
    run_s: float | None = None
    """Predicted seconds of an attempt in a slot; None if it is unknown."""
    arrivals_per_s: float = 0.0
    drains: bool = False
    """True if a busy worker can be removed without harm: it drains first."""

    @property
    def backlog(self) -> int:
        """Due and running jobs."""
        return self.due + self.running

    @property
    def current(self) -> int:
        """The workers that claim jobs, or will."""
        return self.workers + self.starting

    @property
    def busy_share(self) -> float:
        """The share of the slots that run jobs."""
        slots = self.workers * self.slots
        return min(1.0, self.running / slots) if slots else 0.0

    @property
    def service_per_s(self) -> float | None:
        """The attempts that a worker with full slots ends each second; None if it is unknown."""
        return self.slots / self.run_s if self.run_s else None

    def document(self) -> dict[str, Any]:
        """Return the figures as JSON."""
        return {
            "due": self.due,
            "running": self.running,
            "oldest_seconds": round(self.oldest_s, 3),
            "run_seconds": None if self.run_s is None else round(self.run_s, 3),
            "arrivals_per_second": round(self.arrivals_per_s, 4),
            "service_per_second": None if self.service_per_s is None else round(self.service_per_s, 4),
            "slots": self.slots,
            "workers": self.workers,
            "starting": self.starting,
            "draining": self.draining,
            "busy": self.busy,
            "busy_share": round(self.busy_share, 3),
        }


_Recommendations = tuple[tuple[int, int], ...]
"""Times in milliseconds, ascending, with the recommended numbers of workers."""


@dataclass(frozen=True, slots=True)
class ScalingMemory:
    """The part of the past that a decision depends on. `resume` begins it."""

    most: _Recommendations = ()
    """The recommendations in the window for removals that no later one exceeds."""
    least: _Recommendations = ()
    """The recommendations in the window for additions that no later one falls below."""
    added_at_ms: int | None = None
    removed_at_ms: int | None = None
    loaded_at_ms: int | None = None
    """The last time with a job."""

    @classmethod
    def resume(cls, observed: Observation) -> "ScalingMemory":
        """Return the memory of a controller that begins: it removes nothing for one window."""
        current = ((observed.at_ms, observed.current),)
        return cls(most=current, loaded_at_ms=observed.at_ms if observed.current else None)


@dataclass(frozen=True, slots=True)
class Decision:
    """The number of workers that a pool is to have, with the reason in words."""

    wanted: int
    reason: str
    memory: ScalingMemory


@dataclass(frozen=True, slots=True)
class _Recommendation:
    """The number of workers that a policy recommends."""

    workers: int
    reason: str


def decide(settings: ScalingSettings, observed: Observation, memory: ScalingMemory) -> Decision:
    """Return the number of workers that a pool is to have from now on.

    Draining workers do not count. The number never falls below that of the busy workers, unless the
    pool drains workers before it ends them.
    """
    recommended = max(_recommendations(settings, observed), key=lambda each: each.workers)
    reasons = [recommended.reason]
    workers = _within_limits(settings, observed, recommended.workers, reasons)
    memory = _remember(settings, observed, memory, workers)
    workers = _stabilised(settings, observed, memory, workers, reasons)
    workers = _after_cooldown(settings, observed, memory, workers, reasons)
    workers = _within_step(settings, observed, workers, reasons)
    workers = _idle(settings, observed, memory, workers, reasons)
    workers = _within_limits(settings, observed, workers, reasons)
    workers = _at_least_busy(observed, workers, reasons)
    if workers > observed.current:
        memory = replace(memory, added_at_ms=observed.at_ms)
    elif workers < observed.current:
        memory = replace(memory, removed_at_ms=observed.at_ms)
    return Decision(workers, "; ".join(reasons), memory)


# Policies


def _recommendations(settings: ScalingSettings, observed: Observation) -> list[_Recommendation]:
    found: list[_Recommendation] = []
    if settings.steps:
        found.append(_by_steps(settings.steps, observed))
    if settings.target_wait_s is not None:
        found.append(_by_wait(settings.target_wait_s, observed))
    if settings.backlog_per_worker is not None or not found:
        target = settings.backlog_per_worker or float(observed.slots)
        found.append(_by_backlog(target, settings.tolerance, observed))
    return found


def _by_backlog(target: float, tolerance: float, observed: Observation) -> _Recommendation:
    """Recommend the backlog over its target for each worker: target tracking, as the HPA computes it."""
    reason = f"{_load(observed)}, {target:g} for each worker"
    if observed.current and _deviation(target, observed) <= tolerance + _ROUNDING:
        return _Recommendation(observed.current, f"{reason} within the tolerance of {tolerance:g}")
    return _Recommendation(_ceil(observed.backlog / target), reason)


def _deviation(target: float, observed: Observation) -> float:
    """Return the share by which the backlog differs from its target."""
    return abs(1 - observed.backlog / (target * observed.current))


def _by_steps(steps: Steps, observed: Observation) -> _Recommendation:
    reached = [step for step in steps if step[0] <= observed.backlog]
    if not reached:
        return _Recommendation(0, f"{_load(observed)}, less than the first step")
    backlog, workers = reached[-1]
    return _Recommendation(workers, f"{_load(observed)}: step from {backlog}")


def _by_wait(target_s: float, observed: Observation) -> _Recommendation:
    """Recommend the slots with which all due jobs begin in time, as if all were as old as the oldest.

    N slots start N·left/run jobs in `left` seconds, in addition to those of the free slots. So
    `due <= N - running + N * left / run`. Arrivals need no term of their own: if they exceed what the
    slots end, the backlog and the age of the oldest job grow, and with them the recommendation.
    """
    if not observed.backlog:
        return _Recommendation(0, "no jobs")
    if observed.run_s is None:
        slots, why = float(observed.backlog), "run times unknown yet"
    else:
        run_s = max(_RUN_S_MIN, observed.run_s)
        left_s = max(0.0, target_s - observed.oldest_s)
        slots = observed.backlog * run_s / (run_s + left_s)
        why = f"{run_s:.3g} s each"
    reason = f"{_load(observed)} ({why}), to begin within {target_s:g} s"
    return _Recommendation(max(1, _ceil(slots / observed.slots)), reason)


def _load(observed: Observation) -> str:
    return f"{observed.due:,} due and {observed.running:,} running jobs"


def _ceil(quotient: float) -> int:
    return ceil(quotient - _ROUNDING)


# Limits


def _within_limits(settings: ScalingSettings, observed: Observation, workers: int, reasons: list[str]) -> int:
    limits, schedule = limits_at(settings, observed.at_ms)
    by = f" of the schedule {schedule}" if schedule else ""
    # A limit decides alone: it takes the place of the reasons since the recommendation.
    if workers > limits.most:
        reasons[1:] = [f"limited to the maximum of {limits.most}{by}"]
        return limits.most
    if workers < limits.least:
        reasons[1:] = [f"raised to the minimum of {limits.least}{by}"]
        return limits.least
    return workers


def limits_at(settings: ScalingSettings, at_ms: int) -> tuple[WorkerRange, str]:
    """Return the range of workers, and the cron expression that set it; "" for that of the pool."""
    in_force = _schedule_at(settings.schedules, at_ms // 60_000) if settings.schedules else None
    return (settings.workers, "") if in_force is None else (in_force.workers, in_force.cron)


@lru_cache(256)
def _schedule_at(schedules: tuple[ScheduledLimits, ...], minute: int) -> ScheduledLimits | None:
    """Return the schedule whose last time is the latest; of several, the last one of the list."""
    latest: tuple[int, ScheduledLimits] | None = None
    for each in schedules:
        began_ms = last_time_ms(each.cron, each.time_zone, minute * 60_000)
        if began_ms is not None and (latest is None or began_ms >= latest[0]):
            latest = began_ms, each
    return None if latest is None else latest[1]


def _remember(
    settings: ScalingSettings, observed: Observation, memory: ScalingMemory, workers: int
) -> ScalingMemory:
    most_from_ms = observed.at_ms - round(settings.scale_in_window_s * 1000)
    least_from_ms = observed.at_ms - round(settings.scale_out_window_s * 1000)
    return replace(
        memory,
        most=_extended(memory.most, observed.at_ms, workers, most_from_ms, lambda old: old > workers),
        least=_extended(memory.least, observed.at_ms, workers, least_from_ms, lambda old: old < workers),
        loaded_at_ms=observed.at_ms if observed.backlog else memory.loaded_at_ms,
    )


def _extended(
    before: _Recommendations, at_ms: int, workers: int, from_ms: int, matters: Callable[[int], bool]
) -> _Recommendations:
    """Append a recommendation. Drop those before the window, and those that the new one makes irrelevant."""
    kept = tuple(each for each in before if each[0] > from_ms and matters(each[1]))
    return (*kept, (at_ms, workers))


def _stabilised(
    settings: ScalingSettings,
    observed: Observation,
    memory: ScalingMemory,
    workers: int,
    reasons: list[str],
) -> int:
    current = observed.current
    if workers < current:
        held = min(current, max(each for _, each in memory.most))
        if held > workers:
            reasons.append(f"{_were(held)} needed in the last {settings.scale_in_window_s:g} s")
        return held
    if workers > current:
        held = max(current, min(each for _, each in memory.least))
        if held < workers:
            reasons.append(f"{_were(held)} enough in the last {settings.scale_out_window_s:g} s")
        return held
    return workers


def _were(workers: int) -> str:
    return "1 worker was" if workers == 1 else f"{workers} workers were"


def _after_cooldown(
    settings: ScalingSettings,
    observed: Observation,
    memory: ScalingMemory,
    workers: int,
    reasons: list[str],
) -> int:
    current = observed.current
    if workers > current:
        last_ms, cooldown_s, change = memory.added_at_ms, settings.scale_out_cooldown_s, "addition"
    elif workers < current:
        last_ms, cooldown_s, change = memory.removed_at_ms, settings.scale_in_cooldown_s, "removal"
    else:
        return workers
    if last_ms is None or observed.at_ms - last_ms >= cooldown_s * 1000:
        return workers
    reasons.append(f"the last {change} was less than {cooldown_s:g} s ago")
    return current


def _within_step(settings: ScalingSettings, observed: Observation, workers: int, reasons: list[str]) -> int:
    current = observed.current
    if workers > current:
        step = _step(settings.scale_out_step, settings.scale_out_percent, current)
        if step is not None and workers > current + step:
            reasons.append(f"limited to {step} at once")
            return current + step
    elif workers < current:
        step = _step(settings.scale_in_step, settings.scale_in_percent, current)
        if step is not None and workers < current - step:
            reasons.append(f"limited to {step} at once")
            return current - step
    return workers


def _step(workers: int | None, percent: float | None, current: int) -> int | None:
    limits = [workers] if workers is not None else []
    if percent is not None:
        limits.append(max(1, _ceil(current * percent / 100)))
    return max(limits, default=None)


def _idle(
    settings: ScalingSettings,
    observed: Observation,
    memory: ScalingMemory,
    workers: int,
    reasons: list[str],
) -> int:
    """Keep the last worker of a pool that had a job lately."""
    if workers or not observed.current or settings.idle_s is None or memory.loaded_at_ms is None:
        return workers
    if observed.at_ms - memory.loaded_at_ms >= settings.idle_s * 1000:
        return 0
    reasons.append(f"the last worker stays for {settings.idle_s:g} s without a job")
    return 1


def _at_least_busy(observed: Observation, workers: int, reasons: list[str]) -> int:
    """Keep busy workers that cannot drain."""
    if observed.drains or workers >= observed.busy:
        return workers
    reasons.append("1 worker is busy" if observed.busy == 1 else f"{observed.busy} workers are busy")
    return observed.busy
