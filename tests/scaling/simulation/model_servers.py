"""Pods of a model server in virtual time, which an HPA scales by a rule of Prometheus Adapter.

Everything is deterministic for a seed.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from headrace.core.statistics import InstanceStatus
from headrace.scaling.instances import (
    DECISION_S,
    SAMPLE_S,
    SLOTS_MAX,
    InstanceLoad,
    LoadSamples,
    observe_instances,
)
from headrace.scaling.policy import ScalingMemory, decide
from headrace.scaling.settings import InstanceScalingSettings, WorkerRange
from scaling.simulation.autoscalers import SYNC_S, HorizontalPodAutoscaler, sum_of_pods

TICK_S = 0.05
SCRAPE_S = 30.0
"""`serviceMonitor.interval` of the chart."""
AVERAGE_S = 60.0
"""The range of the rules of Prometheus Adapter."""
INSTANCE_STARTUP_S = 5.0


@dataclass(frozen=True)
class SimulatedModel:
    """A model: the most rows of a call, and the seconds that a number of rows takes."""

    rows_max: int
    call_s: Callable[[int], float]


@dataclass(frozen=True)
class Sample:
    """The values of a scrape: the requests in flight, the seconds of all calls so far, and the instances."""

    at_s: float
    in_flight: int
    busy_s: float
    instances: int


@dataclass
class SimulatedInstance:
    """An instance and its call. A removed instance ends its call."""

    ready_s: float
    is_removed: bool = False
    running: int = 0
    began_s: float = 0.0
    free_s: float = 0.0


@dataclass
class ModelPod:
    """A pod: its instances, its requests of one row, and its samples. It begins with one instance.

    Headrace's decision adds and removes instances up to `instances_max`.
    """

    ready_s: float
    model: SimulatedModel
    instances_max: int = 1
    waiting: int = 0
    busy_s: float = 0.0
    """The seconds of the calls that have ended."""
    instances: list[SimulatedInstance] = field(default_factory=lambda: [SimulatedInstance(0.0)])
    samples: list[Sample] = field(default_factory=list)
    load: LoadSamples = field(default_factory=LoadSamples)
    memory: ScalingMemory | None = None

    @property
    def running(self) -> int:
        """The requests in calls."""
        return sum(each.running for each in self.instances)

    def serving(self, now_s: float) -> list[SimulatedInstance]:
        """Return the instances that have started and are not removed."""
        return [each for each in self.instances if each.ready_s <= now_s and not each.is_removed]

    def work(self, now_s: float) -> None:
        """End the calls that are over, and begin the next."""
        for instance in self.instances:
            while instance.running and now_s >= instance.free_s:
                self.busy_s += instance.free_s - instance.began_s
                self._begin(instance, instance.free_s)
            if not instance.running and now_s >= instance.ready_s:
                self._begin(instance, now_s)

    def _begin(self, instance: SimulatedInstance, at_s: float) -> None:
        instance.running = 0 if instance.is_removed else min(self.waiting, self.model.rows_max)
        self.waiting -= instance.running
        instance.began_s, instance.free_s = at_s, at_s + self.model.call_s(instance.running)

    def sample_load(self) -> None:
        """Add a sample for the decision on the instances."""
        self.load.add(InstanceLoad(self.waiting, self.running, min(self.model.rows_max, SLOTS_MAX)))

    def scale(self, now_s: float) -> None:
        """Add and remove instances, unless some are starting."""
        load = self.load.take()
        if load is None or any(each.ready_s > now_s for each in self.instances):
            return
        serving = self.serving(now_s)
        number = len(serving)
        self.instances = [each for each in self.instances if each.running or not each.is_removed]
        draining = len(self.instances) - number
        status = InstanceStatus("m", "1", number, number, draining, 1, self.instances_max)
        observed = observe_instances(round(now_s * 1000), load, status)
        settings = InstanceScalingSettings(workers=WorkerRange(1, self.instances_max))
        decision = decide(settings, observed, self.memory or ScalingMemory.resume(observed))
        self.memory = decision.memory
        added = decision.wanted - number
        self.instances += [SimulatedInstance(now_s + INSTANCE_STARTUP_S) for _ in range(added)]
        for instance in serving[decision.wanted :]:
            instance.is_removed = True

    def scrape(self, now_s: float) -> None:
        """Add a sample, and forget those that no rule needs any more."""
        # As in headrace, calls in progress count so far.
        busy_s = self.busy_s + sum(now_s - each.began_s for each in self.instances if each.running)
        sample = Sample(now_s, self.waiting + self.running, busy_s, len(self.serving(now_s)))
        self.samples = [*self._recent(now_s), sample]

    def in_flight_requests(self, now_s: float) -> float | None:
        """Return the average of the rule; None without a sample."""
        values = [sample.in_flight for sample in self._recent(now_s)]
        return sum(values) / len(values) if values else None

    def busy_share(self, now_s: float) -> float | None:
        """Return the rate of the rule for each instance; None with fewer than two samples."""
        busy = self._busy_instances(now_s)
        return None if busy is None else busy / self.samples[-1].instances

    def cpu_share(self, now_s: float) -> float | None:
        """Return the used share of one CPU for each of the most instances; None like `busy_share`."""
        busy = self._busy_instances(now_s)
        return None if busy is None else busy / self.instances_max

    def _busy_instances(self, now_s: float) -> float | None:
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
        instances_max: The most instances of a pod.
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
        instances_max: int = 1,
        startup_s: float = 90.0,
        seed: int = 1,
    ) -> None:
        self._hpa, self._requests_per_s = hpa, requests_per_s
        self._metric, self._startup_s = metric, startup_s
        self._random = random.Random(seed)
        self._instances_max = instances_max
        self._pod = partial(ModelPod, model=model, instances_max=instances_max)
        self._pods = [self._pod(0.0) for _ in range(replicas)]
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

    @property
    def instances(self) -> int:
        """The instances of all pods."""
        return sum(len(pod.serving(self.now_s)) for pod in self._pods)

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
                pod.work(now_s)
            if self._instances_max > 1 and self._every(SAMPLE_S):
                for pod in ready:
                    pod.sample_load()
            if self._instances_max > 1 and self._every(DECISION_S):
                for pod in ready:
                    pod.scale(now_s)
            if self._every(SCRAPE_S):
                for pod in ready:
                    pod.scrape(now_s)
            if self._every(SYNC_S):
                self._scale(now_s)

    def _every(self, seconds: float) -> bool:
        return not self._ticks % round(seconds / TICK_S)

    def _scale(self, now_s: float) -> None:
        metric = sum_of_pods([self._metric(pod, now_s) for pod in self._pods], self._hpa.target)
        wanted = self._hpa.sync(now_s, self.replicas, metric)
        if wanted != self.replicas:
            added = wanted - self.replicas
            self._pods += [self._pod(now_s + self._startup_s) for _ in range(added)]
            # A removed pod finishes its requests, and counts no more.
            del self._pods[wanted:]
            self.sizes.append((now_s, wanted))
