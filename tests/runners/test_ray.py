"""Transforms on a real Ray cluster of three local nodes, of which nodes and workers die."""

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
from headrace.app.runners import DataRegions, RayWorkers, Workers
from headrace.app.runs import OpenedRun, execute, open_run
from headrace.core.errors import ConfigError, HeadraceError, InstanceLostError, ModelLoadError
from headrace.reports.report import Report
from headrace.runners.messages import Assignment
from headrace.runners.ray import RayRunner
from headrace.runners.scheduler import TaskScheduler, WorkerHandle, any_busy
from headrace.runs.ledger import Ledger
from headrace.storage.local import LocalStore
from headrace.storage.regions import RegionRules
from headrace.storage.resolve import Stores
from headrace.testing import ManualClock
from integration.transform_process import leftovers, outputs
from runners.worker_models import POISON
from runs.support import allow_small_tasks, make_settings
from runs.support import outputs as outputs_in

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

MODELS = Path(__file__).parent / "worker_models.py"
SLOW, QUICK, BROKEN = (f"{MODELS}:{name}" for name in ("Slow", "Quick", "Broken"))
DIED = r"its worker process has died\..* End of file\.\)"
STORE_BYTES = 80 << 20
FAST_HEALTH_CHECKS = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 200,
    "health_check_timeout_ms": 2000,
    "health_check_failure_threshold": 3,
}
"""The loss of a node is noticed within seconds."""


class Nodes:
    """A cluster of a head without workers and of two nodes in two regions."""

    def __init__(self) -> None:
        head = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": STORE_BYTES}
        self.cluster = Cluster(
            initialize_head=True, head_node_args={**head, "_system_config": FAST_HEALTH_CHECKS}
        )
        self.nodes = {region: self.add(region) for region in ("eu", "us")}

    def add(self, region: str) -> Any:
        labels = {"ray.io/region": region}
        return self.cluster.add_node(num_cpus=1, labels=labels, object_store_memory=STORE_BYTES)

    def kill(self, region: str) -> None:
        """Kill the raylet of a node: the cluster loses it like a machine, but its workers live on."""
        node = self.nodes.pop(region)
        os.kill(node.all_processes["raylet"][0].process.pid, signal.SIGKILL)

    def restore(self) -> None:
        """Replace lost nodes."""
        for region in {"eu", "us"} - self.nodes.keys():
            self.nodes[region] = self.add(region)


@pytest.fixture(scope="module")
def module_nodes() -> Iterator[Nodes]:
    try:
        nodes = Nodes()
    except Exception:
        # Ray gives a node half a minute to start, which is too little on a busy machine.
        ray.shutdown()
        nodes = Nodes()
    ray.init(address=nodes.cluster.address, log_to_driver=False, configure_logging=False)
    try:
        yield nodes
    finally:
        ray.shutdown()
        nodes.cluster.shutdown()


@pytest.fixture
def nodes(module_nodes: Nodes) -> Nodes:
    module_nodes.restore()
    return module_nodes


@pytest.fixture(autouse=True)
def small_tasks(monkeypatch) -> None:
    allow_small_tasks(monkeypatch)


def lines(count: int, *, bad_every: int = 97, start: int = 0) -> bytes:
    """Return records; the model refuses some of them, others cannot be decoded."""
    records: list[str] = []
    for n in range(start, start + count):
        first = f"-{n}" if n % bad_every == 5 else f"{n}"
        records.append(f"{first},{'oops' if n % bad_every == 50 else n % 10}")
    return "\n".join(records).encode() + b"\n"


def make_source(folder: Path) -> Path:
    (folder / "day").mkdir(parents=True)
    (folder / "large.csv").write_bytes(lines(2_500))
    (folder / "packed.csv.gz").write_bytes(gzip.compress(lines(900)))
    (folder / "broken.csv.gz").write_bytes(gzip.compress(lines(400))[:-30])
    for number in range(12):
        (folder / "day" / f"{number:02d}.csv").write_bytes(lines(10 * number, start=number))
    return folder


SETTINGS = make_settings(tasks={"task_bytes": 1_200}, checkpoint_s=0.05)
TWO = RayWorkers(2, 2, label_selector={"ray.io/region": "in(eu,us)"})


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    return make_source(tmp_path_factory.mktemp("spread") / "in")


