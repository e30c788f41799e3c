"""What joins stores, a model and a transform: that it is put together right, and let go of whatever happens."""

import asyncio
import threading
from pathlib import Path

import pytest

import headrace
from headrace.app.streaming import PredictorOptions
from headrace.app.transforming import dry_run, open_transform, retry_failed, transform_sync
from headrace.app.workers import Workers
from headrace.core.errors import ConfigError, EmptySourceError, OutputExistsError, ResumeRefusedError
from headrace.core.model import Model, RowError
from headrace.core.tensor import TensorSpec
from headrace.pipeline.settings import FlowSettings
from headrace.storage.resolve import Stores
from headrace.transforms.settings import TaskSettings, TransformSettings

IN, OUT = "memory://b/in/", "memory://b/out/"
ROWS = 40

FILE = """
from pathlib import Path
from headrace import Model, RowError, TensorSpec

class Double(Model):
    inputs = (TensorSpec("x", "FP64", (-1, 2)),)
    max_batch_rows = 4

    def __init__(self, factor=2):
        self.factor = factor

    def predict(self, x):
        taken = Path(__file__).with_name("taken").exists()
        bad = {} if taken else {row: "odd" for row in range(len(x)) if x[row, 0] % 2}
        if bad:
            raise RowError(bad)
        return x[:, 0] * self.factor
"""


class Gate(Model):
    """Stops at its third batch until it is let through; tells that it is there."""

    inputs = (TensorSpec("x", "FP64", (-1, 2)),)
    max_batch_rows = 4
    reached, let = threading.Event(), threading.Event()
    calls = 0
    stopped = 0

    def predict(self, x):
        Gate.calls += 1
        if Gate.calls == 3:
            Gate.reached.set()
            assert Gate.let.wait(30)
        return x[:, 0] * 2


class Choosy(Model):
    """Refuses what is odd until it is told to take it."""

    inputs = Gate.inputs
    takes_all = False

    def predict(self, x):
        bad = {} if Choosy.takes_all else {row: "odd" for row in range(len(x)) if x[row, 0] % 2}
        if bad:
            raise RowError(bad)
        return x[:, 0] * 2


BEFORE = set[threading.Thread]()


@pytest.fixture(autouse=True)
def anew() -> None:
    BEFORE.clear()
    BEFORE.update(threading.enumerate())
    Gate.calls = 0
    Gate.reached.clear()
    Gate.let.clear()
    Choosy.takes_all = False


@pytest.fixture
def stores() -> Stores:
    made = Stores()
    made.for_uri(IN).put(f"{IN}a.csv", text())
    return made


def text() -> bytes:
    return b"".join(b"%d,1\n" % n for n in range(ROWS))


def doubled(factor: int = 2) -> bytes:
    return b"".join(b"%.1f\n" % (factor * n) for n in range(ROWS))


def names(stores: Stores, prefix: str = OUT) -> list[str]:
    return [i.uri.removeprefix(prefix) for i in stores.for_uri(prefix).list(prefix)]


