"""A discrete-event simulation of a pool: jobs arrive, a policy decides, and workers start, run jobs and end.

The policy is that of controllers. Decisions come every few seconds and after each new job, as a controller
makes them; the end of a job's delay causes none. Workers that are removed drain; a shortage ends drains
before new workers start. Workers claim jobs in the order in which they are due, the least busy worker first.
"""

import heapq
import random
from collections import deque
from collections.abc import Callable
from math import ceil, inf, nan
from typing import Final

import numpy as np

from headrace.core.errors import ConfigError
from headrace.scaling.controller import GAP_S
from headrace.scaling.observation import JobRates
from headrace.scaling.planner.load import DAY_S, Load
from headrace.scaling.planner.machine import Machine
from headrace.scaling.planner.outcome import Outcome
from headrace.scaling.policy import Decision, Observation, ScalingMemory, decide, limits_at
from headrace.scaling.settings import ScalingSettings

_HOUR_S: Final = 3600.0
_OVERRUN_S: Final = 30 * DAY_S
"""Seconds after the span of the load in which the last job must end."""
_READY, _DONE, _INTERRUPTED, _DECIDE = range(4)

Decide = Callable[[ScalingSettings, Observation, ScalingMemory], Decision]
_policy: Final[Decide] = decide


def simulate(
    load: Load,
    machine: Machine,
    settings: ScalingSettings,
    *,
    interval_s: float = 5.0,
    drains: bool = True,
    decide: Decide = decide,
    seed: int = 0,
) -> Outcome:
    """Return what becomes of the jobs of a load, and which machines they need.

    The smallest number of workers is there from the start. The simulation ends with the span of the load,
    or with the last job if it ends later.

    Args:
        load: The jobs.
        machine: The machine of each worker.
        settings: The policy of the pool.
        interval_s: Seconds between two decisions; new jobs cause one at once, unless they have a delay.
        drains: True if a busy worker can be chosen for removal: it drains first.
        decide: The decision, for other policies than headrace's.
        seed: The seed of interruptions.

    Raises:
        ConfigError: Jobs have not ended 30 days after the span of the load.
    """
    pool = _Pool(load, machine, settings, interval_s=interval_s, drains=drains, decide=decide, seed=seed)
    pool.run()
    return pool.outcome()


class _Worker:
    """A worker on its machine. Concurrent jobs share its speed equally."""

    __slots__ = (
        "claiming",
        "due",
        "gone_s",
        "number",
        "ready_s",
        "requested_s",
        "version",
        "work",
        "worked_at_s",
    )

    def __init__(self, number: int, requested_s: float) -> None:
        self.number = number
        self.requested_s = requested_s
        self.ready_s = inf
        self.gone_s = inf
        self.claiming = False
        self.due: list[tuple[float, int]] = []
        """The running jobs, a heap: the work at which each ends, and its index."""
        self.work = 0.0
        """Seconds of work that each job would have got since the worker started."""
        self.worked_at_s = 0.0
        self.version = 0
        """The number of the latest change. Ends of jobs that were computed before are obsolete."""


