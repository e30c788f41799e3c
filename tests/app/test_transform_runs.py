"""Batch transforms built from stores, models and workers: outputs, resume, retry and dry runs."""

import asyncio
import gzip
import threading
from pathlib import Path

import pytest

import headrace
from cases import for_each
from headrace.app.models import PredictorOptions
from headrace.app.runners import Workers
from headrace.app.runs import dry_run, open_run, retry_failed, transform_sync
from headrace.core.errors import ConfigError, EmptySourceError, OutputExistsError, ResumeRefusedError
from headrace.core.model import Model, RowError
from headrace.core.tensor import TensorSpec
from headrace.runs.failure_policy import FailurePolicy
from headrace.runs.output_settings import OutputSettings
from headrace.runs.settings import FlowSettings, TransformSettings
from headrace.storage.resolve import Stores

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


class GatedModel(Model):
    """Blocks in its third batch, after setting `reached`, until `released` is set."""

    inputs = (TensorSpec("x", "FP64", (-1, 2)),)
    max_batch_rows = 4
    reached, released = threading.Event(), threading.Event()
    calls = 0
    stopped = 0

    def predict(self, x):
        GatedModel.calls += 1
        if GatedModel.calls == 3:
            GatedModel.reached.set()
            assert GatedModel.released.wait(30)
        return x[:, 0] * 2


class EvenOnlyModel(Model):
    """Refuses rows with odd values unless `takes_all` is set."""

    inputs = GatedModel.inputs
    takes_all = False

    def predict(self, x):
        bad = {} if EvenOnlyModel.takes_all else {row: "odd" for row in range(len(x)) if x[row, 0] % 2}
        if bad:
            raise RowError(bad)
        return x[:, 0] * 2


THREADS_BEFORE = set[threading.Thread]()


@pytest.fixture(autouse=True)
def fresh_models() -> None:
    THREADS_BEFORE.clear()
    THREADS_BEFORE.update(threading.enumerate())
    GatedModel.calls = 0
    GatedModel.reached.clear()
    GatedModel.released.clear()
    EvenOnlyModel.takes_all = False


@pytest.fixture
def stores() -> Stores:
    made = Stores()
    made.for_uri(IN).put(f"{IN}a.csv", source_bytes())
    return made


def source_bytes() -> bytes:
    return b"".join(b"%d,1\n" % n for n in range(ROWS))


def doubled(factor: int = 2) -> bytes:
    return b"".join(b"%.1f\n" % (factor * n) for n in range(ROWS))


def object_names(stores: Stores, prefix: str = OUT) -> list[str]:
    return [i.uri.removeprefix(prefix) for i in stores.for_uri(prefix).list(prefix)]


def output_names(stores: Stores) -> set[str]:
    return {name for name in object_names(stores) if not name.startswith("_")}


