"""Who ends a loaded model: nobody but the last reference to it, or whoever closes it."""

import gc
import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest
from apache_beam.ml.inference.base import KeyedModelHandler, KeyModelMapping, RunInference
from apache_beam.utils.shared import Shared

from beam.support import created, holds, pipeline, rows
from headrace import InferRequest, Model, Tensor
from headrace.beam import ModelHandler
from headrace.beam.elements import ONLY_INPUT
from headrace.beam.loaded import CLOSE_WAIT_S
from headrace.core.errors import ConfigError, ModelInputError, StoppedError


class Same(Model):
    closed = threading.Event()

    def predict(self, x):
        return x

    def close(self):
        self.closed.set()


class Other(Same):
    closed = threading.Event()


class Steps(Model):
    def step(self, states, x):
        return x


class Streams(Model):
    def predict_stream(self, requests):
        yield from requests


class HangsAtItsEnd(Model):
    may_end = threading.Event()

    def predict(self, x):
        return x

    def close(self):
        self.may_end.wait(60)


def request_of(values, name=ONLY_INPUT):
    return InferRequest((Tensor(name, np.asarray(values, np.float32)),))


def our_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("headrace-")}


def test_it_ends_with_the_last_reference():
    before = our_threads()
    Same.closed.clear()
    loaded = ModelHandler(Same).load_model()
    other = loaded
    assert our_threads() > before
    del loaded
    assert not Same.closed.is_set()
    assert other.answer([request_of([1])]).each[0]["output"].tolist() == [1]
    del other
    gc.collect()
    assert Same.closed.is_set()
    assert our_threads() == before


def test_it_may_be_closed_before_and_twice():
    loaded = ModelHandler(Same).load_model()
    loaded.close()
    loaded.close()
    with pytest.raises(StoppedError):
        loaded.answer([request_of([1])])


def test_a_model_that_makes_room_for_another_is_closed():
    # With a size of batches none is loaded to look at it.
    one, other = (ModelHandler(model, max_batch_size=4) for model in (Same, Other))
    Same.closed.clear()
    handler = KeyedModelHandler(
        [KeyModelMapping(["a"], one), KeyModelMapping(["b"], other)], max_models_per_worker_hint=1
    )
    with pipeline() as p:
        results = created(p, [("a", rows(1)[0]), ("b", rows(2)[0])]) | RunInference(handler)
        holds(results, [("a", (1, 1)), ("b", (2, 2))])
    assert Same.closed.is_set()


def test_a_model_that_was_updated_is_closed():
    handler = ModelHandler(Same)
    Same.closed.clear()
    shared = Shared()
    shared.acquire(handler.load_model, tag="old")
    handler.update_model_path(f"{__file__}:Other")
    assert not Same.closed.is_set()
    shared.acquire(handler.load_model, tag="new").close()
    assert Same.closed.is_set()


def test_a_model_that_hangs_holds_nobody_for_ever(monkeypatch):
    assert CLOSE_WAIT_S < 10
    monkeypatch.setattr("headrace.beam.loaded.CLOSE_WAIT_S", 0.05)
    HangsAtItsEnd.may_end.clear()
    ModelHandler(HangsAtItsEnd).load_model().close()
    ending = [thread for thread in threading.enumerate() if thread.name == "headrace-beam-end"]
    HangsAtItsEnd.may_end.set()
    for thread in ending:
        thread.join(10)
    assert len(ending) == 1


def test_a_process_that_ends_closes_what_it_has(tmp_path):
    code = """
import sys
from headrace import Model
from headrace.beam import ModelHandler

class Told(Model):
    def predict(self, x):
        return x

    def close(self):
        print("closed", flush=True)

loaded = ModelHandler(Told).load_model()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "closed\n"), done.stderr


def test_what_fails_is_a_value_that_crosses_processes():
    loaded = ModelHandler(Same).load_model()
    try:
        answers = loaded.answer([request_of([1]), request_of([1], "y")])
    finally:
        loaded.close()
    again = pickle.loads(pickle.dumps(answers))
    assert (again.model_id, again.each[0]["output"].tolist()) == ("Same", [1])
    assert isinstance(again.each[1], ModelInputError)
    assert "input 'x' is missing" in str(again.each[1])


@pytest.mark.parametrize(
    ("model", "why"), [(Steps, "belongs to sequences"), (Streams, "answers streams only")]
)
def test_models_that_need_an_order_are_refused_and_closed(model, why):
    before = our_threads()
    with pytest.raises(ConfigError, match=why):
        ModelHandler(model).load_model()
    assert our_threads() == before
