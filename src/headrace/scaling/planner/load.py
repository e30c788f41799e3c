"""The jobs of a simulation: their arrivals and run times."""

from dataclasses import dataclass
from math import inf
from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import ConfigError

DAY_S: Final = 86_400.0
MONDAY_MS: Final = 4 * 86_400_000
"""A Monday at midnight in UTC."""

Seconds = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """Jobs in the order in which they are due. All arrays are float64, with one element for each job.

    Args:
        arrived_s: The times of submission, in seconds from the start of the simulation.
        run_s: The seconds that each job takes alone in a worker; above 0.
        span_s: The time that the jobs stand for, such as whole days. Costs are divided by it.
        due_s: The times from which jobs can be claimed, ascending; None for those of submission.
        began_at_ms: The begin of the simulation in milliseconds since 1970, for schedules.

    Raises:
        ConfigError: The arrays have different lengths, no element, or impossible values.
    """

    arrived_s: Seconds
    run_s: Seconds
    span_s: float
    due_s: Seconds | None = None
    began_at_ms: int = MONDAY_MS

    def __post_init__(self) -> None:
        """Raise ConfigError for impossible values."""
        times = (self.arrived_s, self.run_s, self.due)
        if not all(each.ndim == 1 and len(each) == len(self.run_s) > 0 for each in times):
            raise ConfigError("a load needs jobs, each with an arrival and a run time")
        if not all(np.isfinite(each).all() for each in times):
            raise ConfigError("arrivals and run times must be finite numbers of seconds")
        if (np.diff(self.due) < 0).any() or self.arrived_s.min() < 0:
            raise ConfigError("arrivals must ascend from 0")
        if (self.due < self.arrived_s).any():
            raise ConfigError("no job may be due before its arrival")
        if (self.run_s <= 0).any():
            raise ConfigError("run times must be above 0 seconds")
        if not 0 < self.span_s < inf or self.began_at_ms < 0:
            raise ConfigError("a load must span more than 0 seconds, from 1970 or later")

    @property
    def due(self) -> Seconds:
        """The times from which jobs can be claimed."""
        return self.arrived_s if self.due_s is None else self.due_s

    @property
    def busy_s(self) -> float:
        """The seconds that all jobs take, one after the other."""
        return float(self.run_s.sum())

    @property
    def days(self) -> float:
        """The span in days."""
        return self.span_s / DAY_S
