"""How a worker is opened elsewhere: the right model, the right folder, and no secrets in what is shown."""

import os
import sys
from pathlib import Path

import pytest

from headrace.app.model_copy import copy_model
from headrace.app.streaming import PredictorOptions, open_predictor
from headrace.app.transform_work import WorkerJob, WorkerOpener, sent_elsewhere, worker_command, worker_job
from headrace.core.errors import ConfigError, ModelLoadError
from headrace.core.model import Model
from headrace.storage.resolve import Stores
from headrace.transforms.settings import TransformSettings

MODEL = (
    "import headrace\n\n\nclass Twice(headrace.Model):\n    def predict(self, x):\n        return x * {}\n"
)


@pytest.fixture
def elsewhere(monkeypatch, tmp_path):
    """A folder that is current; what opening a worker changes of this process is put back."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def job_of(model: str, destination: str = "out", **more) -> WorkerJob:
    options = PredictorOptions()
    identity = open_predictor(model, None, options).identity
    return worker_job(
        destination, model, None, TransformSettings(), options, identity=identity, stores=Stores(), **more
    )


def test_a_job_goes_over_a_command_line(elsewhere):
    (elsewhere / "twice.py").write_text(MODEL.format(2))
    job = job_of("twice.py")
    assert WorkerJob.from_json(job.to_json()).to_json() == job.to_json()
    assert (job.destination, job.folder) == ("out/", str(elsewhere))
    command = worker_command(job, "eu")
    assert command[-1] == "eu"
    assert command[-2].encode() == job.to_json()


def test_what_only_this_process_has_is_refused():
    with pytest.raises(ConfigError, match="name it as a file"):
        worker_job("out", Model, None, TransformSettings(), PredictorOptions(), identity="", stores=Stores())
    with pytest.raises(ConfigError, match="in this process alone"):
        worker_job("memory://o/", "m.py", None, TransformSettings(), PredictorOptions(), identity="", stores=Stores())  # fmt: skip


def test_elsewhere_a_file_has_its_whole_name_and_a_class_its_own(elsewhere):
    (elsewhere / "twice.py").write_text(MODEL.format(2))
    assert sent_elsewhere(job_of("twice.py:Twice")).model == str(elsewhere / "twice.py:Twice")
    (elsewhere / "m").mkdir()
    job = job_of("twice.py")
    named = WorkerJob(**{f: getattr(job, f) for f in job.__slots__} | {"model": "json:JSONDecoder"})
    assert sent_elsewhere(named) == named


def test_nothing_secret_or_large_is_shown(elsewhere):
    (elsewhere / "twice.py").write_text(MODEL.format(2))
    copy = copy_model("twice.py")
    shown = repr(WorkerOpener(job_of("twice.py"), {"AWS_SECRET_ACCESS_KEY": "hunter2"}, copy)) + repr(copy)
    assert "hunter2" not in shown
    assert "return x" not in shown


def opened_by(opener: WorkerOpener) -> str:
    """The name of the file that the worker's model came from, and that it is told ready."""
    told: list = []
    with opener(told.append, "eu") as worker:
        worker.tell_ready()
    assert [list(message) for message in told] == [["ready"]]
    return told[0]["ready"]["name"]


def test_the_run_s_model_is_taken_where_it_is(elsewhere):
    (elsewhere / "twice.py").write_text(MODEL.format(2))
    opener = WorkerOpener(sent_elsewhere(job_of("twice.py")), None, None)
    os.chdir("/")
    assert opened_by(opener) == "twice"
    assert Path.cwd() == elsewhere


@pytest.mark.parametrize("there", ["nothing", "another"])
def test_where_it_is_not_the_copy_is_taken(elsewhere, there):
    file = elsewhere / "twice.py"
    file.write_text(MODEL.format(2))
    opener = WorkerOpener(sent_elsewhere(job_of("twice.py")), None, copy_model("twice.py"))
    file.unlink()
    if there == "another":
        file.write_text(MODEL.format(3))
    assert opened_by(opener) == "twice"


@pytest.mark.parametrize(
    ("there", "said"), [("nothing", "twice.py"), ("another", "put the same one everywhere")]
)
def test_without_a_copy_it_must_be_the_same_there(elsewhere, there, said):
    file = elsewhere / "twice.py"
    file.write_text(MODEL.format(2))
    opener = WorkerOpener(sent_elsewhere(job_of("twice.py")), None, None)
    file.unlink()
    if there == "another":
        file.write_text(MODEL.format(3))
    with pytest.raises((ModelLoadError, ConfigError), match=said), opener(print, None):
        pytest.fail("it was opened")
