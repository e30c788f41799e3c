"""Errors for model classes without a usable method: each names the class, its file and the correction."""

import asyncio

import pytest

from cases import for_each
from engine.support import WAIT_S, request, running, serving
from headrace.core.errors import ModelInputError, ModelLoadError
from headrace.runtimes.load import model_factory

NO_METHOD = "has no predict, no predict_stream, no handle and no step"


def _factory(folder, body):
    path = folder / "churn.py"
    path.write_text(f"from headrace import Model\n\nclass Churn(Model):\n    {body}\n")
    return model_factory(str(path)).make


def _load_error(folder, body):
    """Return the error with which both engines, with and without shared batches, refuse the class."""
    reasons = set()
    for start in (running, serving):
        with pytest.raises(ModelLoadError) as caught, start(_factory(folder, body)):
            pass
        reasons.add(str(caught.value))
    (reason,) = reasons
    return reason


@for_each(
    ("body", "reason"),
    [
        ("pass", f"{NO_METHOD}: write def predict(self, x), which returns one row for each row of x"),
        ("def fit(self, x): return x", f"{NO_METHOD}: write def predict(self, x)"),
        ("def Predict(self, x): return x", f"{NO_METHOD}: rename its Predict to predict"),
        ("def prediction(self, x): return x", f"{NO_METHOD}: rename its prediction to predict"),
        (
            "def predict_steam(self, requests): yield",
            f"{NO_METHOD}: rename its predict_steam to predict_stream",
        ),
        ("@staticmethod\n    def Step(states, x): return x", f"{NO_METHOD}: rename its Step to step"),
    ],
)
def test_class_without_method_does_not_load(tmp_path, body, reason):
    assert f"model m: class Churn ({tmp_path}/churn.py) {reason}" in _load_error(tmp_path, body)


@for_each(
    ("body", "value", "example"),
    [
        ("predict = 5", "5", "def predict(self, x)"),
        ("predict = None", "None", "def predict(self, x)"),
        ("predict_stream = 'x'", "'x'", "def predict_stream(self, requests)"),
        ("step = 1", "1", "def step(self, states, x)"),
    ],
)
def test_attribute_in_place_of_method_does_not_load(tmp_path, body, value, example):
    name = body.partition(" ")[0]
    expected = f"{name} of class Churn ({tmp_path}/churn.py) is {value}, not a method: write {example}"
    assert expected in _load_error(tmp_path, body)


def test_class_that_only_streams_refuses_records(tmp_path):
    make = _factory(tmp_path, "def predict_stream(self, requests):\n        yield {'y': [1]}")
    reason = (
        "model m: its class Churn has a predict_stream but no predict, which records, files and jobs need: "
        "write def predict(self, x), or serve the model"
    )
    with running(make) as engine, pytest.raises(ModelInputError) as caught:
        engine.submit(request()).result(WAIT_S)
    assert reason in str(caught.value)
    with serving(make) as engine, pytest.raises(ModelInputError) as caught:
        asyncio.run(engine.infer(request()))
    assert reason in str(caught.value)
