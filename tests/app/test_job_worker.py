"""Job workers: models by name, notifications, start and stop."""

import threading
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import pytest

import headrace
from cases import for_each
from headrace.app.job_components import JobLocations
from headrace.app.job_worker import ServedModels, job_repository, open_worker
from headrace.app.server_options import WorkerListenerOptions
from headrace.config.jobs_file import JobsFile
from headrace.core.errors import ModelLoadError, ModelNotFoundError, ModelNotReadyError, StoppedError
from headrace.core.statistics import InstanceDeath
from headrace.engine.engine import Engine
from headrace.engine.settings import ServeSettings
from headrace.jobs.notify.deliverer import Deliverer
from headrace.jobs.worker import WorkerSettings
from headrace.jobs.worker_registry import ModelCrash, WorkerState
from integration.command import DOUBLE
from server.support_observe import samples, value
from servers.polling import wait_until


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "double.py"
    path.write_text(DOUBLE)
    return str(path)


def test_unknown_model_is_refused_with_the_known_models(model):
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


def test_model_without_instances_is_not_ready(model, monkeypatch):
    """Regression: its jobs failed as crashes, although another worker could have run them."""
    repository = job_repository([model], ServeSettings(), None, "thread", concurrency=2)
    repository.start()
    try:
        monkeypatch.setattr(Engine, "lost_reason", "all processes died")
        with pytest.raises(ModelNotReadyError, match="no instance"):
            ServedModels(repository).predictor("double")
    finally:
        repository.stop(drain=False)


def test_models_run_with_the_chosen_isolation(model):
    for isolation in ("process", "thread"):
        repository = job_repository([model], ServeSettings(), None, isolation, concurrency=2)
        assert [d.settings.isolation for d in repository.definitions()] == [isolation]


def test_worker_without_configuration_file_delivers_no_notifications(model, tmp_path):
    """Without the mail server and network rules, it would refuse notifications permanently."""
    locations = JobLocations.folder(tmp_path / "data")
    plain, configured = open_worker([model], locations), open_worker([model], locations, file=JobsFile())
    assert not any(isinstance(service, Deliverer) for service in plain.components.services)
    assert any(isinstance(service, Deliverer) for service in configured.components.services)
    # It could sign no webhook without the encryption key.
    apart = JobLocations(f"sqlite:///{tmp_path}/jobs.db", f"{tmp_path}/objects/")
    keyless = open_worker([model], apart, file=JobsFile())
    assert not any(isinstance(service, Deliverer) for service in keyless.components.services)


def test_failed_start_stops_the_worker(model, tmp_path):
    locations = JobLocations.folder(tmp_path / "data")
    settings = WorkerSettings(name="w", stop_s=1.0)
    worker = open_worker([model], locations, settings=settings, isolation="thread")
    worker.start()
    assert worker.repository.ready
    worker.stop()
    assert worker.repository.versions("double") == ()
    (tmp_path / "double.py").write_text("raise RuntimeError('no')")
    with pytest.raises(Exception, match="no"):
        open_worker([model], locations, settings=settings, isolation="thread").start()


def test_worker_reports_its_figures_and_the_last_crash(model, tmp_path, monkeypatch):
    opened = open_worker(
        [model],
        JobLocations.folder(tmp_path / "data"),
        settings=WorkerSettings(name="w", heartbeat_s=0.05, concurrency=3),
        isolation="thread",
    )
    ledger = opened.components.ledger
    opened.start()
    try:
        (first,) = ledger.workers()
        assert (first.info.name, first.info.version, first.info.slots) == ("w", headrace.__version__, 3)
        assert first.info.models == ("double", "double@1")
        assert first.report.ready
        assert first.report.last_crash is None
        assert first.report.memory_bytes is None or first.report.memory_bytes > 1 << 20
        monkeypatch.setattr(Engine, "last_death", InstanceDeath("double", "oom", "no memory", 7))
        wait_until(lambda: ledger.worker("w").report.last_crash, "a report of the crash")
        assert ledger.worker("w").report.last_crash == ModelCrash("double", "oom", "no memory", 7)
    finally:
        opened.worker.stop(drain=False)
        assert ledger.worker("w").state is WorkerState.STOPPED
        opened.stop(drain=False)


def test_unreadable_model_is_refused(tmp_path):
    with pytest.raises(ModelLoadError, match="cannot be read"):
        open_worker(["nowhere.py"], JobLocations.folder(tmp_path / "data"))


def get(url):
    """Return the status and the text of a response."""
    try:
        with urlopen(url, timeout=30) as response:
            return response.status, response.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def test_worker_shows_its_metrics_and_health(model, tmp_path):
    options = WorkerListenerOptions(metrics_port=0)
    locations = JobLocations.folder(tmp_path / "data")
    worker = open_worker([model], locations, isolation="thread", listener=options)
    worker.start()
    try:
        url = worker.listener.address
        status, text = get(f"{url}/metrics")
        assert status == 200
        found = samples(text)
        assert value(found, "headrace_worker_slots", worker=worker.worker.settings.name) == 8
        assert value(found, "headrace_ledger_up") == 1
        assert value(found, "headrace_model_ready", model="double", version="1") == 1
        assert not any(name.startswith("headrace_jobs") for name, _ in found), "another process has these"
        assert get(f"{url}/v1/health/live") == get(f"{url}/v1/health/ready") == (200, '{"status":"ok"}')
        assert get(f"{url}/v1/jobs")[0] == 404
    finally:
        worker.stop(drain=False)
    with pytest.raises(URLError):
        get(f"{url}/metrics")


def test_worker_is_ready_once_it_runs_until_it_stops(model, tmp_path):
    worker = open_worker([model], JobLocations.folder(tmp_path / "data"), isolation="thread")
    assert worker.listener is None, "two workers of one machine must not need the same port"
    with pytest.raises(StoppedError, match="starting"):
        worker.health.check()
    worker.start()
    try:
        worker.health.check()
    finally:
        worker.stop(drain=False)
    with pytest.raises(StoppedError, match="stopping"):
        worker.health.check()


@for_each(("most", "scales"), [(4, True), (None, False)])
def test_worker_scales_the_models_that_have_a_range(model, tmp_path, most, scales):
    def scalers():
        return [t for t in threading.enumerate() if t.name == "headrace-instances"]

    locations = JobLocations.folder(tmp_path / "data")
    worker = open_worker([model], locations, serving=ServeSettings(instances_max=most), isolation="thread")
    worker.start()
    try:
        assert bool(scalers()) is scales
    finally:
        worker.stop(drain=False)
    assert scalers() == []
