"""The choice of a transform's runner, and the regions of data and workers."""

import pickle
from pathlib import Path

import pytest

from cases import for_each
from headrace.app.models import PredictorOptions, open_predictor
from headrace.app.runners import BeamWorkers, DataRegions, RayWorkers, Workers, instance_options, open_runner
from headrace.core.errors import ConfigError
from headrace.runners.processes import ProcessRunner
from headrace.runs.ledger import Ledger
from headrace.runs.settings import TransformSettings
from headrace.runs.tasks import InProcessRunner, Locality
from headrace.storage.regions import RegionRules
from headrace.storage.resolve import Stores

MODEL = "import headrace\n\n\nclass Twice(headrace.Model):\n    def predict(self, x):\n        return x * 2\n"


@pytest.fixture
def model(tmp_path) -> str:
    (tmp_path / "twice.py").write_text(MODEL)
    return str(tmp_path / "twice.py")


def runner_of(
    workers,
    model: str,
    *,
    locality: Locality | None = None,
    stores: Stores | None = None,
    destination: str = "out",
):
    options = PredictorOptions()
    return open_runner(
        workers,
        open_predictor(model, None, options),
        destination=destination,
        model=model,
        endpoint=None,
        settings=TransformSettings(),
        options=options,
        stores=stores or Stores(),
        locality=locality or Locality(),
    )[0]


@for_each(
    ("settings", "message"),
    [({"count": 0}, "1 or more, not 0"), ({"isolation": "cluster"}, "thread or process, not 'cluster'")],
)
def test_invalid_workers_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        Workers(**settings)


def test_worker_threads_are_instances_of_one_predictor():
    options = PredictorOptions(instances=3)
    assert instance_options(Workers(), options) is options
    assert instance_options(Workers(5), options).instances == 5
    assert instance_options(Workers(5, "process"), options) is options
    assert instance_options(RayWorkers(5), options) is options


def test_isolation_selects_the_runner(model):
    assert isinstance(runner_of(Workers(2), model), InProcessRunner)
    assert isinstance(runner_of(Workers(1, "process"), model), ProcessRunner)


def test_local_workers_need_a_declared_region(model):
    anywhere = Locality(None, "never")
    for workers in (Workers(), Workers(1, "process")):
        with pytest.raises(ConfigError, match="the worker has no region"):
            runner_of(workers, model, locality=anywhere)


@pytest.mark.slow
def test_ray_workers_need_no_declared_region(model):
    pytest.importorskip("ray")
    assert runner_of(RayWorkers(), model, locality=Locality(None, "never"))


@pytest.mark.slow
def test_pipeline_description_contains_no_secret_and_no_model(model, tmp_path):
    """Beam shows the description to many users and limits its size."""
    pytest.importorskip("apache_beam")
    secret, stores = "s3cr3t", Stores({"AWS_SECRET_ACCESS_KEY": "s3cr3t"})
    for workers in (BeamWorkers(), BeamWorkers(("--runner=FlinkRunner",))):
        runner = runner_of(workers, model, stores=stores, destination=f"{tmp_path}/out/")
        described = pickle.dumps(runner._opener)
        assert secret.encode() not in described
        assert b"return x * 2" not in described
        assert runner._environ["AWS_SECRET_ACCESS_KEY"] == secret
    # Workers on other machines read the model from a draft beside the ledger.
    ledger = Ledger(stores.for_uri(f"{tmp_path}/out/"), f"{tmp_path}/out/")
    runner._prepare(ledger)
    there = runner._opener.copy.get(stores).unpack(tmp_path / "there")
    assert Path(there).read_text() == MODEL
    ledger.finish({})
    assert not list(stores.for_uri(f"{tmp_path}/").list(ledger.uri("drafts/")))


def test_regions_are_resolved_only_with_a_region_or_rules():
    uri, stores = "memory://b/x", Stores()
    assert DataRegions().region_of(stores)(uri) is None
    rules = RegionRules.parse(["memory://b/=eu"], ask_buckets=False)
    assert DataRegions(rules).region_of(stores)(uri) == "eu"
    assert DataRegions(RegionRules(ask_buckets=False), region="us").region_of(stores)(uri) is None
    assert DataRegions(rules, "us", "never").locality == Locality("us", "never")
