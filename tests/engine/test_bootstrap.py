"""What is told while a process starts comes out as it went in, through JSON."""

from math import inf

import orjson
import pytest

from headrace.core import Model, ModelMetadata, ModelRecipe, TensorSpec
from headrace.core.sequence import SequenceLimits
from headrace.engine.bootstrap import Bootstrap, loaded_of, loaded_values
from headrace.engine.inputs import ModelInputs
from headrace.engine.settings import ServeSettings
from headrace.testing import EchoModel


def _through_json(values):
    return orjson.loads(orjson.dumps(values))


@pytest.mark.parametrize("names", [None, (), ("A", "B")])
def test_a_bootstrap_comes_out_as_it_went_in(names):
    boot = Bootstrap(
        recipe=ModelRecipe("a.b:c", {"x": [1, "y", None]}),
        name="m",
        version=None,
        fingerprint="f",
        settings=ServeSettings(
            isolation="process",
            max_batch_rows=7,
            call_timeout_s=2.5,
            environ_pass=names,
            sequences={"idle_ms": inf, "time_ms_max": None, "live_max": 3},
        ),
        log_level=20,
        parent_pid=1,
    )
    assert Bootstrap.of(_through_json(boot.values())) == boot


class _Declared(EchoModel):
    inputs = (TensorSpec("x", "FP32", (-1, 3)), TensorSpec("t", "BYTES"))

    def predict(self, x, t, mode=None):
        return x


class _Exact(EchoModel):
    """Of its inputs everything but the rows is fixed."""

    inputs = (TensorSpec("x", "FP64", (-1, 3)), TensorSpec("n", "INT8", (-1,)))

    def predict(self, x, n):
        return x


class _Any(Model):
    def predict(self, *args):
        return args[0]


@pytest.mark.parametrize("model", [EchoModel(), _Declared(), _Exact(), _Any()])
def test_what_is_known_of_a_model_comes_out_as_it_went_in(model):
    """Requests are checked here by what was read from the model's signature there."""
    inputs = ModelInputs.of(model, "m")
    metadata = ModelMetadata(
        "m", None, inputs=inputs.specs, outputs=(TensorSpec("o", "INT8", (-1,)),), streams=True
    )
    limits = SequenceLimits(5, inf, 7.5, evict_idle_ms=None, interleave=True)
    found = loaded_of(_through_json(loaded_values(metadata, inputs, limits)))
    assert found == (metadata, inputs, limits)
