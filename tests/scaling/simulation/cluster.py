"""A cluster of workers in virtual time, over a real job ledger in memory.

Pods are workers: they start, register, claim, send heartbeats, settle, drain and end as the real worker
does. Everything is deterministic for a seed.
"""

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from math import log2

from typing_extensions import override

from headrace.core.clock import Clock
from headrace.jobs.job import Completed, Job, NewJob, Released, ResultRef, Settlement
from headrace.jobs.ledger import ClaimRequest, Heartbeat
from headrace.jobs.worker_registry import WorkerInfo, WorkerReport
from headrace.testing import ManualWallClock, MemoryJobLedger

QUEUE = "default"
LEASE_MS = 60_000
HEARTBEAT_S = 15.0
MAINTAIN_S = 5.0
FORGET_S = 60.0
_RESULT = Completed(ResultRef("memory://results/out", 1, "text/csv"))

Action = Callable[[], object]


class WallSeconds(Clock):
    """The seconds of a clock that a test moves. Nothing may sleep on it."""

    def __init__(self, clock: ManualWallClock) -> None:
        self._clock = clock

    @override
    def now(self) -> float:
        return self._clock.now_ms() / 1000

    @override
    def sleep(self, seconds, wake=None):
        raise AssertionError("a simulation does not sleep")


@dataclass
class Pod:
    """A worker of the cluster."""

    name: str
    slots: int
    created_s: float
    ready_s: float | None = None
    """The time at which the worker registered."""
    ended_s: float | None = None
    terminating: bool = False
    """True after SIGTERM: it claims no more jobs."""
    draining: bool = False
    """True while the registry orders it to drain."""
    deletion_cost: int = 0
    running: dict[str, tuple[Job, float]] = field(default_factory=dict)
    """The running jobs with the times of their beginnings."""

    @property
    def claims(self) -> bool:
        """True if the worker claims jobs."""
        return not (self.ready_s is None or self.ended_s is not None or self.terminating or self.draining)


@dataclass
class JobTimes:
    """The times of a job in seconds; None before they come."""

    submitted_s: float
    began_s: float | None = None
    ended_s: float | None = None


