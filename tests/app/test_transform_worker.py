"""Transform workers opened elsewhere: the same model, the same folder, and no visible secrets."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cases import for_each
from headrace.app.models import PredictorOptions, open_predictor
from headrace.app.runners import (
    WorkerOpener,
    WorkerSpec,
    copy_model,
    model_elsewhere,
    with_absolute_model,
    worker_command,
    worker_spec,
)
from headrace.core.errors import ConfigError, ModelLoadError
from headrace.core.model import Model
from headrace.runs.output_settings import OutputSettings
from headrace.runs.settings import (
    FlowSettings,
    MappingOptions,
    RunSettings,
    StreamSettings,
    TaskSettings,
    TransformSettings,
)
from headrace.runtimes.model_cache import CACHE_VARIABLE
from headrace.storage.resolve import Stores

MODEL = (
    "import headrace\n\n\nclass Twice(headrace.Model):\n    def predict(self, x):\n        return x * {}\n"
)


@pytest.fixture
def work_folder(monkeypatch, tmp_path):
    """A current folder; changes to the process by an opened worker are undone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def spec_of(model: str, destination: str = "out", *, settings: RunSettings | None = None) -> WorkerSpec:
    options, used = PredictorOptions(), settings or TransformSettings()
    identity = open_predictor(model, None, options).identity
    return worker_spec(destination, model, None, used, options, identity=identity, stores=Stores())


def test_spec_survives_a_command_line(work_folder):
    (work_folder / "twice.py").write_text(MODEL.format(2))
    spec = spec_of("twice.py")
    assert WorkerSpec.from_json(spec.to_json()).to_json() == spec.to_json()
    assert (spec.destination, spec.folder) == ("out/", str(work_folder))
    command = worker_command(spec, "eu")
    assert command[-1] == "eu"
    assert command[-2].encode() == spec.to_json()


@for_each("preset", [StreamSettings, TransformSettings])
def test_worker_has_the_settings_of_its_run(work_folder, preset):
    (work_folder / "twice.py").write_text(MODEL.format(2))
    settings = preset(
        mapping=MappingOptions(columns=("a", "b")),
        flow=FlowSettings(batch_rows_max=7, prefetch_threads=2),
        output=OutputSettings(format="jsonl", header=False, checkpoint_s=3.0),
        tasks=TaskSettings(task_objects_max=5),
    )
    spec = WorkerSpec.from_json(spec_of("twice.py", settings=settings).to_json())
    with WorkerOpener(spec)(print, None) as worker:
        assert worker._settings == settings
        assert type(worker._settings) is preset


def test_objects_of_this_process_are_refused():
    with pytest.raises(ConfigError, match="name it as a file"):
        worker_spec("out", Model, None, TransformSettings(), PredictorOptions(), identity="", stores=Stores())
    with pytest.raises(ConfigError, match="in this process only"):
        worker_spec(
            "memory://o/", "m.py", None, TransformSettings(), PredictorOptions(), identity="", stores=Stores()
        )


def test_only_file_models_get_an_absolute_path(work_folder):
    (work_folder / "twice.py").write_text(MODEL.format(2))
    assert with_absolute_model(spec_of("twice.py:Twice")).model == str(work_folder / "twice.py:Twice")
    (work_folder / "m").mkdir()
    spec = spec_of("twice.py")
    named = WorkerSpec(**{f: getattr(spec, f) for f in spec.__slots__} | {"model": "json:JSONDecoder"})
    assert with_absolute_model(named) == named


def test_workers_elsewhere_fetch_a_uri_into_their_own_cache(work_folder, http_files, monkeypatch):
    http_files.objects["/twice.py"] = MODEL.format(2).encode()
    uri = f"{http_files.url}/twice.py"
    monkeypatch.setenv(CACHE_VARIABLE, str(work_folder / "here"))
    local = open_predictor(uri, None, PredictorOptions()).local_model
    spec, copy = model_elsewhere(spec_of(uri), local)
    assert (spec.model, copy) == (uri, None)
    monkeypatch.setenv(CACHE_VARIABLE, str(work_folder / "there"))
    assert opened_model_name(WorkerOpener(spec, None, copy)) == "twice"
    assert len(list(work_folder.glob("there/models/*/*/twice.py"))) == 1
    http_files.objects["/twice.py"] = MODEL.format(3).encode()
    with pytest.raises(ModelLoadError, match="differs from the run's"), WorkerOpener(spec)(print, None):
        pass


def test_other_models_are_copied_for_workers_elsewhere(work_folder):
    (work_folder / "twice.py").write_text(MODEL.format(2))
    spec, copy = model_elsewhere(spec_of("two=twice.py"), "two=twice.py")
    assert (spec.model, copy.spec) == (f"two={work_folder}/twice.py", "two=twice.py")
    (work_folder / "twice.py").unlink()
    assert opened_model_name(WorkerOpener(spec, None, copy)) == "two"
    assert model_elsewhere(replace(spec, model=None), None)[1] is None


def test_repr_shows_no_secret_and_no_model(work_folder):
    (work_folder / "twice.py").write_text(MODEL.format(2))
    copy = copy_model("twice.py")
    shown = repr(WorkerOpener(spec_of("twice.py"), {"AWS_SECRET_ACCESS_KEY": "hunter2"}, copy)) + repr(copy)
    assert "hunter2" not in shown
    assert "return x" not in shown


def opened_model_name(opener: WorkerOpener) -> str:
    """Return the model name that an opened worker reports in its "ready" message."""
    messages: list = []
    with opener(messages.append, "eu") as worker:
        worker.send_ready()
    assert [list(message) for message in messages] == [["ready"]]
    return messages[0]["ready"]["name"]


def test_model_is_loaded_from_its_own_path(work_folder):
    (work_folder / "twice.py").write_text(MODEL.format(2))
    opener = WorkerOpener(with_absolute_model(spec_of("twice.py")), None, None)
    os.chdir("/")
    assert opened_model_name(opener) == "twice"
    assert Path.cwd() == work_folder


@pytest.mark.parametrize("present", ["nothing", "another"])
def test_missing_or_different_model_is_replaced_by_the_copy(work_folder, present):
    file = work_folder / "twice.py"
    file.write_text(MODEL.format(2))
    opener = WorkerOpener(with_absolute_model(spec_of("twice.py")), None, copy_model("twice.py"))
    file.unlink()
    if present == "another":
        file.write_text(MODEL.format(3))
    assert opened_model_name(opener) == "twice"


@pytest.mark.parametrize(
    ("present", "message"), [("nothing", "twice.py"), ("another", "install the same model")]
)
def test_missing_or_different_model_without_copy_is_refused(work_folder, present, message):
    file = work_folder / "twice.py"
    file.write_text(MODEL.format(2))
    opener = WorkerOpener(with_absolute_model(spec_of("twice.py")), None, None)
    file.unlink()
    if present == "another":
        file.write_text(MODEL.format(3))
    with pytest.raises((ModelLoadError, ConfigError), match=message), opener(print, None):
        pytest.fail("it was opened")