def threads() -> list[str]:
    """What this test has left running: what was told to end has time to."""
    left = [t for t in threading.enumerate() if t.name.startswith("headrace") and t not in BEFORE]
    for thread in left:
        thread.join(10)
    return [t.name for t in left if t.is_alive()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.csv").write_bytes(text())
    (tmp_path / "double.py").write_text(FILE)
    return tmp_path


def test_a_transform_for_callers_without_a_loop(stores):
    Choosy.takes_all = True
    report = transform_sync(IN, OUT, model=Choosy, stores=stores)
    assert (report.exit_code, report.rows_out) == (0, ROWS)
    assert stores.for_uri(OUT).get(f"{OUT}a.csv.out") == doubled()
    assert threads() == []
    with pytest.raises(OutputExistsError):
        transform_sync(IN, OUT, model=Choosy, stores=stores)
    assert transform_sync(IN, OUT, model=Choosy, stores=stores, if_exists="resume") == report
    assert transform_sync(IN, OUT, model=Choosy, stores=stores, if_exists="overwrite").rows_out == ROWS
    assert "_report.html" not in names(stores)
    transform_sync(IN, OUT, model=Choosy, stores=stores, if_exists="overwrite", page=True)
    assert "_report.html" in names(stores)
    assert threads() == []


async def cancelled(stores: Stores) -> None:
    settings = TransformSettings(tasks=TaskSettings(checkpoint_s=0), flow=FlowSettings(window_bytes_max=256))
    working = asyncio.ensure_future(headrace.transform(IN, OUT, model=Gate, stores=stores, settings=settings))
    await asyncio.to_thread(Gate.reached.wait, 30)
    working.cancel()
    await asyncio.sleep(0)  # so that the cancellation has arrived
    assert not working.done()
    Gate.let.set()
    with pytest.raises(asyncio.CancelledError):
        await working


def test_cancelling_drains_and_resuming_goes_on(stores):
    asyncio.run(cancelled(stores))
    assert threads() == []
    assert Gate.calls < ROWS / 4
    assert "a.csv.out" not in names(stores)
    settings = TransformSettings(tasks=TaskSettings(checkpoint_s=0), flow=FlowSettings(window_bytes_max=256))
    report = asyncio.run(
        headrace.transform(IN, OUT, model=Gate, stores=stores, settings=settings, if_exists="resume")
    )
    assert (report.rows_out, report.resumed) == (ROWS, True)
    assert Gate.calls == ROWS / 4 + 2  # nothing is asked twice, but for the warm-up
    assert stores.for_uri(OUT).get(f"{OUT}a.csv.out") == doubled()


def test_what_breaks_lets_go_of_the_model(stores):
    stores.for_uri(IN).put(f"{IN}b.parquet", b"nothing")
    with pytest.raises(EmptySourceError):
        transform_sync("memory://b/none/", OUT, model=Choosy, stores=stores)
    assert threads() == []
    assert names(stores) == []


def test_a_dry_run_writes_nothing(stores, folder):
    found = dry_run(IN, OUT, model=Choosy, stores=stores, records=2)
    assert [planned.output for planned in found.plan.objects] == ["a.csv.out"]
    assert len(found.seen) == 2
    assert names(stores) == []
    dry_run(f"{folder}/in/", f"{folder}/out/", model=str(folder / "double.py"))
    assert not (folder / "out").exists()
    assert threads() == []


@pytest.mark.parametrize(("count", "isolation"), [(0, "thread"), (-1, "process"), (1, "machine")])
def test_workers_that_cannot_be(count, isolation):
    with pytest.raises(ConfigError, match=r"workers must be 1 or more|isolation must be thread or process"):
        Workers(count, isolation)


def test_workers_in_threads_are_instances(stores, folder):
    report = transform_sync(
        IN, OUT, model=str(folder / "double.py"), stores=stores, workers=Workers(2, "thread"),
    )  # fmt: skip
    assert report.rows_failed == ROWS / 2


def test_processes_share_no_memory_and_no_class(stores, folder):
    processes = Workers(2, "process")
    with pytest.raises(ConfigError, match="memory:// objects are in this process alone"):
        open_transform(IN, OUT, model=str(folder / "double.py"), stores=stores, workers=processes)
    with pytest.raises(ConfigError, match="name it as a file, a folder or module:Class"):
        open_transform(f"{folder}/in/", f"{folder}/out/", model=Choosy, workers=processes)
    assert names(stores) == []


def test_processes_write_what_threads_write(folder):
    (folder / "taken").touch()
    report = transform_sync(
        f"{folder}/in/", f"{folder}/out", model=str(folder / "double.py"), workers=Workers(2, "process")
    )
    assert report.rows_out == ROWS
    assert (folder / "out/a.csv.out").read_bytes() == doubled()
    assert threads() == []


def test_retrying_finds_its_model_and_its_options_by_itself(folder):
    options = PredictorOptions(model_options={"factor": 3})
    source, out = f"{folder}/in/", f"{folder}/out/"
    report = transform_sync(source, out, model=str(folder / "double.py"), options=options)
    assert (report.rows_failed, report.exit_code) == (ROWS // 2, 3)
    assert retry_failed(out).rows_failed == ROWS // 2
    (folder / "taken").touch()
    report = retry_failed(f"{folder}/out")
    assert (report.rows_out, report.rows_failed, report.exit_code) == (ROWS, 0, 0)
    assert (folder / "out/a.csv.out").read_bytes() == doubled(3)
    assert not (folder / "out/a.csv.out.failed").exists()
    assert threads() == []


def test_retrying_refuses_a_model_that_is_another_now(folder):
    model = folder / "double.py"
    out = f"{folder}/out/"
    transform_sync(f"{folder}/in/", out, model=str(model))
    model.write_text(FILE.replace("x[row, 0] % 2", "False"))
    with pytest.raises(ResumeRefusedError, match="--other-model"):
        retry_failed(out)
    assert retry_failed(out, other_model=True).exit_code == 0
    assert (folder / "out/a.csv.out").read_bytes() == doubled()


def test_retrying_a_class_needs_it_given_again(stores):
    transform_sync(IN, OUT, model=Choosy, stores=stores)
    with pytest.raises(ConfigError, match="no file or class that can be named: give it again"):
        retry_failed(OUT, stores=stores)
    Choosy.takes_all = True
    assert retry_failed(OUT, model=Choosy, stores=stores).exit_code == 0
    assert stores.for_uri(OUT).get(f"{OUT}a.csv.out") == doubled()
    with pytest.raises(ConfigError, match="no transform was written here"):
        retry_failed("memory://b/nothing/", stores=stores)
