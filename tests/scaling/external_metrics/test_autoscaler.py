"""A HorizontalPodAutoscaler that follows the decisions of a controller by the external metric."""

import re

import httpx
import pytest

from headrace.scaling.actuators.publish import PublishOnly
from headrace.scaling.controller import ScalingController
from headrace.scaling.settings import PoolSettings, WorkerRange
from headrace.server.jobs.shared_reading import SharedReading
from scaling.external_metrics.adapter import METRIC, WAIT_S, served_metrics
from scaling.pool_bench import PoolBench
from scaling.simulation.autoscalers import SYNC_S, HorizontalPodAutoscaler

WINDOW_ROUNDS = round(300 / SYNC_S)
"""The rounds of the window in which both remove no workers."""


class FollowedPool:
    """A pool whose workers an HPA starts and ends, by the number that the controller publishes."""

    def __init__(self) -> None:
        self.bench = PoolBench(chooses=False)
        settings = PoolSettings(workers=WorkerRange(1, 8), slots=1, pool="p")
        self.controller = ScalingController(
            self.bench.new_ledger(), PublishOnly(), settings, clock=self.bench.clock
        )
        self.read = self.bench.new_ledger()
        """The ledger of the API."""
        self.hpa = HorizontalPodAutoscaler(1, 8, 1.0)
        self.http = httpx.Client(timeout=WAIT_S, trust_env=False, verify=False)
        self.decides = True
        self.set_replicas(1)

    @property
    def replicas(self) -> int:
        return len(self.bench.workers.registered)

    def set_replicas(self, replicas: int) -> None:
        self.bench.workers.scale(replicas)
        self.bench.workers.register()

    def sync(self, rounds: int = 1) -> list[int]:
        """Let the controller and the HPA decide, `rounds` times. Return the replicas after each round."""
        seen = []
        for _ in range(rounds):
            self.bench.advance(SYNC_S)
            if self.decides:
                assert self.controller.decide_once()
            now_s = self.bench.clock.now()
            self.set_replicas(self.hpa.sync(now_s, self.replicas, self.metric()))
            seen.append(self.replicas)
        return seen

    def metric(self) -> float | None:
        """Return the value as the HPA reads it, or None for an error or no items."""
        response = self.http.get(METRIC, params={"labelSelector": "pool=p"})
        if response.status_code != 200:
            return None
        items = response.json()["items"]
        return sum(quantity(each["value"]) for each in items) if items else None

    def complete_all(self) -> None:
        """Complete all jobs."""
        self.bench.complete(*self.bench.claim("w-01", 8))


def quantity(text: str) -> float:
    """Return the number of a Kubernetes `Quantity`."""
    number, milli = re.fullmatch(r"([0-9.]+)(m?)", text).groups()
    return float(number) / (1000 if milli else 1)


@pytest.fixture
def pool():
    pool = FollowedPool()
    reading = SharedReading(pool.read.pools, shared_s=1.0, clock=pool.bench.clock)
    with served_metrics(reading.wait) as address, pool.http:
        pool.http.base_url = address
        yield pool


def test_autoscaler_follows_the_decisions_up_and_down(pool):
    assert pool.sync(2) == [1, 1]
    pool.bench.submit(7)
    assert pool.sync(3) == [5, 7, 7]  # four at a time
    assert pool.bench.wanted()[-1] == 7
    pool.complete_all()
    down = pool.sync(2 * WINDOW_ROUNDS + 2)
    assert pool.bench.wanted()[-1] == 1
    assert down[: WINDOW_ROUNDS - 1] == [7] * (WINDOW_ROUNDS - 1)
    assert down[-1] == 1


def test_outage_of_the_ledger_changes_nothing(pool):
    pool.bench.submit(4)
    pool.sync(2)
    assert pool.replicas == 4
    pool.read.unavailable = True
    pool.complete_all()
    assert set(pool.sync(2 * WINDOW_ROUNDS + 2)) == {4}
    assert pool.metric() is None
    pool.read.unavailable = False
    assert pool.sync(WINDOW_ROUNDS + 2)[-1] == 1


def test_end_of_the_controller_changes_nothing(pool):
    pool.bench.submit(4)
    pool.sync(2)
    assert pool.replicas == 4
    pool.decides = False
    pool.complete_all()
    assert set(pool.sync(2 * WINDOW_ROUNDS + 2)) == {4}
    assert pool.metric() is None
    pool.decides = True
    assert pool.sync(2 * WINDOW_ROUNDS + 2)[-1] == 1
