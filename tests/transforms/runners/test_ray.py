"""Transforms on a real Ray cluster of three nodes, made on this machine: machines and workers die, and nothing is seen of it."""

import gzip
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster

import headrace
from headrace.app.transforming import OpenedTransform, execute, open_transform
from headrace.app.workers import DataRegions, RayWorkers, Workers
from headrace.core.errors import ConfigError, HeadraceError, InstanceLostError, ModelLoadError
from headrace.storage.local import LocalStore
from headrace.storage.regions import RegionRules
from headrace.storage.resolve import Stores
from headrace.testing import ManualClock
from headrace.transforms.ledger import TransformLedger
from headrace.transforms.report import TransformReport
from headrace.transforms.runners.dispatch import Dispatcher, Hand, busy
from headrace.transforms.runners.messages import Assignment
from headrace.transforms.runners.ray import RayRunner
from integration.transforming import leftovers, outputs
from transforms.runners.spread_model import POISON
from transforms.support import cut, settings_of
from transforms.support import outputs as outputs_in

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

MODELS = Path(__file__).parent / "spread_model.py"
SLOW, QUICK, BROKEN = (f"{MODELS}:{name}" for name in ("Slow", "Quick", "Broken"))
DIED = r"its worker process has died\..* End of file\.\)"
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
    try:
        nodes = Nodes()
    except Exception:
        # Ray gives a node half a minute to start, however busy the machine is.
        ray.shutdown()
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


SETTINGS = settings_of(tasks={"task_bytes": 1_200, "checkpoint_s": 0.05})
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


def copied_model(folder: Path) -> str:
    """The quick model in a file of its own."""
    (folder / MODELS.name).write_bytes(MODELS.read_bytes())
    return f"{folder / MODELS.name}:Quick"


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


@pytest.mark.s3
def test_over_object_storage_with_credentials_that_only_the_run_has(nodes, source, expected, s3_server):
    uri, store = f"s3://{s3_server.bucket()}", Stores(s3_server.environ)
    for path in (p for p in source.rglob("*") if p.is_file()):
        store.for_uri(uri).put(f"{uri}/in/{path.relative_to(source)}", path.read_bytes())
    run = open_transform(
        f"{uri}/in/", f"{uri}/out/", model=SLOW, workers=TWO, settings=SETTINGS, stores=store
    )
    assert execute(run).status == "complete"
    found = outputs_in(store, f"{uri}/out/")
    assert found.keys() == expected.keys()
    # Failed records name their objects.
    assert [name for name in found if name.endswith(".out") and found[name] != expected[name]] == []


def test_a_node_that_is_killed_costs_nothing(nodes, source, expected, tmp_path, when_told):
    """Its workers are orphans, and write on; the run ends without them, and so does the next."""
    run = opened(source, tmp_path / "out")
    killed = when_told(5, lambda: nodes.kill("us"))
    with run as transform:
        report = transform.execute()
        assert killed
        assert len(report.bytes_across_regions) == 0
    check_whole(report, tmp_path / "out", expected)


def test_a_worker_that_is_killed_is_replaced(nodes, source, expected, tmp_path, when_told):
    run = opened(source, tmp_path / "out")

    def kill() -> None:
        member = next(m for m in runner_of(run)._members if m.hand.assigned)
        os.kill(ray.get(member.actor.__ray_call__.remote(lambda _: os.getpid())), signal.SIGKILL)

    killed = when_told(5, kill)
    check_whole(execute(run), tmp_path / "out", expected)
    assert killed


def test_a_call_that_does_not_arrive_is_not_waited_for(nodes, source, expected, tmp_path, when_told):
    """Its worker is given up, and what it was to do is done by another."""
    run = opened(source, tmp_path / "out")

    def lose() -> None:
        member = next(m for m in runner_of(run)._members if m.hand.assigned)
        member.calls.append(ray.remote(num_cpus=0)(_lost).remote())

    lost = when_told(5, lose)
    check_whole(execute(run), tmp_path / "out", expected)
    assert lost


def _lost() -> None:
    raise ConnectionError("on purpose")


