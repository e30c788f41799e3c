"""The algorithms of the Kubernetes HorizontalPodAutoscaler and of KEDA. Pure: the time is an argument.

The sources are `kubernetes@pkg/controller/podautoscaler/{replica_calculator,horizontal}.go` and
`keda@pkg/scaling/executor/scale_scaledobjects.go` (2.20).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Literal, Self

TargetKind = Literal["AverageValue", "Value"]
SYNC_S = 15.0
"""Seconds between two decisions of the HPA: `--horizontal-pod-autoscaler-sync-period`."""
POLL_S = 30.0
"""Seconds between two polls of KEDA: `pollingInterval`."""


@dataclass(frozen=True)
class RatePolicy:
    """The limit of a change within a period, in pods or in percent of the pods at its beginning."""

    kind: Literal["Pods", "Percent"]
    value: int
    period_s: float = 15.0


@dataclass(frozen=True)
class DirectionRules:
    """The rules of `behavior.scaleUp` or `behavior.scaleDown`."""

    window_s: float
    policies: tuple[RatePolicy, ...]
    select: Literal["Max", "Min", "Disabled"] = "Max"


UP = DirectionRules(0.0, (RatePolicy("Pods", 4), RatePolicy("Percent", 100)))
DOWN = DirectionRules(300.0, (RatePolicy("Percent", 100),))


@dataclass
class HorizontalPodAutoscaler:
    """An HPA (`autoscaling/v2`) with one External metric, or one of Pods by their `sum_of_pods`.

    `sync` returns the replicas to set. At 0 replicas, the HPA does nothing ("ScalingDisabled").
    """

    least: int
    most: int
    target: float
    kind: TargetKind = "AverageValue"
    tolerance: float = 0.1
    up: DirectionRules = UP
    down: DirectionRules = DOWN
    _asked: list[tuple[float, int]] = field(default_factory=list)
    """The recommendations of the longest window, with their times."""
    _added: list[tuple[float, int]] = field(default_factory=list)
    """The scale events, with their times and numbers of pods."""
    _removed: list[tuple[float, int]] = field(default_factory=list)

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any]) -> Self:
        """Return the HPA of a manifest with one metric, of Pods or the CPU, and rules for removals.

        The target of the CPU is a share of the request.
        """
        spec = manifest["spec"]
        (metric,) = spec["metrics"]
        removals = spec["behavior"]["scaleDown"]
        policies = (RatePolicy(p["type"], p["value"], p["periodSeconds"]) for p in removals["policies"])
        down = DirectionRules(removals["stabilizationWindowSeconds"], tuple(policies))
        if metric["type"] == "Pods":
            target = _quantity(metric["pods"]["target"]["averageValue"])
        else:
            target = metric["resource"]["target"]["averageUtilization"] / 100
        return cls(spec["minReplicas"], spec["maxReplicas"], target, down=down)

    def sync(self, now_s: float, replicas: int, metric: float | None, *, ready: int | None = None) -> int:
        """Return the replicas for a value of the metric. An error of the metric (None) changes nothing.

        `ready` are the pods that are ready, for a target of the kind `Value`; None if all are.
        """
        if replicas == 0:
            return 0
        if not self._asked:
            self._asked.append((now_s, replicas))
        if replicas > self.most or replicas < self.least:
            wanted = min(max(replicas, self.least), self.most)
        elif metric is None:
            return replicas
        else:
            asked = self.recommendation(replicas, metric, replicas if ready is None else ready)
            wanted = self._limited(now_s, replicas, self._stabilised(now_s, replicas, asked))
        if wanted != replicas:
            (self._added if wanted > replicas else self._removed).append((now_s, abs(wanted - replicas)))
        return wanted

    def recommendation(self, replicas: int, metric: float, ready: int) -> int:
        """Return the replicas of the metric alone, without limits and stabilisation."""
        per_pod = self.kind == "AverageValue"
        ratio = metric / (self.target * (replicas if per_pod else 1))
        if abs(1 - ratio) <= self.tolerance:
            return replicas
        return ceil(metric / self.target) if per_pod else ceil(ratio * ready)

    def _stabilised(self, now_s: float, replicas: int, asked: int) -> int:
        """Apply the windows: the least recommendation to add, the greatest one to remove."""
        recent_up = [each for at_s, each in self._asked if at_s > now_s - self.up.window_s]
        recent_down = [each for at_s, each in self._asked if at_s > now_s - self.down.window_s]
        longest_s = max(self.up.window_s, self.down.window_s)
        self._asked = [each for each in self._asked if each[0] > now_s - longest_s] + [(now_s, asked)]
        return min(max(replicas, min([asked, *recent_up])), max([asked, *recent_down]))

    def _limited(self, now_s: float, replicas: int, wanted: int) -> int:
        """Apply the rate policies and the limits."""
        if wanted > replicas:
            return min(wanted, self.most, max(replicas, self._rate_limit(now_s, replicas, self.up)))
        if wanted < replicas:
            return max(wanted, self.least, min(replicas, self._rate_limit(now_s, replicas, self.down)))
        return wanted

    def _rate_limit(self, now_s: float, replicas: int, rules: DirectionRules) -> int:
        """Return the replicas that the policies allow. Periods begin before the scale events in them."""
        if rules.select == "Disabled":
            return replicas
        upward = rules is self.up
        limits: list[int] = []
        for policy in rules.policies:
            since_s = now_s - policy.period_s
            began = replicas - _sum_since(self._added, since_s) + _sum_since(self._removed, since_s)
            limits.append(_raised(policy, began) if upward else _lowered(policy, began))
        return max(limits) if upward == (rules.select == "Max") else min(limits)


def sum_of_pods(values: Sequence[float | None], target: float) -> float | None:
    """Return the sum of a metric of Pods; None if no pod has a value.

    A pod without a value counts as idle if the others are above the target, and as one at the target
    otherwise. It never changes the direction.
    """
    known = [value for value in values if value is not None]
    if not known:
        return None
    at_target = target * (len(values) - len(known))
    excess = sum(known) - target * len(known)
    return sum(known) + (at_target if excess <= 0 else max(0.0, at_target - excess))


def _quantity(text: str) -> float:
    """Return the number of a quantity of Kubernetes, such as ``32`` or ``700m``."""
    return float(text[:-1]) / 1000 if text.endswith("m") else float(text)


def _raised(policy: RatePolicy, pods: int) -> int:
    return pods + policy.value if policy.kind == "Pods" else ceil(pods * (1 + policy.value / 100))


def _lowered(policy: RatePolicy, pods: int) -> int:
    return pods - policy.value if policy.kind == "Pods" else int(pods * (1 - policy.value / 100))


def _sum_since(events: Sequence[tuple[float, int]], since_s: float) -> int:
    return sum(pods for at_s, pods in events if at_s > since_s)


@dataclass
class KedaScaler:
    """KEDA with one trigger. It scales between 0 and 1; its HPA scales above.

    A value above `activation_target` makes the trigger active. Without activity for `cooldown_s`, KEDA
    sets 0 replicas, if that is its minimum. An error of the trigger changes nothing.
    """

    least: int
    most: int
    target: float
    activation_target: float = 0.0
    cooldown_s: float = 300.0
    down: DirectionRules = DOWN
    hpa: HorizontalPodAutoscaler = field(init=False)
    _active_s: float | None = None
    """The last time with activity."""

    def __post_init__(self) -> None:
        self.hpa = HorizontalPodAutoscaler(max(1, self.least), self.most, self.target, down=self.down)

    def poll(self, now_s: float, replicas: int, metric: float | None) -> int:
        """Return the replicas after a poll."""
        if metric is None:
            return replicas
        if metric > self.activation_target:
            self._active_s = now_s
            return replicas or max(1, self.least)
        if replicas and not self.least:
            over = self._active_s is None or now_s - self._active_s > self.cooldown_s
            return 0 if over else replicas
        return max(replicas, self.least)

    def sync(self, now_s: float, replicas: int, metric: float | None) -> int:
        """Return the replicas after a decision of the HPA."""
        return self.hpa.sync(now_s, replicas, metric)