@pytest.fixture(scope="module")
def expected(source) -> dict[str, bytes]:
    """The outputs of the local runner."""
    out = source.parent / "local"
    with pytest.MonkeyPatch.context() as patch:
        allow_small_tasks(patch)
        report = execute(open_ray_run(source, out, workers=Workers()))
    assert (report.status, report.objects_broken, report.rows_failed > 50) == ("complete", 1, True)
    assert report.tasks > 15
    return outputs(out)


def open_ray_run(source: Path, out: Path, *, model: str = SLOW, workers: Any = TWO, **more) -> OpenedRun:
    return open_run(
        str(source), output=str(out), model=model, workers=workers, **{"settings": SETTINGS, **more}
    )


def copied_model(folder: Path, name: str = "Quick") -> str:
    """Return a model of a file of its own."""
    (folder / MODELS.name).write_bytes(MODELS.read_bytes())
    return f"{folder / MODELS.name}:{name}"


def runner_of(one: OpenedRun) -> RayRunner:
    runner = one.run._scoring._runner
    assert isinstance(runner, RayRunner)
    return runner


def assert_complete(report: Report, out: Path, expected: dict[str, bytes]) -> None:
    assert report.status == "complete"
    assert report.records_in == report.rows_out + report.rows_failed
    assert outputs(out) == expected
    assert leftovers(out) == []


@pytest.fixture
def at_progress(monkeypatch) -> Callable[[int, Callable[[], None]], list[int]]:
    """Call a function once, when a number of tasks are finished and a worker is busy."""

    def arrange(tasks: int, act: Callable[[], None]) -> list[int]:
        real, done = TaskScheduler.update_progress, list[int]()

        def update_progress(self: TaskScheduler) -> None:
            real(self)
            finished = len(self._work.ledger.tasks()) if self._work and not done else 0
            if finished >= tasks and any_busy(self.handles):
                done.append(finished)
                act()

        monkeypatch.setattr(TaskScheduler, "update_progress", update_progress)
        return done

    return arrange


def test_growing_pool_writes_the_outputs_of_the_local_runner(nodes, source, expected, tmp_path, monkeypatch):
    """The workers do not have the model's file, so its copy is sent to them."""
    model = copied_model(tmp_path, "Slow")
    run = open_ray_run(source, tmp_path / "out", model=model, workers=RayWorkers(1, 2, cpus=0.5))
    (tmp_path / MODELS.name).unlink()
    sizes: list[int] = []
    real = TaskScheduler.update_progress

    def update_progress(self: TaskScheduler) -> None:
        sizes.append(sum(handle.ready for handle in self.handles))
        real(self)

    monkeypatch.setattr(TaskScheduler, "update_progress", update_progress)
    real_assign = TaskScheduler.assign

    def assign(self: TaskScheduler, handle: WorkerHandle, *, workers: int) -> Assignment | None:
        """After its first assignment, the first worker waits for the second."""
        waits = self._done and sum(one.ready for one in self.handles) == 1
        return None if waits else real_assign(self, handle, workers=workers)

    monkeypatch.setattr(TaskScheduler, "assign", assign)
    with run as transform:
        report = transform.execute()
        left = len(runner_of(run)._members)
    assert_complete(report, tmp_path / "out", expected)
    assert report.cpu_s > 0
    assert report.model_calls > 100
    assert (sizes[0], max(sizes)) == (1, 2)
    assert left < 2 or all(m.exiting for m in runner_of(run)._members)


@pytest.mark.s3
def test_run_sends_its_credentials_to_workers(nodes, source, expected, s3_server):
    uri, store = f"s3://{s3_server.bucket()}", Stores(s3_server.environ)
    for path in (p for p in source.rglob("*") if p.is_file()):
        store.for_uri(uri).put(f"{uri}/in/{path.relative_to(source)}", path.read_bytes())
    run = open_run(
        f"{uri}/in/", output=f"{uri}/out/", model=SLOW, workers=TWO, settings=SETTINGS, stores=store
    )
    assert execute(run).status == "complete"
    found = outputs_in(store, f"{uri}/out/")
    assert found.keys() == expected.keys()
    # Failed records name their objects.
    assert [name for name in found if name.endswith(".out") and found[name] != expected[name]] == []


def test_killed_node_is_survived(nodes, source, expected, tmp_path, at_progress):
    """The workers of the node live on as orphans and keep writing."""
    run = open_ray_run(source, tmp_path / "out")
    killed = at_progress(5, lambda: nodes.kill("us"))
    with run as transform:
        report = transform.execute()
        assert killed
        assert len(report.bytes_across_regions) == 0
    assert_complete(report, tmp_path / "out", expected)


