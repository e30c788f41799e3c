"""Models of runs: settings of their model.toml, Model objects, URIs, and the models of worker processes."""

import threading
from pathlib import Path

import numpy as np
import pytest

import headrace
from cases import for_each
from headrace.app.models import PredictorOptions, open_predictor, open_repository, run_settings
from headrace.app.runners import Workers, copy_model
from headrace.app.runs import execute, open_run
from headrace.config.model_argument import find_model
from headrace.core.errors import ConfigError, ResumeRefusedError
from headrace.core.model import Model
from headrace.core.tensor import InferRequest, Tensor
from headrace.engine.settings import ServeSettings
from headrace.runs.settings import StreamSettings, TransformSettings
from headrace.runtimes.model_cache import CACHE_VARIABLE
from headrace.storage.resolve import Stores

CODE = """
import os, threading
from headrace import Model
class Probe(Model):
    def __init__(self, factor=1): self.factor = factor
    def predict(self, x):
        return {"rows": [len(x)] * len(x), "pid": [os.getpid()] * len(x), "factor": [self.factor] * len(x)}
"""


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def rows(tmp_path) -> str:
    path = tmp_path / "rows.csv"
    path.write_text("1,2\n3,4\n5,6\n7,8\n9,0\n")
    return str(path)


def write_model(folder: Path, toml: str = "", code: str = CODE) -> str:
    folder.mkdir()
    (folder / "probe.py").write_text(code)
    (folder / "model.toml").write_text(toml)
    return str(folder)


class Counted(Model):
    """A model whose object knows its thread and its calls."""

    def __init__(self):
        self.loads = self.rows = self.closes = 0

    def load(self):
        self.loads += 1
        self.thread = threading.current_thread()

    def predict(self, x):
        assert threading.current_thread() is self.thread
        self.rows += len(x)
        return x[:, 0] * 2

    def close(self):
        self.closes += 1


# Settings of a model.toml


def test_settings_without_a_meaning_in_runs_are_left_out():
    """Every setting is either taken over or left out on purpose."""
    given = ServeSettings(
        instances=3,
        isolation="process",
        max_batch_rows=7,
        max_batch_delay_ms=9,
        queue_rows_max=10,
        streams_max=11,
        call_timeout_s=12,
        cancel_grace_s=13,
        memory_bytes_max=1 << 30,
        processes_max=15,
        environ_pass=("HOME",),
        sequences={"live_max": 16},
        checkpoints="memory:",
        warm_up=False,
    )
    kept, default = run_settings(given), ServeSettings()
    left_out = {"max_batch_delay_ms", "queue_rows_max", "streams_max", "checkpoints"}
    for name in ServeSettings.__slots__:
        if name != "sequences":
            assert getattr(kept, name) == getattr(default if name in left_out else given, name), name
    assert kept.sequences["live_max"] > 1 << 30


@for_each(
    ("isolation", "expected"), [(None, "thread"), ("auto", "thread"), ("inline", "thread"), ("process",) * 2]
)
def test_instances_of_a_run_are_in_threads_or_processes(isolation, expected):
    assert run_settings(ServeSettings(isolation=isolation)).isolation == expected


def test_run_takes_batch_size_options_and_instances_of_the_model_file(tmp_path, rows):
    model = write_model(tmp_path / "m", "[options]\nfactor = 3\n[serve]\ninstances = 2\nmax_batch_rows = 2\n")
    with headrace.stream(rows, model=model) as outcomes:
        outputs = [o.outputs for o in outcomes]
    assert [int(o["rows"]) for o in outputs] == [2, 2, 2, 2, 1]
    assert {int(o["factor"]) for o in outputs} == {3}
    assert open_predictor(model, None, PredictorOptions()).predictor.settings.instances == 2
    assert open_predictor(model, None, PredictorOptions(instances=1)).predictor.settings.instances == 1
    options = PredictorOptions(model_options={"factor": 5})
    with headrace.stream(rows, model=model, options=options) as outcomes:
        assert {int(o.outputs["factor"]) for o in outcomes} == {5}


