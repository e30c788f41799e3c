"""A pool with a ledger in memory, workers that are only entries of its registry, and two clocks."""

import threading
from collections.abc import Awaitable, Callable, Sequence

from typing_extensions import override

from headrace.core.errors import ActuatorError
from headrace.jobs.job import Completed, Job, NewJob, ResultRef, Settlement
from headrace.jobs.ledger import ClaimRequest, QueueCounts
from headrace.jobs.pools import Pool, ScalingDecision
from headrace.jobs.worker_registry import WorkerInfo, WorkerRecord, WorkerReport
from headrace.scaling.actuator import Actuator, Members
from headrace.scaling.controller import ScalingController
from headrace.scaling.settings import PoolSettings, WorkerRange
from headrace.server.jobs.shared_reading import SharedReading
from headrace.testing import ManualClock, ManualWallClock, MemoryJobLedger

LEASE_MS = 60_000
_WAIT_S = 20.0


def unshared(read: Callable[[], Sequence[Pool]]) -> Callable[[], Awaitable[Sequence[Pool]]]:
    """Return a reading of pools for event loops. Only calls at the same time share one."""
    return SharedReading(read, shared_s=0.0, clock=ManualClock()).wait


class RegistryWorkers(Actuator):
    """An actuator whose workers only register and send heartbeats, when the test says so.

    `error` is raised by `scale`, `members_error` by `members`.
    """

    def __init__(
        self,
        ledger: MemoryJobLedger,
        *,
        chooses: bool = True,
        scaled_by_others: bool = False,
        queues=("default",),
        slots: int = 1,
    ) -> None:
        self.error = ""
        self.members_error: Exception | None = None
        self.scaled: list[tuple[int, tuple[str, ...]]] = []
        self.lifecycle: list[str] = []
        self._ledger = ledger
        self.ends_chosen = chooses
        self.scaled_by_others = scaled_by_others
        self._queues = tuple(queues)
        self._slots = slots
        self._changed = threading.Condition()
        self._started = 0
        self.starting: list[str] = []
        self.registered: list[str] = []

    @override
    def start(self) -> None:
        self.lifecycle.append("start")

    @override
    def stop(self, *, drain: bool = True) -> None:
        self.lifecycle.append("stop" if drain else "stop at once")

    @override
    def members(self, records: Sequence[WorkerRecord]) -> Members:
        if self.members_error is not None:
            raise self.members_error
        with self._changed:
            own = tuple(record for record in records if record.info.name in self.registered)
            return Members(own, len(self.starting))

    @override
    def scale(self, workers: int, ended: Sequence[WorkerRecord] = ()) -> None:
        with self._changed:
            self.scaled.append((workers, tuple(record.info.name for record in ended)))
            self._changed.notify_all()
            for record in ended:
                self._end(record.info.name)
            if self.error:
                raise ActuatorError(self.error)
            missing = workers - len(self.starting) - len(self.registered)
            for _ in range(missing):
                self._started += 1
                self.starting.append(f"w-{self._started:02}")
            if not self.ends_chosen:
                for name in self.registered[: max(0, -missing)]:
                    self._end(name)

    def wait_for_scale(self, workers: int) -> None:
        """Block until the controller has asked for this number of members."""
        with self._changed:
            asked = self._changed.wait_for(lambda: workers in [each for each, _ in self.scaled], _WAIT_S)
        assert asked, f"the controller asked for {self.scaled}"

    def register(self, count: int = 1000) -> None:
        """Let workers that are starting register."""
        with self._changed:
            for name in self.starting[:count]:
                self._ledger.register_worker(self._info(name))
                self.registered.append(name)
            del self.starting[:count]

    def heartbeat(self) -> None:
        """Let all workers send a heartbeat, in which they confirm that they drain."""
        for name in self.registered:
            draining = self._ledger.worker_orders(name).draining
            self._ledger.heartbeat(name, [], LEASE_MS, WorkerReport(claims=not draining))

    def _info(self, name: str) -> WorkerInfo:
        return WorkerInfo(name, name, queues=self._queues, slots=self._slots, lease_ms=LEASE_MS)

    def _end(self, name: str) -> None:
        self.registered.remove(name)
        self._ledger.end_worker(name)


class PoolBench:
    """A pool whose time a test moves. Each controller has a ledger of its own over the same jobs."""

    def __init__(self, **of_workers) -> None:
        self.wall = ManualWallClock()
        self.clock = ManualClock()
        self.ledger = self.new_ledger()
        self.workers = RegistryWorkers(self.ledger, **of_workers)

    def new_ledger(self) -> MemoryJobLedger:
        ledger = MemoryJobLedger(self.wall, beside=getattr(self, "ledger", None))
        ledger.start()
        return ledger

    def controller(self, workers="0..8", *, ledger=None, **settings) -> ScalingController:
        pool = PoolSettings(**{"workers": WorkerRange.parse(workers), "slots": 1, "pool": "p", **settings})
        return ScalingController(ledger or self.new_ledger(), self.workers, pool, clock=self.clock)

    def advance(self, seconds: float) -> None:
        """Advance both clocks, with heartbeats of the workers."""
        self.wall.advance(round(seconds * 1000))
        self.clock.advance(seconds)
        self.workers.heartbeat()

    def submit(self, count: int = 1, queue="default") -> None:
        self.ledger.submit([NewJob(model="m", queue=queue)] * count)

    def claim(self, worker: str, count: int = 1) -> tuple[Job, ...]:
        claim = ClaimRequest(worker, ("default",), count, LEASE_MS * 1000)
        return self.ledger.settle_and_claim([], claim).claimed

    def complete(self, *jobs: Job) -> None:
        done = Completed(ResultRef("memory://out", 3, "text/csv"))
        self.ledger.settle_and_claim([Settlement(job.id, job.lease, done) for job in jobs])

    def counts(self) -> QueueCounts:
        return self.ledger.counts("default")

    def draining(self) -> dict[str, str]:
        """Return the draining workers, with the names of those who ordered it."""
        return {
            each.info.name: each.draining_by
            for each in self.ledger.workers()
            if each.draining and each.stopped_at_ms is None
        }

    def decisions(self) -> list[ScalingDecision]:
        """Return all decisions, oldest first."""
        return list(reversed(self.ledger.decisions(limit=500).decisions))

    def wanted(self) -> list[int]:
        return [decision.wanted for decision in self.decisions()]