def test_killed_worker_and_failed_call_are_replaced(nodes, source, expected, tmp_path, at_progress):
    run = open_ray_run(source, tmp_path / "out")

    def busy_member() -> Any:
        return next(m for m in runner_of(run)._members if m.handle.assigned)

    def kill() -> None:
        pid = ray.get(busy_member().actor.__ray_call__.remote(lambda _: os.getpid()))
        os.kill(pid, signal.SIGKILL)

    def lose_call() -> None:
        busy_member().calls.append(ray.remote(num_cpus=0)(fail_call).remote())

    killed, lost = at_progress(4, kill), at_progress(10, lose_call)
    assert_complete(execute(run), tmp_path / "out", expected)
    assert killed
    assert lost


def fail_call() -> None:
    raise ConnectionError("on purpose")


def test_fatal_record_is_excluded_and_named(nodes, tmp_path):
    source, out = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    model = copied_model(tmp_path)
    for number in range(6):
        (source / f"{number}.csv").write_bytes(lines(120, start=200 * number))
    good = (source / "3.csv").read_bytes().splitlines(keepends=True)
    (source / "3.csv").write_bytes(b"".join([*good[:113], b"%d,1\n" % POISON, *good[113:]]))
    tasks = make_settings(tasks={"task_objects_max": 1})
    one = RayWorkers(1, 1)
    with pytest.raises(InstanceLostError, match=rf"{DIED} at record [4-8]0 of .*/3\.csv, or soon.*--resume"):
        execute(open_ray_run(source, out, model=model, workers=one, settings=tasks))
    assert sorted(n for n in outputs(out) if n.endswith(".out")) == [f"{n}.csv.out" for n in (0, 1, 2, 4, 5)]
    # Where the record is harmless, such as on another machine, the rest is scored.
    (tmp_path / "harmless").touch()
    report = execute(open_ray_run(source, out, model=model, workers=one, settings=tasks, resume=True))
    assert (report.status, report.resumed, report.records_in) == ("complete", True, 6 * 120 + 1)


def test_load_error_is_raised(nodes, source, tmp_path):
    with pytest.raises(ModelLoadError, match="the weights of broken are gone"):
        execute(open_ray_run(source, tmp_path / "out", model=BROKEN))
    assert not (tmp_path / "out").exists()


def test_drained_run_resumes(nodes, source, expected, tmp_path, at_progress):
    run = open_ray_run(source, tmp_path / "out")
    drained = at_progress(3, run.run.drain)
    report = execute(run)
    assert drained
    assert (report.status, report.objects_done < report.objects) == ("drained", True)
    resumed = execute(open_ray_run(source, tmp_path / "out", resume=True))
    assert resumed.bytes_read < report.bytes_read + resumed.bytes_read
    assert_complete(resumed, tmp_path / "out", expected)


def test_duplicated_tasks_are_committed_once(nodes, source, expected, tmp_path, monkeypatch):
    """One of two workers always repeats the other's tasks, as with speculative execution."""
    real, doubles = TaskScheduler.assign, list[tuple[int, ...]]()

    def assign(self: TaskScheduler, handle: WorkerHandle, *, workers: int) -> Assignment | None:
        first = next((h for h in self.handles if h.assigned and h.assigned not in doubles), None)
        if first is None or not handle.ready or handle.assigned:
            return real(self, handle, workers=workers)
        assert self._work is not None
        handle.assigned = first.assigned
        handle.done.clear()
        doubles.append(handle.assigned)
        return Assignment(handle.assigned, run_id=self._work.run_id)

    monkeypatch.setattr(TaskScheduler, "assign", assign)
    assert_complete(execute(open_ray_run(source, tmp_path / "out")), tmp_path / "out", expected)
    assert len(doubles) > 2


