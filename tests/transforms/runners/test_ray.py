"""Transforms on a real Ray cluster of three nodes, made on this machine: machines and workers die, and nothing is seen of it."""

import gzip
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster

from headrace.app.transforming import OpenedTransform, execute, open_transform
from headrace.app.workers import RayWorkers, Workers
from headrace.transforms.report import TransformReport
from headrace.transforms.runners.dispatch import Dispatcher
from headrace.transforms.runners.ray import RayRunner
from integration.transforming import leftovers, outputs
from transforms.support import cut, settings_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

MODELS = Path(__file__).parent / "spread_model.py"
SLOW, QUICK, BROKEN = (f"{MODELS}:{name}" for name in ("Slow", "Quick", "Broken"))
STORE_BYTES = 80 << 20
SOON_DEAD = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 200,
    "health_check_timeout_ms": 2000,
    "health_check_failure_threshold": 3,
}
"""So that a node that is gone is known to be within seconds."""


class Nodes:
    """A cluster of a head, which does no work of headrace's, and two nodes in two regions."""

    def __init__(self) -> None:
        head = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": STORE_BYTES}
        self.cluster = Cluster(initialize_head=True, head_node_args={**head, "_system_config": SOON_DEAD})
        self.nodes = {region: self.add(region) for region in ("eu", "us")}
        self.orphans: list[int] = []

    def add(self, region: str) -> Any:
        labels = {"ray.io/region": region}
        return self.cluster.add_node(num_cpus=1, labels=labels, object_store_memory=STORE_BYTES)

    def kill(self, region: str) -> None:
        """Its raylet, as a power cut for all that the cluster knows; its workers live, and write on."""
        node = self.nodes.pop(region)
        os.kill(node.all_processes["raylet"][0].process.pid, signal.SIGKILL)

    def mend(self) -> None:
        """Have two nodes again, whatever a test did."""
        for region in {"eu", "us"} - self.nodes.keys():
            self.nodes[region] = self.add(region)


@pytest.fixture(scope="module")
def made() -> Iterator[Nodes]:
    nodes = Nodes()
    ray.init(address=nodes.cluster.address, log_to_driver=False, configure_logging=False)
    try:
        yield nodes
    finally:
        ray.shutdown()
        nodes.cluster.shutdown()


@pytest.fixture
def nodes(made: Nodes) -> Nodes:
    made.mend()
    return made


@pytest.fixture(autouse=True)
def small_tasks(monkeypatch) -> None:
    cut(monkeypatch)


def lines(count: int, *, bad_every: int = 97, start: int = 0) -> bytes:
    """Numbers; some records are refused by the model, some cannot be read."""
    made: list[str] = []
    for n in range(start, start + count):
        first = f"-{n}" if n % bad_every == 5 else f"{n}"
        made.append(f"{first},{'oops' if n % bad_every == 50 else n % 10}")
    return "\n".join(made).encode() + b"\n"


def make_source(folder: Path) -> Path:
    (folder / "day").mkdir(parents=True)
    (folder / "large.csv").write_bytes(lines(4_000))
    (folder / "packed.csv.gz").write_bytes(gzip.compress(lines(900)))
    (folder / "broken.csv.gz").write_bytes(gzip.compress(lines(400))[:-30])
    for number in range(12):
        (folder / "day" / f"{number:02d}.csv").write_bytes(lines(10 * number, start=number))
    return folder


SETTINGS = settings_of(tasks={"task_bytes": 2_000, "checkpoint_s": 0.05})
TWO = RayWorkers(2, 2, label_selector={"ray.io/region": "in(eu,us)"})


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    return make_source(tmp_path_factory.mktemp("spread") / "in")


@pytest.fixture(scope="module")
def expected(source) -> dict[str, bytes]:
    """What the local runner makes of it."""
    out = source.parent / "local"
    with pytest.MonkeyPatch.context() as patch:
        cut(patch)
        report = execute(opened(source, out, workers=Workers()))
    assert (report.status, report.objects_broken, report.rows_failed > 50) == ("complete", 1, True)
    assert report.tasks > 20
    return outputs(out)


def opened(source: Path, out: Path, *, model: str = SLOW, workers: Any = TWO, **more) -> OpenedTransform:
    return open_transform(
        str(source), str(out), model=model, workers=workers, **{"settings": SETTINGS, **more}
    )


def runner_of(one: OpenedTransform) -> RayRunner:
    assert isinstance(one.runner, RayRunner)
    return one.runner


def check_whole(report: TransformReport, out: Path, expected: dict[str, bytes]) -> None:
    assert report.status == "complete"
    assert report.records_in == report.rows_out + report.rows_failed
    assert outputs(out) == expected
    assert leftovers(out) == []


@pytest.fixture
def when_told(monkeypatch) -> Callable[[int, Callable[[], None]], list[int]]:
    """Have something done once, in the midst of a run: when so many tasks are done."""

    def arrange(tasks: int, act: Callable[[], None]) -> list[int]:
        real, done = Dispatcher.told, list[int]()

        def told(self: Dispatcher) -> None:
            real(self)
            finished = len(self._work.ledger.tasks()) if self._work and not done else 0
            if finished >= tasks:
                done.append(finished)
                act()

        monkeypatch.setattr(Dispatcher, "told", told)
        return done

    return arrange


def test_outputs_are_the_local_runners(nodes, source, expected, tmp_path):
    report = execute(opened(source, tmp_path / "out"))
    check_whole(report, tmp_path / "out", expected)
    assert report.cpu_s > 0
    assert report.model_calls > 100


def test_a_node_that_is_killed_costs_nothing(nodes, source, expected, tmp_path, when_told):
    """Its workers are orphans, and write on; the run ends without them, and so does the next."""
    run = opened(source, tmp_path / "out")
    killed = when_told(5, lambda: nodes.kill("us"))
    with run as transform:
        report = transform.execute()
        assert killed
        assert len(report.bytes_across_regions) == 0
    check_whole(report, tmp_path / "out", expected)