def test_each_batch_of_a_run_has_a_call_of_its_own():
    """Batches depend on the source alone: a run that is repeated makes the same calls."""
    model, calls = Counted(), []
    entered, gate = threading.Semaphore(0), threading.Event()

    def predict(x):
        calls.append(len(x))
        entered.release()
        assert gate.wait(30)
        return x[:, 0]

    model.predict = predict
    predictor = open_predictor(model, None, PredictorOptions()).predictor
    predictor.start()
    try:
        requests = [InferRequest((Tensor("x", np.ones((n, 2), np.float32)),)) for n in (1, 2, 3)]
        futures = [predictor.submit(requests[0])]
        assert entered.acquire(timeout=30)
        futures += map(predictor.submit, requests[1:])
        gate.set()
        assert [len(future.result(30)["output"]) for future in futures] == [1, 2, 3]
    finally:
        predictor.stop()
    assert calls == [1, 2, 3]


@pytest.mark.slow
def test_model_file_can_ask_for_a_process(tmp_path, rows):
    import os

    model = write_model(tmp_path / "m", '[serve]\nisolation = "process"\n')
    with headrace.stream(rows, model=model) as outcomes:
        pids = {int(o.outputs["pid"]) for o in outcomes}
    assert len(pids) == 1
    assert pids != {os.getpid()}


@pytest.mark.slow
def test_each_worker_process_has_one_instance(tmp_path, rows):
    """A model.toml for a server with many instances must not multiply the workers."""
    once = (
        "import pathlib\n"
        + CODE
        + f"    folder = {str(tmp_path)!r}\n"
        + "    def load(self): pathlib.Path(self.folder, f'load-{os.getpid()}-{id(self)}').touch()\n"
    )
    model = write_model(tmp_path / "m", "[serve]\ninstances = 4\n", once)
    report = headrace.transform_sync(rows, f"{tmp_path}/out/", model=model, workers=Workers(1, "process"))
    assert report.rows_out == 5
    assert len(list(tmp_path.glob("load-*"))) == 1


# Model objects


def test_model_object_runs_in_one_thread(tmp_path, rows):
    model = Counted()
    assert [float(o.outputs["output"]) for o in headrace.stream(rows, model=model)] == [2, 6, 10, 14, 18]
    assert (model.loads, model.rows, model.closes) == (1, 5, 1)
    report = headrace.run_sync(rows, model=model, output=f"{tmp_path}/run/")
    assert report.rows_out == 5
    report = headrace.transform_sync(rows, f"{tmp_path}/transform/", model=model)
    assert report.rows_out == 5
    assert (model.loads, model.rows, model.closes) == (3, 15, 3)


@for_each(
    ("options", "workers", "why"),
    [
        (
            PredictorOptions(instances=2),
            None,
            "so it cannot have 2 instances or worker threads: pass the class",
        ),
        (None, Workers(3), "so it cannot have 3 instances or worker threads"),
        (
            None,
            Workers(1, "process"),
            r"workers load the model themselves: name it as a file, a folder or module",
        ),
        (PredictorOptions(model_options={"a": 1}), None, "model_options need a model that is named"),
    ],
)
def test_model_object_is_one_instance_of_this_process(tmp_path_factory, options, workers, why):
    folder = tmp_path_factory.mktemp("object")
    with pytest.raises(ConfigError, match=why):
        open_run("in/", model=Counted(), output=f"{folder}/", options=options, workers=workers)


def test_model_object_is_served():
    model = Counted()
    repository, changeable = open_repository([model], ServeSettings())
    with pytest.raises(ConfigError, match="so it cannot have 2 instances"):
        open_repository([model], ServeSettings(instances=2))
    repository.start()
    try:
        request = InferRequest((Tensor("x", np.ones((3, 2), np.float32)),))
        response = repository.engine("Counted").submit(request).result(30)
        assert (response["output"].tolist(), model.rows >= 3, changeable) == ([2, 2, 2], True, False)
    finally:
        repository.stop()
    assert (model.loads, model.closes) == (1, 1)


# URIs and archives