def test_a_record_that_kills_is_left_out_and_named(nodes, tmp_path):
    source, out = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    model = copied_model(tmp_path)
    for number in range(6):
        (source / f"{number}.csv").write_bytes(lines(120, start=200 * number))
    good = (source / "3.csv").read_bytes().splitlines(keepends=True)
    (source / "3.csv").write_bytes(b"".join([*good[:113], b"%d,1\n" % POISON, *good[113:]]))
    tasks = settings_of(tasks={"task_objects_max": 1})
    one = RayWorkers(1, 1)
    with pytest.raises(InstanceLostError, match=rf"{DIED} at record [4-8]0 of .*/3\.csv, or soon.*--resume"):
        execute(opened(source, out, model=model, workers=one, settings=tasks))
    assert sorted(n for n in outputs(out) if n.endswith(".out")) == [f"{n}.csv.out" for n in (0, 1, 2, 4, 5)]
    # Where the record does not kill, such as on another machine, the rest is done.
    (tmp_path / "harmless").touch()
    report = execute(opened(source, out, model=model, workers=one, settings=tasks, if_exists="resume"))
    assert (report.status, report.resumed, report.records_in) == ("complete", True, 6 * 120 + 1)


def test_a_model_that_does_not_load_says_why(nodes, source, tmp_path):
    with pytest.raises(ModelLoadError, match="the weights of broken are gone"):
        execute(opened(source, tmp_path / "out", model=BROKEN))
    assert not (tmp_path / "out").exists()


def test_drained_it_keeps_what_is_done_and_resumes(nodes, source, expected, tmp_path, when_told):
    run = opened(source, tmp_path / "out")
    drained = when_told(3, run.transform.drain)
    report = execute(run)
    assert drained
    assert (report.status, report.objects_done < report.objects) == ("drained", True)
    resumed = execute(opened(source, tmp_path / "out", if_exists="resume"))
    assert resumed.bytes_read < report.bytes_read + resumed.bytes_read
    check_whole(resumed, tmp_path / "out", expected)


def test_the_pool_grows_while_there_is_work_and_shrinks(nodes, source, expected, tmp_path, monkeypatch):
    run = opened(source, tmp_path / "out", workers=RayWorkers(1, 2, cpus=0.5))
    sizes: list[int] = []
    real = Dispatcher.told

    def told(self: Dispatcher) -> None:
        sizes.append(sum(hand.ready for hand in self.hands))
        real(self)

    monkeypatch.setattr(Dispatcher, "told", told)
    with run as transform:
        report = transform.execute()
        left = len(runner_of(run)._members)
    check_whole(report, tmp_path / "out", expected)
    assert (sizes[0], max(sizes)) == (1, 2)
    assert left < 2 or all(m.leaving for m in runner_of(run)._members)


def test_what_two_do_at_once_is_done_once(nodes, source, expected, tmp_path, monkeypatch):
    """One of the two always does what the other does already, as an engine that speculates has it."""
    real, doubles = Dispatcher.assign, list[tuple[int, ...]]()

    def assign(self: Dispatcher, hand: Hand, *, of: int) -> Assignment | None:
        first = next((h for h in self.hands if h.assigned and h.assigned not in doubles), None)
        if first is None or not hand.ready or hand.assigned:
            return real(self, hand, of=of)
        assert self._work is not None
        hand.assigned = first.assigned
        hand.done.clear()
        doubles.append(hand.assigned)
        return Assignment(hand.assigned, run=self._work.run)

    monkeypatch.setattr(Dispatcher, "assign", assign)
    check_whole(execute(opened(source, tmp_path / "out")), tmp_path / "out", expected)
    assert len(doubles) > 2


def test_workers_do_what_lies_in_their_region(nodes, tmp_path):
    source, out = tmp_path / "in", tmp_path / "out"
    for region, count in (("eu", 3), ("us", 4)):
        (source / region).mkdir(parents=True)
        for number in range(count):
            (source / region / f"{number}.csv").write_bytes(lines(50, start=1000 * number))
    local = execute(opened(source, tmp_path / "local", model=QUICK, workers=Workers()))
    rules = RegionRules.parse([f"{source}/{region}/={region}" for region in ("eu", "us")])

    def there(region: str, folder: Path, other: str, **more) -> TransformReport:
        here = RayWorkers(1, 1, label_selector={"ray.io/region": region})
        regions = DataRegions(rules, other_regions=other)
        settings = settings_of(tasks={"task_objects_max": 1})
        run = opened(source, folder, model=QUICK, workers=here, settings=settings, regions=regions, **more)
        return execute(run)

    partial = there("eu", out, "never")
    assert (partial.status, partial.tasks_left, partial.objects_done) == ("partial", {"us": 4}, 3)
    whole = there("us", out, "never", if_exists="resume")
    check_whole(whole, out, outputs(tmp_path / "local"))
    assert (whole.bytes_across_regions, whole.tasks_left, whole.records_in) == ([], {}, local.records_in)
    ledger = TransformLedger(LocalStore(), f"{out}/")
    assert [r.region for _, r in sorted(ledger.tasks().items())] == ["eu"] * 3 + ["us"] * 4
    crossed = there("eu", tmp_path / "crossed", "idle")
    nbytes = sum(p.stat().st_size for p in (source / "us").iterdir())
    assert crossed.bytes_across_regions == [{"from": "us", "to": "eu", "bytes": nbytes}]
    assert outputs(tmp_path / "crossed") == outputs(tmp_path / "local")


