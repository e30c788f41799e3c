"""A worker put together: its models by name, its parts, its life."""

import pytest

from headrace.app.job_parts import JobsAt
from headrace.app.working import ServedModels, job_repository, open_worker
from headrace.config.jobs_file import JobsFile
from headrace.core.errors import ModelLoadError, ModelNotFoundError
from headrace.engine.settings import ServeSettings
from headrace.jobs.deliverer import Deliverer
from headrace.jobs.worker.settings import WorkerSettings
from integration.command import DOUBLE


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "double.py"
    path.write_text(DOUBLE)
    return str(path)


def test_a_model_that_is_not_there_is_told_with_those_that_are(model):
    repository = job_repository([model], ServeSettings(), None, "thread", concurrency=2)
    repository.start()
    try:
        models = ServedModels(repository)
        assert models.predictor("double").name == "double"
        assert models.identity("double").startswith("double sha256:")
        with pytest.raises(ModelNotFoundError, match=r"no such model \(it has double\)"):
            models.predictor("other")
        with pytest.raises(ModelNotFoundError, match="version '7'"):
            models.predictor("double@7")
    finally:
        repository.stop(drain=False)


def test_models_run_in_processes_unless_something_else_is_said(model):
    for isolation in ("process", "thread"):
        repository = job_repository([model], ServeSettings(), None, isolation, concurrency=2)
        assert [d.settings.isolation for d in repository.definitions()] == [isolation]


def test_a_worker_that_knows_no_settings_tells_nobody(model, tmp_path):
    """It would refuse for good what needs a mail server, or a network, that it does not know of."""
    at = JobsAt.folder(tmp_path / "data")
    plain, told = open_worker([model], at), open_worker([model], at, file=JobsFile())
    assert not any(isinstance(service, Deliverer) for service in plain.parts.services)
    assert any(isinstance(service, Deliverer) for service in told.parts.services)


def test_it_starts_and_stops_and_leaves_nothing_when_it_cannot_start(model, tmp_path):
    at = JobsAt.folder(tmp_path / "data")
    settings = WorkerSettings(name="w", stop_s=1.0)
    worker = open_worker([model], at, settings=settings, isolation="thread")
    worker.start()
    assert worker.repository.ready
    worker.stop()
    assert worker.repository.versions("double") == ()
    (tmp_path / "double.py").write_text("raise RuntimeError('no')")
    with pytest.raises(Exception, match="no"):
        open_worker([model], at, settings=settings, isolation="thread").start()


def test_no_model_is_no_worker(tmp_path):
    with pytest.raises(ModelLoadError, match="cannot be read"):
        open_worker(["nowhere.py"], JobsAt.folder(tmp_path / "data"))
