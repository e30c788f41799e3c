"""The end of a loaded model: by `close`, or with its last reference."""

import gc
import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest
from apache_beam.ml.inference.base import KeyedModelHandler, KeyModelMapping, RunInference
from apache_beam.utils.shared import Shared

from contrib.beam.support import create, expect_results, pipeline, rows
from headrace import InferRequest, Model, Tensor
from headrace.beam import ModelHandler
from headrace.contrib.beam.elements import ONLY_INPUT
from headrace.contrib.beam.loaded_model import CLOSE_WAIT_S
from headrace.core.errors import ConfigError, ModelInputError, StoppedError


class Identity(Model):
    closed = threading.Event()

    def predict(self, x):
        return x

    def close(self):
        self.closed.set()


class OtherIdentity(Identity):
    closed = threading.Event()


class Steps(Model):
    def step(self, states, x):
        return x


class Streams(Model):
    def predict_stream(self, requests):
        yield from requests


class HangsOnClose(Model):
    released = threading.Event()

    def predict(self, x):
        return x

    def close(self):
        self.released.wait(60)


def request_of(values, name=ONLY_INPUT):
    return InferRequest((Tensor(name, np.asarray(values, np.float32)),))


def headrace_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("headrace-")}


def test_last_reference_stops_the_model():
    before = headrace_threads()
    Identity.closed.clear()
    loaded = ModelHandler(Identity).load_model()
    other = loaded
    assert headrace_threads() > before
    del loaded
    assert not Identity.closed.is_set()
    assert other.infer([request_of([1])]).each[0]["output"].tolist() == [1]
    del other
    gc.collect()
    assert Identity.closed.is_set()
    assert headrace_threads() == before


def test_close_is_idempotent():
    loaded = ModelHandler(Identity).load_model()
    loaded.close()
    loaded.close()
    with pytest.raises(StoppedError):
        loaded.infer([request_of([1])])


def test_evicted_model_is_closed():
    # Without a batch size, a model would be loaded to find its row limit.
    one, other = (ModelHandler(model, max_batch_size=4) for model in (Identity, OtherIdentity))
    Identity.closed.clear()
    handler = KeyedModelHandler(
        [KeyModelMapping(["a"], one), KeyModelMapping(["b"], other)], max_models_per_worker_hint=1
    )
    with pipeline() as p:
        results = create(p, [("a", rows(1)[0]), ("b", rows(2)[0])]) | RunInference(handler)
        expect_results(results, [("a", (1, 1)), ("b", (2, 2))])
    assert Identity.closed.is_set()


def test_replaced_model_is_closed():
    handler = ModelHandler(Identity)
    Identity.closed.clear()
    shared = Shared()
    shared.acquire(handler.load_model, tag="old")
    handler.update_model_path(f"{__file__}:OtherIdentity")
    assert not Identity.closed.is_set()
    shared.acquire(handler.load_model, tag="new").close()
    assert Identity.closed.is_set()


def test_hanging_close_is_bounded(monkeypatch):
    assert CLOSE_WAIT_S < 10
    monkeypatch.setattr("headrace.contrib.beam.loaded_model.CLOSE_WAIT_S", 0.05)
    HangsOnClose.released.clear()
    ModelHandler(HangsOnClose).load_model().close()
    ending = [thread for thread in threading.enumerate() if thread.name == "headrace-beam-end"]
    HangsOnClose.released.set()
    for thread in ending:
        thread.join(10)
    assert len(ending) == 1


def test_process_exit_closes_the_model(tmp_path):
    code = """
import sys
from headrace import Model
from headrace.beam import ModelHandler

class Identity(Model):
    def predict(self, x):
        return x

    def close(self):
        print("closed", flush=True)

loaded = ModelHandler(Identity).load_model()
"""
    completed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (completed.returncode, completed.stdout) == (0, "closed\n"), completed.stderr


def test_errors_are_picklable_values():
    loaded = ModelHandler(Identity).load_model()
    try:
        responses = loaded.infer([request_of([1]), request_of([1], "y")])
    finally:
        loaded.close()
    again = pickle.loads(pickle.dumps(responses))
    assert (again.model_id, again.each[0]["output"].tolist()) == ("Identity", [1])
    assert isinstance(again.each[1], ModelInputError)
    assert "input 'x' is missing" in str(again.each[1])


@pytest.mark.parametrize(("model", "why"), [(Steps, "works on sequences"), (Streams, "serves only streams")])
def test_sequence_and_stream_models_are_refused_and_closed(model, why):
    before = headrace_threads()
    with pytest.raises(ConfigError, match=why):
        ModelHandler(model).load_model()
    assert headrace_threads() == before