def test_workers_run_tasks_of_their_region(nodes, tmp_path):
    source, out = tmp_path / "in", tmp_path / "out"
    for region, count in (("eu", 3), ("us", 4)):
        (source / region).mkdir(parents=True)
        for number in range(count):
            (source / region / f"{number}.csv").write_bytes(lines(50, start=1000 * number))
    local = execute(open_ray_run(source, tmp_path / "local", model=QUICK, workers=Workers()))
    rules = RegionRules.parse([f"{source}/{region}/={region}" for region in ("eu", "us")])

    def transform_in_region(region: str, folder: Path, other: str, **more) -> Report:
        here = RayWorkers(1, 1, label_selector={"ray.io/region": region})
        regions = DataRegions(rules, other_regions=other)
        settings = make_settings(tasks={"task_objects_max": 1})
        run = open_ray_run(
            source, folder, model=QUICK, workers=here, settings=settings, regions=regions, **more
        )
        return execute(run)

    partial = transform_in_region("eu", out, "never")
    assert (partial.status, partial.tasks_left, partial.objects_done) == ("partial", {"us": 4}, 3)
    whole = transform_in_region("us", out, "never", resume=True)
    assert_complete(whole, out, outputs(tmp_path / "local"))
    assert (whole.bytes_across_regions, whole.tasks_left, whole.records_in) == ([], {}, local.records_in)
    ledger = Ledger(LocalStore(), f"{out}/")
    assert [r.region for _, r in sorted(ledger.tasks().items())] == ["eu"] * 3 + ["us"] * 4
    crossed = transform_in_region("eu", tmp_path / "crossed", "idle")
    nbytes = sum(p.stat().st_size for p in (source / "us").iterdir())
    assert crossed.bytes_across_regions == [{"from": "us", "to": "eu", "bytes": nbytes}]
    assert outputs(tmp_path / "crossed") == outputs(tmp_path / "local")


def test_wait_for_placement_is_limited(nodes, tmp_path, monkeypatch):
    """The remaining tasks need a worker elsewhere, but the cluster has no space for one."""
    source = tmp_path / "in"
    for region in ("eu", "us"):
        (source / region).mkdir(parents=True)
        (source / region / "0.csv").write_bytes(lines(50))
    rules = RegionRules.parse([f"{source}/{region}/={region}" for region in ("eu", "us")])
    here = RayWorkers(1, 2, label_selector={"ray.io/region": "eu"})
    run = open_ray_run(
        source, tmp_path / "out", model=QUICK, workers=here, regions=DataRegions(rules, other_regions="never")
    )
    clock, real = ManualClock(), TaskScheduler.update_progress

    def update_progress(self: TaskScheduler) -> None:
        real(self)
        if not any_busy(self.handles):
            clock.advance(here.place_s + 1)

    monkeypatch.setattr(TaskScheduler, "update_progress", update_progress)
    monkeypatch.setattr(runner_of(run)._placement, "_clock", clock)
    report = execute(run)
    assert (report.status, list(report.tasks_left), report.objects_done) == ("partial", ["us"], 1)


def test_impossible_placement_is_an_error(nodes, source, tmp_path):
    unavailable = RayWorkers(1, 1, gpus=99, place_s=0.1)
    with pytest.raises(ConfigError, match=r"within 0\.1 s: each requests 1 CPU of 3, 99 GPU of 0 in"):
        execute(open_ray_run(source, tmp_path / "out", workers=unavailable))


def no_worker(tell: object, region: object) -> Any:
    raise NotImplementedError


def test_failed_join_leaves_the_cluster(monkeypatch):
    calls: list[str] = []

    def init(*, address: str, **_: Any) -> None:
        calls.append(address)
        raise ConnectionError("nobody there")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: calls.append("left"))
    with pytest.raises(ConfigError, match="cannot be reached or started: nobody there"):
        RayRunner(no_worker, RayWorkers(address="10.0.0.2:6379"), model="m").start()
    assert calls == ["10.0.0.2:6379", "left"]


def test_drain_ends_the_wait_for_placement(nodes):
    runner = RayRunner(no_worker, RayWorkers(gpus=99), model="m")
    runner.drain()
    with pytest.raises(ModelLoadError, match="stopped before a worker had loaded it"):
        runner.start()
    assert runner._members == []


def test_opener_error_is_raised(nodes):
    """The opener is local to this test, so it is sent by value: no worker has this file."""

    def opener(tell: object, region: object) -> Any:
        raise NotImplementedError("none today")

    with pytest.raises(HeadraceError, match="NotImplementedError: none today"):
        RayRunner(opener, RayWorkers(), model="m").start()


SCRIPT = """
import sys
from headrace.app.runs import transform_sync
from headrace.app.runners import RayWorkers
from runs.support import make_settings
report = transform_sync(*sys.argv[1:3], model=sys.argv[3], workers=RayWorkers(), settings=make_settings())
print(report.status, report.rows_out)
"""


def test_own_cluster_starts_and_ends_quietly(tmp_path):
    """Without an address, the run does not join the cluster that was last started on this machine."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_bytes(lines(90))
    environ = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
    paths = os.pathsep.join([str(Path(headrace.__file__).parents[1]), str(Path(__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "in"), str(tmp_path / "out"), QUICK],
        env={**environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "complete 88\n", "")