def test_run_fetches_its_model_with_its_own_stores(tmp_path, cache):
    stores = Stores()
    store = stores.for_uri("memory://b/")
    store.put("memory://b/in/a.csv", b"1,2\n3,4\n")
    store.put("memory://b/m/probe.py", CODE.encode())
    for number, run in enumerate((headrace.run_sync, headrace.transform_sync)):
        place = (
            {"output": f"memory://b/{number}/"} if number == 0 else {"destination": f"memory://b/{number}/"}
        )
        report = run("memory://b/in/", model="memory://b/m/probe.py", stores=stores, **place)
        assert (report.rows_out, report.model) == (2, "probe")
    with headrace.stream("memory://b/in/", model="memory://b/m/probe.py", stores=stores) as outcomes:
        assert len(list(outcomes)) == 2
    assert len(list(cache.glob("models/*/*/probe.py"))) == 1


def test_changed_model_at_a_uri_is_refused_on_resume(rows):
    stores = Stores()
    store = stores.for_uri("memory://b/")
    store.put("memory://b/probe.py", CODE.encode())

    def score(**how):
        return headrace.run_sync(
            rows, model="memory://b/probe.py", output="memory://b/out/", stores=stores, **how
        )

    score()
    store.put("memory://b/probe.py", CODE.encode())
    assert score(resume=True).rows_out == 5, "the same bytes under another ETag are the same model"
    store.put("memory://b/probe.py", CODE.replace("factor=1", "factor=2").encode())
    with pytest.raises(ResumeRefusedError, match="model"):
        score(resume=True)


def test_copy_of_a_model_file_folder_has_its_name_and_fingerprint(tmp_path):
    model = write_model(tmp_path / "m", 'name = "churn"\n[options]\nfactor = 2\n')
    for argument in (model, f"spam={model}"):
        found = find_model(argument).definition
        copied = find_model(copy_model(argument).unpack(tmp_path / "there")).definition
        assert (copied.name, copied.fingerprint) == (found.name, found.fingerprint)


def test_linked_files_are_copied(tmp_path):
    """Hugging Face keeps the files of a model in one folder and links to them in another."""
    (tmp_path / "blob").write_bytes(b"weights")
    folder = Path(write_model(tmp_path / "m"))
    (folder / "weights.bin").symlink_to(tmp_path / "blob")
    there = Path(copy_model(str(folder)).unpack(tmp_path / "there"))
    assert (there / "weights.bin").read_bytes() == b"weights"


# Names in ledgers


def test_retry_opens_the_model_by_its_name_and_options(tmp_path, rows):
    code = (
        "from headrace import Model, RowError\n"
        "class M(Model):\n"
        "    def __init__(self, limit=0, mark=''): self.limit, self.mark = limit, mark\n"
        "    def predict(self, x):\n"
        "        if self.mark and __import__('os').path.exists(self.mark): return x[:, 0]\n"
        "        bad = {i: 'too large' for i in range(len(x)) if x[i, 0] > self.limit}\n"
        "        if bad: raise RowError(bad)\n"
        "        return x[:, 0]\n"
    )
    model = Path(write_model(tmp_path / "m", f'[options]\nmark = "{tmp_path}/mark"\n', code))
    options = PredictorOptions(model_options={"limit": 6})
    for name, settings in (("stream", StreamSettings()), ("transform", TransformSettings())):
        output = f"{tmp_path}/{name}/"
        opened = open_run(rows, output=output, model=model, options=options, settings=settings)
        assert execute(opened).rows_failed == 2
        with pytest.raises(ResumeRefusedError):
            headrace.retry_failed(output, options=PredictorOptions(model_options={"limit": 9}))
        assert headrace.retry_failed(output).rows_failed == 2
    (tmp_path / "mark").touch()
    assert (
        headrace.retry_failed(f"{tmp_path}/stream/", options=PredictorOptions(instances=2)).rows_failed == 0
    )
    options = PredictorOptions(model_options={"limit": 9})
    assert headrace.retry_failed(f"{tmp_path}/transform/", options=options, other_model=True).rows_failed == 0
