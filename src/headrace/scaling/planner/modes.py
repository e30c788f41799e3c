"""The modes of a pool that a plan compares: always on, scale to zero, a nightly batch, and a given policy."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from math import ceil
from typing import Final

import numpy as np

from headrace.core.errors import ConfigError
from headrace.scaling.planner.load import DAY_S, Load
from headrace.scaling.planner.machine import Machine
from headrace.scaling.planner.outcome import Outcome
from headrace.scaling.planner.simulation import simulate
from headrace.scaling.settings import WORKERS_MAX, ScalingSettings, WorkerRange

ALWAYS_ON: Final = "always-on"
SCALE_TO_ZERO: Final = "scale-to-zero"
NIGHTLY_BATCH: Final = "nightly batch"
GIVEN_POLICY: Final = "your policy"

BUSY_SHARE_MAX: Final = 0.8
"""The largest share of their time for which machines that are always on may have work."""
NIGHT_S: Final = 2 * 3600.0
"""The time of a batch at night, in seconds after midnight."""
_ROUNDING: Final = 1e-9
_DEFAULT: Final = ScalingSettings()


@dataclass(frozen=True, slots=True, eq=False)
class PoolMode:
    """A way to run a pool, with the outcome of its simulation."""

    name: str
    settings: ScalingSettings
    outcome: Outcome

    @property
    def workers(self) -> WorkerRange:
        """The smallest and the largest number of workers."""
        return self.settings.workers

    @property
    def title(self) -> str:
        """The name and the number of workers: ``always-on, 1 worker`` or ``scale-to-zero, 0..8 workers``."""
        return f"{self.name}, {self.workers_text} {'worker' if self.workers.most == 1 else 'workers'}"

    @property
    def workers_text(self) -> str:
        """The range of workers, or their number if it is fixed."""
        return str(self.workers.most) if self.workers.least == self.workers.most else str(self.workers)

    @property
    def keeps_workers(self) -> bool:
        """True if a worker is there at all times."""
        return min([self.workers.least, *(each.workers.least for each in self.settings.schedules)]) > 0

    def saving(self, other: "PoolMode") -> float:
        """Return the share of the cost of another mode that this one saves; negative if it costs more."""
        whole = other.outcome.cost_per_day
        return 1 - self.outcome.cost_per_day / whole if whole else 0.0


def compare(
    load: Load,
    machine: Machine,
    settings: ScalingSettings = _DEFAULT,
    *,
    always_on: int | None = None,
    interval_s: float = 5.0,
    seed: int = 0,
    on_mode: Callable[[str], None] = lambda _: None,
) -> tuple[PoolMode, ...]:
    """Simulate a load in each mode.

    The mode of the given policy is left out if it is that of the default policy from zero.

    Args:
        load: The jobs.
        machine: The machine of each worker.
        settings: The given policy. Its largest number of workers limits the other modes, too.
        always_on: The number of machines that are always on, instead of the number that the load needs.
        interval_s: Seconds between two decisions.
        seed: The seed of interruptions.
        on_mode: A function that gets the name of each mode before its simulation.

    Raises:
        ConfigError: In a mode, jobs have not ended 30 days after the span of the load.
    """
    most = max([settings.workers.most, *(each.workers.most for each in settings.schedules)])
    fixed = machines_needed(load, machine) if always_on is None else always_on
    from_zero = ScalingSettings(workers=WorkerRange(0, most))
    planned = [
        (ALWAYS_ON, load, ScalingSettings(workers=WorkerRange(fixed, fixed))),
        (SCALE_TO_ZERO, load, from_zero),
        (NIGHTLY_BATCH, due_at_night(load), from_zero),
    ]
    if (given := _policy_of(settings)) != from_zero:
        planned.append((GIVEN_POLICY, load, given))
    found: list[PoolMode] = []
    for name, jobs, policy in planned:
        on_mode(name)
        try:
            outcome = simulate(jobs, machine, policy, interval_s=interval_s, seed=seed)
        except ConfigError as error:
            raise ConfigError(f"{name}, {policy.workers} workers: {error}") from error
        found.append(PoolMode(name, policy, outcome))
    return tuple(found)


def machines_needed(load: Load, machine: Machine) -> int:
    """Return the number of machines that have work for at most 80 % of their time, on average.

    Raises:
        ConfigError: The number exceeds that of the workers of a pool.
    """
    found = max(1, ceil(offered_machines(load, machine) / BUSY_SHARE_MAX - _ROUNDING))
    if found > WORKERS_MAX:
        raise ConfigError(
            f"the load needs {found:,} machines, and a pool has up to {WORKERS_MAX:,}: split the load"
        )
    return found


def offered_machines(load: Load, machine: Machine) -> float:
    """Return the number of machines with full slots that the jobs keep busy, on average."""
    return load.busy_s / machine.capacity / load.span_s


def due_at_night(load: Load) -> Load:
    """Return the load with all jobs of a day due at the next 02:00 UTC."""
    began_s = load.began_at_ms / 1000 % DAY_S
    first_s = NIGHT_S - began_s + (DAY_S if began_s > NIGHT_S else 0.0)
    nights = np.ceil((load.due - first_s) / DAY_S)
    return replace(load, due_s=np.maximum(load.due, first_s + nights * DAY_S))


def _policy_of(settings: ScalingSettings) -> ScalingSettings:
    """Return the settings of the decision alone, without those of a controller."""
    return ScalingSettings(**{each.name: getattr(settings, each.name) for each in fields(ScalingSettings)})