class _Pool:
    """The state of a simulation."""

    def __init__(
        self,
        load: Load,
        machine: Machine,
        settings: ScalingSettings,
        *,
        interval_s: float,
        drains: bool,
        decide: Decide,
        seed: int,
    ) -> None:
        self._load = load
        self._machine = machine
        self._settings = settings
        self._interval_s = interval_s
        self._drains = drains
        self._decide = decide
        self._random = random.Random(seed)  # noqa: S311 - not for secrets
        self._arrived_s: list[float] = load.arrived_s.tolist()
        self._due_s: list[float] = load.due.tolist()
        self._run_s: list[float] = load.run_s.tolist()
        jobs = len(self._due_s)
        self._speeds = [machine.speed(running) for running in range(machine.concurrency + 1)]
        self._now_s = 0.0
        self._events: list[tuple[float, int, int, int, int]] = []
        """A heap: time, order, kind, worker, version."""
        self._order = 0
        self._queue: deque[int] = deque()
        self._began_s = [nan] * jobs
        self._attempt_s = [nan] * jobs
        self._ended_s = [nan] * jobs
        self._unfinished = jobs
        self._workers: list[_Worker] = []
        self._claiming: dict[int, _Worker] = {}
        self._draining: dict[int, _Worker] = {}
        self._free: list[tuple[int, int]] = []
        """A heap of claiming workers with free slots: the running jobs, and the worker. Some are obsolete."""
        self._starting = 0
        self._running = 0
        self._busy = 0
        """Claiming workers that run jobs."""
        self._initial = 0
        self._interruptions = 0
        # The policy can change nothing: a million decisions about a fixed number of machines take long.
        self._is_fixed = (
            decide is _policy
            and 0 < settings.workers.least == settings.workers.most
            and not settings.schedules
            and not machine.interruptions_per_h
        )
        self._lost_s = 0.0
        self._memory: ScalingMemory | None = None
        self._decided_s = -inf
        self._decision_s = inf
        """The time of the next decision."""
        self._decision = 0
        self._rates = JobRates(())
        self._attempts = 0
        self._attempts_s = 0.0

    def run(self) -> None:
        """Simulate until the span of the load and all jobs have ended."""
        self._initial = limits_at(self._settings, self._load.began_at_ms)[0].least
        for _ in range(self._initial):
            self._request_worker()
            self._make_ready(self._workers[-1])
        self._plan_decision(0.0)
        arrived, jobs, due_s, events = 0, len(self._due_s), self._due_s, self._events
        while True:
            next_s = due_s[arrived] if arrived < jobs else inf
            if events and events[0][0] < next_s:
                at_s, _, kind, worker, version = heapq.heappop(events)
                if at_s > self._load.span_s and not self._unfinished:
                    break
                if at_s > self._load.span_s + _OVERRUN_S:
                    raise ConfigError(
                        f"{self._unfinished:,} jobs have not ended 30 days after the last day: "
                        "permit more workers, or fewer interruptions"
                    )
                self._now_s = at_s
                self._handle(kind, worker, version)
            elif arrived < jobs:
                self._now_s = next_s
                self._queue.append(arrived)
                arrived += 1
                self._assign()
                self._plan_for(arrived - 1)
            else:
                break

    def outcome(self) -> Outcome:
        """Return the outcome after `run`."""
        ended_s = np.array(self._ended_s)
        end_s = max(self._load.span_s, float(ended_s.max()))
        gone_s = np.array([worker.gone_s for worker in self._workers])
        return Outcome(
            self._load,
            self._machine,
            np.array(self._began_s),
            np.array(self._attempt_s),
            ended_s,
            np.array([worker.requested_s for worker in self._workers]),
            np.array([worker.ready_s for worker in self._workers]),
            np.minimum(gone_s, end_s),
            cold_starts=len(self._workers) - self._initial,
            interruptions=self._interruptions,
            lost_s=self._lost_s,
            end_s=end_s,
            kept=limits_at(self._settings, self._load.began_at_ms + round(end_s * 1000))[0].least,
        )

    def _push(self, at_s: float, kind: int, worker: int = 0, version: int = 0) -> None:
        self._order += 1
        heapq.heappush(self._events, (at_s, self._order, kind, worker, version))

    def _handle(self, kind: int, number: int, version: int) -> None:
        if kind == _DECIDE:
            if version == self._decision:
                self._decide_now()
            return
        worker = self._workers[number]
        if kind == _DONE:
            if version == worker.version:
                self._finish_job(worker)
        elif worker.gone_s == inf:
            if kind == _READY:
                self._starting -= 1
                self._make_ready(worker)
            else:
                self._interrupt(worker)

    # Jobs

    def _assign(self) -> None:
        """Let free workers claim due jobs."""
        queue, free, workers = self._queue, self._free, self._workers
        while queue and free:
            running, number = heapq.heappop(free)
            worker = workers[number]
            if worker.claiming and len(worker.due) == running:
                self._begin(worker, queue.popleft())

    def _begin(self, worker: _Worker, job: int) -> None:
        now_s = self._now_s
        if self._began_s[job] != self._began_s[job]:
            self._began_s[job] = now_s
        self._attempt_s[job] = now_s
        self._advance(worker)
        heapq.heappush(worker.due, (worker.work + self._run_s[job], job))
        self._running += 1
        self._busy += len(worker.due) == 1
        self._changed(worker)

    def _finish_job(self, worker: _Worker) -> None:
        self._advance(worker)
        _, job = heapq.heappop(worker.due)
        self._ended_s[job] = self._now_s
        self._unfinished -= 1
        self._running -= 1
        self._attempts += 1
        self._attempts_s += self._now_s - self._attempt_s[job]
        if worker.claiming:
            self._busy -= not worker.due
        elif not worker.due:
            self._end(worker)
            return
        self._changed(worker)
        self._assign()

    def _advance(self, worker: _Worker) -> None:
        """Add the work since the latest change."""
        if worker.due:
            worker.work += (self._now_s - worker.worked_at_s) * self._speeds[len(worker.due)]
        worker.worked_at_s = self._now_s

    def _changed(self, worker: _Worker) -> None:
        """Plan the next end of a job of the worker, and offer its free slots."""
        worker.version += 1
        running = len(worker.due)
        if running:
            left_s = max(0.0, worker.due[0][0] - worker.work) / self._speeds[running]
            self._push(self._now_s + left_s, _DONE, worker.number, worker.version)
        if worker.claiming and running < self._machine.concurrency:
            heapq.heappush(self._free, (running, worker.number))

    # Workers

    def _request_worker(self) -> None:
        worker = _Worker(len(self._workers), self._now_s)
        self._workers.append(worker)
        if self._machine.interruptions_per_h:
            after_s = self._random.expovariate(self._machine.interruptions_per_h / _HOUR_S)
            self._push(self._now_s + after_s, _INTERRUPTED, worker.number)

    def _make_ready(self, worker: _Worker) -> None:
        worker.ready_s = worker.worked_at_s = self._now_s
        self._claim_again(worker)

    def _claim_again(self, worker: _Worker) -> None:
        worker.claiming = True
        self._claiming[worker.number] = worker
        self._busy += bool(worker.due)
        self._advance(worker)
        self._changed(worker)
        self._assign()

    def _drain(self, worker: _Worker) -> None:
        worker.claiming = False
        del self._claiming[worker.number]
        self._busy -= bool(worker.due)
        if worker.due:
            self._draining[worker.number] = worker
        else:
            self._end(worker)

    def _end(self, worker: _Worker) -> None:
        worker.gone_s = self._now_s
        worker.version += 1
        self._draining.pop(worker.number, None)

    def _interrupt(self, worker: _Worker) -> None:
        """End a machine at once. Its jobs return to the front of the queue, and begin anew."""
        self._interruptions += 1
        if worker.ready_s == inf:
            self._starting -= 1
        if worker.claiming:
            worker.claiming = False
            del self._claiming[worker.number]
            self._busy -= bool(worker.due)
        jobs = sorted(job for _, job in worker.due)
        self._lost_s += sum(self._now_s - self._attempt_s[job] for job in jobs)
        self._running -= len(jobs)
        worker.due.clear()
        self._end(worker)
        self._queue.extendleft(reversed(jobs))
        self._assign()
        self._plan_decision(max(self._now_s, self._decided_s + GAP_S))

    # Decisions

    def _plan_decision(self, at_s: float) -> None:
        if at_s < self._decision_s and not self._is_fixed:
            self._decision_s = at_s
            self._decision += 1
            self._push(at_s, _DECIDE, version=self._decision)

    def _plan_for(self, job: int) -> None:
        """Plan the decision about a due job. The ledger announces submissions, not the ends of delays."""
        now_s, decided_s = self._now_s, self._decided_s
        next_s = decided_s + GAP_S
        if self._due_s[job] > self._arrived_s[job] and decided_s > -inf:
            next_s = decided_s + ceil((now_s - decided_s) / self._interval_s) * self._interval_s
        self._plan_decision(max(now_s, next_s))

    def _decide_now(self) -> None:
        observed = self._observe()
        memory = self._memory or ScalingMemory.resume(observed)
        decision = self._decide(self._settings, observed, memory)
        self._memory = decision.memory
        self._decided_s = self._now_s
        self._decision_s = inf
        self._act(decision.wanted, observed.current)
        next_s = self._now_s + self._interval_s
        if self._unfinished or next_s <= self._load.span_s:
            idle = not (self._queue or self._running or self._starting or self._claiming)
            # Without schedules, nothing changes before the next job.
            if not idle or decision.wanted or self._settings.schedules:
                self._plan_decision(next_s)

    def _observe(self) -> Observation:
        now_s = self._now_s
        at_ms = self._load.began_at_ms + round(now_s * 1000)
        if self._rates.is_due(at_ms):
            arrived = len(self._due_s) - self._unfinished + self._running + len(self._queue)
            run_ms = round(self._attempts_s * 1000)
            self._rates.add_totals(at_ms, arrived=arrived, attempts=self._attempts, run_ms=run_ms)
        return Observation(
            at_ms,
            due=len(self._queue),
            running=self._running,
            slots=self._machine.concurrency,
            workers=len(self._claiming),
            starting=self._starting,
            draining=len(self._draining),
            busy=self._busy,
            oldest_s=now_s - self._due_s[self._queue[0]] if self._queue else 0.0,
            run_s=self._rates.run_s,
            arrivals_per_s=self._rates.arrivals_per_s,
            drains=self._drains,
        )

    def _act(self, wanted: int, current: int) -> None:
        """Bring the pool to the wanted number: starting workers stay, and others drain."""
        if wanted > current:
            shortage = wanted - current
            undrained = list(self._draining.values())[:shortage] if self._drains else []
            for worker in undrained:
                del self._draining[worker.number]
                self._claim_again(worker)
            for _ in range(shortage - len(undrained)):
                self._request_worker()
                self._starting += 1
                self._push(self._now_s + self._machine.start_s, _READY, self._workers[-1].number)
        elif surplus := max(0, len(self._claiming) - wanted):
            by_jobs = sorted(self._claiming.values(), key=lambda each: (len(each.due), -each.number))
            for worker in by_jobs[:surplus]:
                self._drain(worker)