def running_threads() -> list[str]:
    """Return the headrace threads that this test left running; stopping threads get time to end."""
    left = [t for t in threading.enumerate() if t.name.startswith("headrace") and t not in THREADS_BEFORE]
    for thread in left:
        thread.join(10)
    return [t.name for t in left if t.is_alive()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.csv").write_bytes(source_bytes())
    (tmp_path / "double.py").write_text(FILE)
    return tmp_path


def test_transform_sync_writes_and_handles_existing_outputs(stores):
    EvenOnlyModel.takes_all = True
    report = transform_sync(IN, OUT, model=EvenOnlyModel, stores=stores)
    assert (report.exit_code, report.rows_out) == (0, ROWS)
    assert stores.for_uri(OUT).get(f"{OUT}a.csv.out") == doubled()
    assert running_threads() == []
    with pytest.raises(OutputExistsError):
        transform_sync(IN, OUT, model=EvenOnlyModel, stores=stores)
    assert transform_sync(IN, OUT, model=EvenOnlyModel, stores=stores, resume=True) == report
    assert transform_sync(IN, OUT, model=EvenOnlyModel, stores=stores, overwrite=True).rows_out == ROWS
    assert "_report.html" not in object_names(stores)
    transform_sync(IN, OUT, model=EvenOnlyModel, stores=stores, overwrite=True, report="html")
    assert "_report.html" in object_names(stores)
    assert running_threads() == []


async def cancelled(stores: Stores) -> None:
    settings = TransformSettings(
        output=OutputSettings(checkpoint_s=0), flow=FlowSettings(window_bytes_max=256)
    )
    working = asyncio.ensure_future(
        headrace.transform(IN, OUT, model=GatedModel, stores=stores, settings=settings)
    )
    await asyncio.to_thread(GatedModel.reached.wait, 30)
    working.cancel()
    await asyncio.sleep(0)  # The cancellation reaches the run in one loop cycle.
    assert not working.done()
    GatedModel.released.set()
    with pytest.raises(asyncio.CancelledError):
        await working


def test_cancelled_transform_drains_and_resumes(stores):
    asyncio.run(cancelled(stores))
    assert running_threads() == []
    assert GatedModel.calls < ROWS / 4
    assert "a.csv.out" not in object_names(stores)
    settings = TransformSettings(
        output=OutputSettings(checkpoint_s=0), flow=FlowSettings(window_bytes_max=256)
    )
    report = asyncio.run(
        headrace.transform(IN, OUT, model=GatedModel, stores=stores, settings=settings, resume=True)
    )
    assert (report.rows_out, report.resumed) == (ROWS, True)
    assert GatedModel.calls == ROWS / 4 + 2  # No record is predicted twice, except in the warm-up.
    assert stores.for_uri(OUT).get(f"{OUT}a.csv.out") == doubled()


def test_failed_transform_stops_the_model(stores):
    stores.for_uri(IN).put(f"{IN}b.parquet", b"nothing")
    with pytest.raises(EmptySourceError):
        transform_sync("memory://b/none/", OUT, model=EvenOnlyModel, stores=stores)
    assert running_threads() == []
    assert object_names(stores) == []


def test_dry_run_writes_nothing(stores, folder):
    found = dry_run(IN, OUT, model=EvenOnlyModel, stores=stores, records=2)
    assert [planned.output for planned in found.plan.objects] == ["a.csv.out"]
    assert len(found.trial.first) == 2
    assert object_names(stores) == []
    dry_run(f"{folder}/in/", f"{folder}/out/", model=str(folder / "double.py"))
    assert not (folder / "out").exists()
    assert running_threads() == []


@for_each(("count", "isolation"), [(0, "thread"), (-1, "process"), (1, "machine")])
def test_invalid_workers_are_refused(count, isolation):
    with pytest.raises(ConfigError, match=r"workers must be 1 or more|isolation must be thread or process"):
        Workers(count, isolation)


def test_worker_threads_are_model_instances(stores, folder):
    report = transform_sync(
        IN,
        OUT,
        model=str(folder / "double.py"),
        stores=stores,
        workers=Workers(2, "thread"),
    )
    assert report.rows_failed == ROWS / 2


def test_worker_processes_refuse_memory_stores_and_classes(stores, folder):
    processes = Workers(2, "process")
    with pytest.raises(ConfigError, match="memory:// objects exist in this process only"):
        open_run(IN, output=OUT, model=str(folder / "double.py"), stores=stores, workers=processes)
    with pytest.raises(ConfigError, match="name it as a file, a folder or module:Class"):
        open_run(f"{folder}/in/", output=f"{folder}/out/", model=EvenOnlyModel, workers=processes)
    assert object_names(stores) == []


@pytest.mark.slow
def test_processes_write_the_same_outputs_as_threads(folder):
    (folder / "taken").touch()
    report = transform_sync(
        f"{folder}/in/", f"{folder}/out", model=str(folder / "double.py"), workers=Workers(2, "process")
    )
    assert report.rows_out == ROWS
    assert (folder / "out/a.csv.out").read_bytes() == doubled()
    assert running_threads() == []


def test_retry_failed_uses_the_recorded_model_and_options(folder):
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
    assert running_threads() == []


def broken_stores() -> Stores:
    stores = Stores()
    whole = gzip.compress(b"2,0\n4,0\n6,0\n")
    for name, content in {"a.csv.gz": whole[:-3], "b.csv": b"8,0\n", "c.csv": b"1,0\n"}.items():
        stores.for_uri(IN).put(IN + name, content)
    return stores


def test_broken_object_has_a_partial_output_until_it_is_mended():
    stores = broken_stores()
    first = transform_sync(IN, OUT, model=EvenOnlyModel, stores=stores)
    named = {"a.csv.gz.out.partial", "a.csv.gz.out.failed", "b.csv.out", "c.csv.out", "c.csv.out.failed"}
    assert (first.exit_code, output_names(stores)) == (1, named)
    assert first.figures()["broken objects"].splitlines() == [
        "1",
        f"{IN}a.csv.gz: the output ends early, in a.csv.gz.out.partial",
        "mend them, then continue with --resume",
    ]
    unchanged = transform_sync(IN, OUT, model=EvenOnlyModel, stores=stores, resume=True)
    assert unchanged.to_json() == first.to_json()
    stores.for_uri(IN).put(IN + "a.csv.gz", gzip.compress(b"2,0\n4,0\n7,0\n"))
    mended = transform_sync(IN, OUT, model=EvenOnlyModel, stores=stores, resume=True)
    assert (mended.exit_code, mended.objects_broken, mended.records_in, mended.rows_failed) == (3, 0, 5, 2)
    named = {"a.csv.gz.out", "a.csv.gz.out.failed", "b.csv.out", "c.csv.out", "c.csv.out.failed"}
    assert output_names(stores) == named
    assert stores.for_uri(OUT).get(OUT + "a.csv.gz.out") == b"4.0\n8.0\n"
    again = transform_sync(IN, OUT, model=EvenOnlyModel, stores=stores, resume=True)
    assert again.to_json() == mended.to_json()


def test_overwritten_run_leaves_no_partial_output():
    stores = broken_stores()
    transform_sync(IN, OUT, model=EvenOnlyModel, stores=stores)
    stores.for_uri(IN).put(IN + "a.csv.gz", gzip.compress(b"2,0\n"))
    transform_sync(IN, OUT, model=EvenOnlyModel, stores=stores, overwrite=True)
    assert not [name for name in object_names(stores) if name.endswith(".partial")]


def test_strict_transform_has_no_partial_output():
    stores = broken_stores()
    settings = TransformSettings(failures=FailurePolicy(on_error="object"))
    report = transform_sync(IN, OUT, model=EvenOnlyModel, stores=stores, settings=settings)
    assert (report.exit_code, report.objects_suppressed) == (1, 2)
    assert {n for n in output_names(stores) if not n.endswith(".failed")} == {"b.csv.out"}


def test_retry_failed_refuses_a_changed_model(folder):
    model = folder / "double.py"
    out = f"{folder}/out/"
    transform_sync(f"{folder}/in/", out, model=str(model))
    model.write_text(FILE.replace("x[row, 0] % 2", "False"))
    with pytest.raises(ResumeRefusedError, match="--other-model"):
        retry_failed(out)
    assert retry_failed(out, other_model=True).exit_code == 0
    assert (folder / "out/a.csv.out").read_bytes() == doubled()


def test_retry_failed_requires_an_unnamed_model(stores):
    transform_sync(IN, OUT, model=EvenOnlyModel, stores=stores)
    with pytest.raises(ConfigError, match="does not name the run's model: give it again"):
        retry_failed(OUT, stores=stores)
    EvenOnlyModel.takes_all = True
    assert retry_failed(OUT, model=EvenOnlyModel, stores=stores).exit_code == 0
    assert stores.for_uri(OUT).get(f"{OUT}a.csv.out") == doubled()
    with pytest.raises(ConfigError, match="there is no run"):
        retry_failed("memory://b/nothing/", stores=stores)
