"""KEDA and its HPA, simulated, follow the decisions of a controller through a real server."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from headrace.jobs.job import Job
from headrace.scaling.actuators.publish import PublishOnly
from headrace.scaling.controller import ScalingController
from headrace.scaling.settings import PoolSettings, WorkerRange
from headrace.server.jobs.shared_reading import SharedReading
from headrace.server.scaling.keda import ExternalScaler
from headrace.testing import MemoryJobLedger
from scaling.keda.keda_client import KedaClient, ScaledObject
from scaling.keda.scaler_server import listening
from scaling.pool_bench import PoolBench
from scaling.simulation.autoscalers import POLL_S, SYNC_S
from server.grpc_support import in_event_loop

POOL = "p"
COOLDOWN_S = 300.0


@dataclass
class Cluster:
    """A pool whose workers are the pods of a ScaledObject. Time passes in steps of the HPA.

    `ledger` is the one that the external scaler reads. `decides` is False while no controller runs.
    """

    bench: PoolBench
    controller: ScalingController
    ledger: MemoryJobLedger
    workload: ScaledObject
    decides: bool = True
    now_s: float = 0.0
    history: list[int] = field(default_factory=list)
    running: dict[str, Job] = field(default_factory=dict)

    async def run(self, seconds: float) -> list[int]:
        """Let time pass, and return the replicas after each step."""
        began = len(self.history)
        for _ in range(round(seconds / SYNC_S)):
            self.now_s += SYNC_S
            self.bench.advance(SYNC_S)
            self.decide()
            if self.now_s % POLL_S == 0:
                await self.workload.poll(self.now_s)
            await self.workload.sync(self.now_s)
            self.apply()
        return self.history[began:]

    def decide(self) -> None:
        if self.decides:
            self.controller.decide_once()

    def apply(self) -> None:
        """Start and end pods, and let each one without a job claim one."""
        self.history.append(self.workload.replicas)
        workers = self.bench.workers
        workers.scale(self.workload.replicas)
        workers.register()
        for name in workers.registered:
            if name not in self.running:
                for job in self.bench.claim(name):
                    self.running[name] = job

    def complete_all(self) -> None:
        self.bench.complete(*self.running.values())
        self.running.clear()


@asynccontextmanager
async def cluster(**settings):
    """Yield a cluster with no pod and no job, and a controller that only publishes its decisions."""
    bench = PoolBench(chooses=False)
    pool = PoolSettings(
        pool=POOL, workers=WorkerRange(0, 8), slots=1, scale_in_window_s=0, interval_s=5, **settings
    )
    controller = ScalingController(bench.new_ledger(), PublishOnly(), pool, clock=bench.clock)
    ledger = bench.new_ledger()
    reading = SharedReading(ledger.pools, shared_s=1.0, clock=bench.clock)
    async with listening(ExternalScaler(reading.wait, poll_s=0.01)) as channel:
        client = KedaClient(channel, {"pool": POOL})
        workload = await ScaledObject.create(client, most=8, cooldown_s=COOLDOWN_S)
        yield Cluster(bench, controller, ledger, workload)


@in_event_loop
async def test_workload_follows_the_decisions_from_zero_to_zero():
    async with cluster() as made:
        assert await made.run(60) == [0, 0, 0, 0]
        made.bench.submit(7)
        # One poll wakes the first pod; the HPA adds the others, four at a time.
        assert await made.run(POLL_S) == [0, 5]
        assert await made.run(30) == [7, 7]
        assert len(made.running) == 7
        # All jobs have left the queue, and all pods stay.
        assert set(await made.run(900)) == {7}
        made.complete_all()
        idle = await made.run(COOLDOWN_S + 2 * POLL_S)
        assert idle[-1] == 0
        assert idle.index(0) * SYNC_S >= COOLDOWN_S - POLL_S
        assert made.workload.errors == 0


@in_event_loop
async def test_replicas_stay_while_the_ledger_is_unavailable():
    async with cluster() as made:
        made.bench.submit(3)
        assert (await made.run(60))[-1] == 3
        made.ledger.unavailable = True
        made.complete_all()
        assert set(await made.run(1200)) == {3}
        assert made.workload.errors == 1200 / SYNC_S + 1200 / POLL_S
        made.ledger.unavailable = False
        assert (await made.run(2 * COOLDOWN_S))[-1] == 0


@in_event_loop
async def test_replicas_stay_while_no_controller_decides():
    async with cluster() as made:
        made.bench.submit(3)
        assert (await made.run(60))[-1] == 3
        made.decides = False
        made.complete_all()
        assert set(await made.run(1200)) == {3}
        assert made.workload.errors > 0
        made.decides = True
        assert (await made.run(2 * COOLDOWN_S))[-1] == 0


@in_event_loop
async def test_unknown_pool_wakes_no_pod():
    async with cluster() as made:
        made.decides = False
        made.bench.submit(3)
        assert set(await made.run(300)) == {0}
        assert made.workload.errors > 0


@in_event_loop
async def test_stream_wakes_a_pod_before_the_next_poll():
    async with cluster() as made:
        made.decide()
        activities = asyncio.Queue()
        held = asyncio.create_task(made.workload.client.hold_stream(activities.put_nowait, asyncio.sleep))
        made.workload.on_activity(made.now_s, await activities.get())
        assert made.workload.replicas == 0
        made.bench.submit(2)
        made.bench.advance(1)
        made.decide()
        made.workload.on_activity(made.now_s, await activities.get())
        assert made.workload.replicas == 1
        held.cancel()
        await asyncio.wait([held])