class Cluster:
    """Pods, their ledger, and a clock that jumps from event to event.

    Args:
        slots: Jobs that a pod runs at once.
        startup_s: Seconds from the creation of a pod until it claims jobs.
        grace_s: Seconds from SIGTERM until a pod ends in any case; its jobs return to the queue before.
        returns_jobs: False if pods die without a word, so that their jobs wait for the end of their leases.
        busy_costs: True if each pod has its number of running jobs as its deletion cost.
        seed: The seed of all random choices.
    """

    def __init__(
        self,
        *,
        slots: int = 1,
        startup_s: float = 30.0,
        grace_s: float = 30.0,
        returns_jobs: bool = True,
        busy_costs: bool = False,
        seed: int = 1,
    ) -> None:
        self.clock = ManualWallClock()
        self.ledger = MemoryJobLedger(self.clock)
        self.ledger.start()
        self.seconds = WallSeconds(self.clock)
        self.control_ledger = MemoryJobLedger(self.clock, beside=self.ledger)
        """The same jobs over the connection of the autoscalers: `unavailable` is their outage alone."""
        self.control_ledger.start()
        self.slots, self._startup_s, self._grace_s = slots, startup_s, grace_s
        self._returns_jobs, self._busy_costs = returns_jobs, busy_costs
        self._random = random.Random(seed)
        self._began_s = self.seconds.now()
        self._events: list[tuple[int, int, Action]] = []
        self._number = 0
        self._pods: dict[str, Pod] = {}
        """The pods that have not ended."""
        self._ended_pod_s = 0.0
        self._created = 0
        self._wakeup = self.ledger.wakeup([QUEUE])
        self._listeners: list[Action] = [self._follow_orders]
        self._forgettable: list[str] = []
        self.jobs: dict[str, JobTimes] = {}
        self._left = 0
        self.killed = 0
        """Pods that ended with a running job."""
        self.wasted_s = 0.0
        """Seconds of work that were lost."""
        self.sizes: list[tuple[float, int]] = [(0.0, 0)]
        """The numbers of active pods, with the times of the changes."""
        self.every(HEARTBEAT_S, self._send_heartbeats)
        self.every(MAINTAIN_S, lambda: self.ledger.maintain(1000))
        self.every(FORGET_S, self._forget)

    # Time

    @property
    def now_s(self) -> float:
        """Seconds since the beginning."""
        return self.seconds.now() - self._began_s

    def at(self, at_s: float, action: Action) -> None:
        """Do something at a time; at once for a past one."""
        self._number += 1
        at_ms = round((self._began_s + max(at_s, self.now_s)) * 1000)
        heapq.heappush(self._events, (at_ms, self._number, action))

    def after(self, seconds: float, action: Action) -> None:
        """Do something after some seconds."""
        self.at(self.now_s + seconds, action)

    def every(self, period_s: float, action: Action, *, first_s: float | None = None) -> None:
        """Do something periodically, for ever."""

        def act() -> None:
            action()
            self.after(period_s, act)

        self.after(period_s if first_s is None else first_s, act)

    def on_wakeup(self, listener: Action) -> None:
        """Call `listener` after each event that wakes the waiters for the queue."""
        self._listeners.append(listener)

    def run_until(self, at_s: float, *, stop: Callable[[], bool] = lambda: False) -> None:
        """Run all events until a time, or until `stop` returns True."""
        until_ms = round((self._began_s + at_s) * 1000)
        self._wake()
        while self._events and self._events[0][0] <= until_ms and not stop():
            at_ms, _, action = heapq.heappop(self._events)
            self.clock.advance(at_ms - self.clock.now_ms())
            action()
            self._wake()
        if not stop():
            self.clock.advance(until_ms - self.clock.now_ms())

    def _wake(self) -> None:
        while self._wakeup.wait(0):
            for listener in self._listeners:
                listener()

    def run_until_done(self, limit_s: float) -> None:
        """Run until no job is left. Raise AssertionError after `limit_s`."""
        self.run_until(limit_s, stop=self.is_done)
        assert self.is_done(), f"{self._left} jobs are left after {limit_s:g} s"

    # Jobs

    def is_done(self) -> bool:
        """Return True if all jobs have completed, also those that are announced by `submit_at`."""
        return not self._left

    def submit(self, run_s: float, count: int = 1) -> None:
        """Submit jobs that run for `run_s` seconds each."""
        self._left += count
        self._add(run_s, count)

    def submit_at(self, times_s: Sequence[float], run_s: Callable[[], float]) -> None:
        """Submit a job at each of the times. `run_s` draws the seconds that it runs."""
        self._left += len(times_s)
        for at_s in times_s:
            self.at(at_s, partial(self._add, run_s(), 1))

    def _add(self, run_s: float, count: int) -> None:
        ids = [f"job-{len(self.jobs) + number:06}" for number in range(count)]
        self.jobs |= {each: JobTimes(self.now_s) for each in ids}
        self.ledger.submit([NewJob("m", id=each, queue=QUEUE, options={"run_s": run_s}) for each in ids])

    def waits_s(self) -> list[float]:
        """Return the waiting times of all jobs that began, in ascending order."""
        begun = [(each.submitted_s, each.began_s) for each in self.jobs.values()]
        return sorted(began_s - submitted_s for submitted_s, began_s in begun if began_s is not None)

    @property
    def makespan_s(self) -> float:
        """Seconds from the first submission to the last end."""
        times = self.jobs.values()
        return max(each.ended_s or 0.0 for each in times) - min(each.submitted_s for each in times)

    # Pods

    @property
    def active(self) -> list[Pod]:
        """The pods that are not terminating, in the order of their creation."""
        return [pod for pod in self._pods.values() if not pod.terminating]

    @property
    def replicas(self) -> int:
        """The number of active pods, as `status.replicas` of a Deployment."""
        return len(self.active)

    @property
    def worker_hours(self) -> float:
        """Hours of all pods so far, from creation to end."""
        return (self._ended_pod_s + sum(self.now_s - pod.created_s for pod in self._pods.values())) / 3600

    @property
    def direction_changes(self) -> int:
        """How often the number of active pods began to fall after a rise, or to rise after a fall."""
        numbers = [count for _, count in self.sizes]
        signs = [after > before for before, after in pairwise(numbers)]
        return sum(before != after for before, after in pairwise(signs))

    @property
    def largest(self) -> int:
        """The largest number of active pods so far."""
        return max(count for _, count in self.sizes)

    def start_pods(self, count: int) -> None:
        """Create pods. They claim jobs after their start-up."""
        for _ in range(count):
            self._created += 1
            pod = Pod(f"pod-{self._created:04}", self.slots, self.now_s)
            self._pods[pod.name] = pod
            self.after(self._startup_s, lambda pod=pod: self._begin(pod))
        self._note_size()

    def set_replicas(self, count: int) -> None:
        """Create or terminate pods, as the controller of a ReplicaSet does."""
        active = self.active
        if count > len(active):
            self.start_pods(count - len(active))
        for pod in self._deletion_order(active)[: max(0, len(active) - count)]:
            self.terminate(pod.name)

    def _deletion_order(self, pods: Sequence[Pod]) -> list[Pod]:
        """Return the pods in the order of `ActivePodsWithRanks` (`controller_utils.go`).

        Pods that are not ready go first, then those with a lower deletion cost, then younger ones. Ages
        are compared by their logarithm, and equal ones are in a random order. One node per pod.
        """

        def place(pod: Pod) -> tuple[bool, int, int, float]:
            cost = len(pod.running) if self._busy_costs else pod.deletion_cost
            age_s = self.now_s - (pod.created_s if pod.ready_s is None else pod.ready_s)
            return pod.ready_s is not None, cost, int(log2(age_s + 1)), self._random.random()

        return sorted(pods, key=place)

    def terminate(self, name: str) -> None:
        """Send SIGTERM to a pod. It ends with its last job, or at the end of the grace period."""
        pod = self._pods[name]
        if pod.terminating:
            return
        pod.terminating = True
        self._note_size()
        if not pod.running:
            self._end(pod)
        else:
            self.after(self._grace_s, lambda: self._kill(pod))

    def crash(self, name: str) -> None:
        """Kill a pod at once. Its jobs return only with the end of their leases."""
        pod = self._pods[name]
        pod.terminating = True
        pod.running.clear()
        self._note_size()
        self._end(pod, says_so=False)

    def _begin(self, pod: Pod) -> None:
        if pod.ended_s is not None:
            return
        pod.ready_s = self.now_s
        self.ledger.register_worker(
            WorkerInfo(pod.name, pod.name, pod.name, queues=(QUEUE,), slots=pod.slots, lease_ms=LEASE_MS)
        )
        self._claim(pod)

    def _claim(self, pod: Pod, settled: Settlement | None = None) -> None:
        settlements = [] if settled is None else [settled]
        free = pod.slots - len(pod.running) if pod.claims else 0
        claim = ClaimRequest(pod.name, (QUEUE,), free, LEASE_MS) if free else None
        if not settlements and claim is None:
            return
        reply = self.ledger.settle_and_claim(settlements, claim)
        assert all(reply.accepted), "a worker settled a job that it did not have"
        for job in reply.claimed:
            times = self.jobs[job.id]
            times.began_s = self.now_s if times.began_s is None else times.began_s
            pod.running[job.id] = job, self.now_s
            self.after(job.spec.options["run_s"], lambda job=job: self._complete(pod, job))

    def _complete(self, pod: Pod, job: Job) -> None:
        if pod.running.get(job.id, (None,))[0] is not job:
            return  # It was killed.
        del pod.running[job.id]
        self.jobs[job.id].ended_s = self.now_s
        self._left -= 1
        self._forgettable.append(job.id)
        self._claim(pod, Settlement(job.id, job.lease, _RESULT))
        if pod.draining:
            self._send_heartbeat(pod)
        if pod.terminating and not pod.running:
            self._end(pod)

    def _kill(self, pod: Pod) -> None:
        if pod.ended_s is not None:
            return
        self.killed += 1
        running, pod.running = pod.running, {}
        self.wasted_s += sum(self.now_s - began_s for _, began_s in running.values())
        self._end(pod, says_so=self._returns_jobs)
        if self._returns_jobs:
            self.ledger.settle_and_claim(
                [Settlement(job.id, job.lease, Released()) for job, _ in running.values()]
            )

    def _end(self, pod: Pod, *, says_so: bool = True) -> None:
        pod.ended_s = self.now_s
        self._ended_pod_s += pod.ended_s - pod.created_s
        del self._pods[pod.name]
        if says_so and pod.ready_s is not None:
            self.ledger.end_worker(pod.name)

    def _note_size(self) -> None:
        if len(self.sizes) > 1 and self.sizes[-1][0] == self.now_s:
            self.sizes.pop()
        if self.replicas != self.sizes[-1][1]:
            self.sizes.append((self.now_s, self.replicas))

    # Workers' duties

    def _follow_orders(self) -> None:
        """Read the orders to drain, as woken workers do, and claim."""
        pods = [pod for pod in self._pods.values() if pod.ready_s is not None]
        self._random.shuffle(pods)
        for pod in pods:
            draining = self.ledger.worker_orders(pod.name).draining
            if draining != pod.draining:
                pod.draining = draining
                self._send_heartbeat(pod)
            self._claim(pod)

    def _send_heartbeats(self) -> None:
        for pod in list(self._pods.values()):
            if pod.ready_s is not None:
                self._send_heartbeat(pod)

    def _send_heartbeat(self, pod: Pod) -> None:
        beats = [Heartbeat(job.id, job.lease) for job, _ in pod.running.values()]
        reply = self.ledger.heartbeat(pod.name, beats, LEASE_MS, WorkerReport(claims=not pod.draining))
        assert not reply.lost, "a living worker lost a lease"

    def _forget(self) -> None:
        """Delete ended jobs, as the retention does, so that the ledger stays small and quick."""
        self.ledger.forget(self._forgettable)
        self._forgettable.clear()
