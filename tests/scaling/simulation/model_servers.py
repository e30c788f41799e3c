"""Pods of a model server in virtual time, which an HPA scales by a rule of Prometheus Adapter.

Everything is deterministic for a seed.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from scaling.simulation.autoscalers import SYNC_S, HorizontalPodAutoscaler, sum_of_pods

TICK_S = 0.05
SCRAPE_S = 30.0
"""`serviceMonitor.interval` of the chart."""
AVERAGE_S = 60.0
"""The range of the rules of Prometheus Adapter."""


@dataclass(frozen=True)
class SimulatedModel:
    """A model with one instance: the rows of a call, and the seconds that a number of rows takes."""

    rows_max: int
    call_s: Callable[[int], float]


@dataclass(frozen=True)
class Sample:
    """The values of a scrape: the requests in flight, and the seconds of all calls that have ended."""

    at_s: float
    in_flight: int
    busy_s: float


@dataclass
class ModelPod:
    """A pod: its requests of one row, and its samples."""

    ready_s: float
    waiting: int = 0
    running: int = 0
    call_s: float = 0.0
    free_s: float = 0.0
    busy_s: float = 0.0
    samples: list[Sample] = field(default_factory=list)

    def work(self, now_s: float, model: SimulatedModel) -> None:
        """End the calls that are over, and begin the next."""
        while self.running and now_s >= self.free_s:
            # As in headrace, a call counts when it ends.
            self.busy_s += self.call_s
            self._begin(self.free_s, model)
        if not self.running:
            self._begin(now_s, model)

    def _begin(self, at_s: float, model: SimulatedModel) -> None:
        self.running = min(self.waiting, model.rows_max)
        self.waiting -= self.running
        self.call_s = model.call_s(self.running)
        self.free_s = at_s + self.call_s

    def scrape(self, now_s: float) -> None:
        """Add a sample, and forget those that no rule needs any more."""
        self.samples = [*self._recent(now_s), Sample(now_s, self.waiting + self.running, self.busy_s)]

    def in_flight_requests(self, now_s: float) -> float | None:
        """Return the average of the rule; None without a sample."""
        values = [sample.in_flight for sample in self._recent(now_s)]
        return sum(values) / len(values) if values else None

    def busy_share(self, now_s: float) -> float | None:
        """Return the rate of the rule; None with fewer than two samples."""
        recent = self._recent(now_s)
        if len(recent) < 2:
            return None
        return (recent[-1].busy_s - recent[0].busy_s) / (recent[-1].at_s - recent[0].at_s)

    def _recent(self, now_s: float) -> list[Sample]:
        return [sample for sample in self.samples if sample.at_s > now_s - AVERAGE_S]


class ModelServers:
    """The pods of a Deployment, each request to a random one that is ready.

    Args:
        hpa: The autoscaler.
        model: The model of each pod.
        requests_per_s: The requests of all clients by the time in seconds.
        metric: The metric of a pod at a time.
        replicas: The pods at the beginning, which are ready.
        startup_s: Seconds from the creation of a pod until it is ready.
        seed: The seed of the choices among pods.
    """

    def __init__(
        self,
        hpa: HorizontalPodAutoscaler,
        model: SimulatedModel,
        requests_per_s: Callable[[float], float],
        *,
        metric: Callable[[ModelPod, float], float | None] = ModelPod.in_flight_requests,
        replicas: int,
        startup_s: float = 90.0,
        seed: int = 1,
    ) -> None:
        self._hpa, self._model, self._requests_per_s = hpa, model, requests_per_s
        self._metric, self._startup_s = metric, startup_s
        self._random = random.Random(seed)
        self._pods = [ModelPod(0.0) for _ in range(replicas)]
        self._owed = 0.0
        """The part of a request that has not arrived yet."""
        self._ticks = 0
        self.sizes = [(0.0, replicas)]
        """The numbers of pods, with the times of the changes."""

    @property
    def now_s(self) -> float:
        """Seconds since the beginning."""
        return self._ticks * TICK_S

    @property
    def replicas(self) -> int:
        """The number of pods, with those that start."""
        return len(self._pods)

    def changes(self, from_s: float) -> int:
        """Return the number of changes since a time."""
        return sum(at_s >= from_s for at_s, _ in self.sizes[1:])

    def run_until(self, at_s: float) -> None:
        """Serve and scale until a time."""
        while self.now_s < at_s:
            self._ticks += 1
            now_s = self.now_s
            ready = [pod for pod in self._pods if pod.ready_s <= now_s]
            self._owed += self._requests_per_s(now_s) * TICK_S
            while self._owed >= 1:
                self._owed -= 1
                self._random.choice(ready).waiting += 1
            for pod in ready:
                pod.work(now_s, self._model)
            if not self._ticks % round(SCRAPE_S / TICK_S):
                for pod in ready:
                    pod.scrape(now_s)
            if not self._ticks % round(SYNC_S / TICK_S):
                self._scale(now_s)

    def _scale(self, now_s: float) -> None:
        metric = sum_of_pods([self._metric(pod, now_s) for pod in self._pods], self._hpa.target)
        wanted = self._hpa.sync(now_s, self.replicas, metric)
        if wanted != self.replicas:
            added = wanted - self.replicas
            self._pods += [ModelPod(now_s + self._startup_s) for _ in range(added)]
            # A removed pod finishes its requests, and counts no more.
            del self._pods[wanted:]
            self.sizes.append((now_s, wanted))