def test_workers_that_get_no_place_are_not_waited_for_for_ever(nodes, tmp_path, monkeypatch):
    """What is left lies elsewhere; another worker might be there, but the cluster has no room for one."""
    source = tmp_path / "in"
    for region in ("eu", "us"):
        (source / region).mkdir(parents=True)
        (source / region / "0.csv").write_bytes(lines(50))
    rules = RegionRules.parse([f"{source}/{region}/={region}" for region in ("eu", "us")])
    here = RayWorkers(1, 2, label_selector={"ray.io/region": "eu"})
    run = opened(
        source, tmp_path / "out", model=QUICK, workers=here, regions=DataRegions(rules, other_regions="never")
    )
    clock, real = ManualClock(), Dispatcher.told

    def told(self: Dispatcher) -> None:
        real(self)
        if not busy(self.hands):
            clock.advance(here.place_s + 1)

    monkeypatch.setattr(Dispatcher, "told", told)
    monkeypatch.setattr(runner_of(run), "_clock", clock)
    report = execute(run)
    assert (report.status, list(report.tasks_left), report.objects_done) == ("partial", ["us"], 1)


def test_no_place_in_the_cluster_is_said(nodes, source, tmp_path):
    asks = RayWorkers(1, 1, gpus=99, place_s=0.1)
    with pytest.raises(ConfigError, match=r"within 0\.1 s: each asks for 1 CPU of 3, 99 GPU of 0 that"):
        execute(opened(source, tmp_path / "out", workers=asks))


def test_the_model_is_sent_to_those_that_have_not_got_it(nodes, source, expected, tmp_path):
    """It is loaded in a folder of the worker's own, and is the same by its fingerprint."""
    run = opened(source, tmp_path / "out", model=copied_model(tmp_path))
    (tmp_path / MODELS.name).unlink()
    with run as transform:
        check_whole(transform.execute(), tmp_path / "out", expected)


def _no_worker(tell: object, region: object) -> Any:
    raise NotImplementedError


def test_it_joins_the_cluster_of_its_pool_and_leaves_what_it_could_not_join(monkeypatch):
    asked: list[str] = []

    def init(*, address: str, **_: Any) -> None:
        asked.append(address)
        raise ConnectionError("nobody there")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: asked.append("left"))
    with pytest.raises(ConfigError, match="cannot be reached or started: nobody there"):
        RayRunner(_no_worker, RayWorkers(address="10.0.0.2:6379"), model="m").start()
    assert asked == ["10.0.0.2:6379", "left"]


def test_stopped_while_it_waits_for_a_place_it_ends(nodes):
    runner = RayRunner(_no_worker, RayWorkers(gpus=99), model="m")
    runner.drain()
    with pytest.raises(ModelLoadError, match="stopped before a worker had loaded it"):
        runner.start()
    assert runner._members == []


def test_one_that_cannot_be_opened_says_so(nodes):
    """Of the test itself, so that it goes there by value: no worker has this file."""

    def opener(tell: object, region: object) -> Any:
        raise NotImplementedError("none today")

    with pytest.raises(HeadraceError, match="NotImplementedError: none today"):
        RayRunner(opener, RayWorkers(), model="m").start()


HERE = """
import sys
from headrace.app.transforming import transform_sync
from headrace.app.workers import RayWorkers
from transforms.support import settings_of
report = transform_sync(*sys.argv[1:3], model=sys.argv[3], workers=RayWorkers(), settings=settings_of())
print(report.status, report.rows_out)
"""


def test_a_cluster_of_its_own_is_begun_and_ended_quietly(tmp_path):
    """Nobody named a cluster; the one that was started last on this machine is not this run's."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_bytes(lines(90))
    environ = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
    paths = os.pathsep.join([str(Path(headrace.__file__).parents[1]), str(Path(__file__).parents[2])])
    done = subprocess.run(
        [sys.executable, "-c", HERE, str(tmp_path / "in"), str(tmp_path / "out"), QUICK],
        env={**environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "complete 88\n", "")
