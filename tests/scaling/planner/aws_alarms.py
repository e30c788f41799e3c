"""The autoscaling of a cloud's asynchronous endpoints, as a decision for simulations.

A metric each minute sets alarms, and alarms change the number of instances: target tracking of the backlog
for each instance, and a step policy that wakes the first one. Published rules are those of AWS Application
Auto Scaling. The number of points of target tracking's alarms is well known, and documented nowhere.
"""

from dataclasses import dataclass
from math import ceil

from headrace.scaling.policy import Decision, Observation, ScalingMemory
from headrace.scaling.settings import ScalingSettings

_MINUTE_MS = 60_000
_CONTINUOUS_MS = 10_000
"""The longest time between two decisions that are not interrupted by an idle pool."""
HIGH_POINTS, LOW_POINTS, WAKE_POINTS = 3, 15, 2
LOW_SHARE = 0.9
"""The low alarm counts points below this share of the target."""
OUT_COOLDOWN_MS, IN_COOLDOWN_MS = 60_000, 600_000


@dataclass
class AlarmScaling:
    """Target tracking with alarms. `decide` is the decision of one simulation.

    Args:
        target: Jobs for each instance.
        wakes: True with the step policy that adds an instance for jobs without any. Its cooldown is the
            start of that instance.
        low_stays: True if the low alarm outlasts the time without instances; else it counts anew.
    """

    target: float = 5.0
    wakes: bool = False
    low_stays: bool = False
    _called_ms: int = 0
    _minute: int = -1
    _high: int = 0
    """Points above the target without interruption."""
    _low: int = 0
    _asleep: int = 0
    """Points with jobs and without an instance."""
    _changed_ms: int = -IN_COOLDOWN_MS
    """The time of the last change of the instances."""

    def decide(self, settings: ScalingSettings, observed: Observation, memory: ScalingMemory) -> Decision:
        """Return the wanted instances. They change at most once a minute."""
        minute, at_ms = observed.at_ms // _MINUTE_MS, observed.at_ms
        wanted = observed.current
        if minute > self._minute and at_ms - self._called_ms <= _CONTINUOUS_MS:
            self._count(observed)
            wanted = min(settings.workers.most, max(settings.workers.least, self._wanted(observed)))
        if minute > self._minute and at_ms - self._called_ms > _CONTINUOUS_MS:
            self._high = self._asleep = 0
        self._minute, self._called_ms = minute, at_ms
        if wanted != observed.current:
            self._changed_ms = at_ms
        return Decision(wanted, "alarms", memory)

    def _count(self, observed: Observation) -> None:
        """Count the points of a minute."""
        per_instance = observed.backlog / max(1, observed.workers)
        self._high = self._high + 1 if per_instance > self.target else 0
        self._asleep = self._asleep + 1 if observed.backlog and not observed.workers else 0
        if observed.workers:
            self._low = self._low + 1 if per_instance < LOW_SHARE * self.target else 0
        elif not self.low_stays:
            self._low = 0

    def _wanted(self, observed: Observation) -> int:
        current, tracked = observed.current, ceil(observed.backlog / self.target)
        passed_ms = observed.at_ms - self._changed_ms
        if self._high >= HIGH_POINTS and tracked > current and passed_ms >= OUT_COOLDOWN_MS:
            return tracked
        if self.wakes and self._asleep >= WAKE_POINTS and not current:
            return 1
        is_low = self._low >= LOW_POINTS and observed.workers > 0
        return tracked if is_low and tracked < current and passed_ms >= IN_COOLDOWN_MS else current
