"""A request of zero rows gets the outputs of zero rows, without a call of the model."""

import asyncio

import numpy as np
import pytest

from engine import process_models as models
from engine.support import WAIT_S, request, serving
from headrace.engine import Engine

pytestmark = pytest.mark.timeout(60)
ISOLATIONS = pytest.mark.parametrize(
    "isolation", ["inline", "thread", pytest.param("process", marks=pytest.mark.slow)]
)
NONE = np.zeros((0, 4), np.float32)
ONE = np.zeros((1, 4), np.float32)


def described(response):
    return {t.name: (t.datatype, t.data.shape) for t in response.outputs}


def infer(engine: Engine, x, **settings):
    return asyncio.run(asyncio.wait_for(engine.infer(request(x, **settings)), WAIT_S))


DECLARED = {"y": ("FP64", (0, 3)), "text": ("BYTES", (0, 0))}


@ISOLATIONS
def test_declared_outputs_have_zero_rows(isolation):
    with serving(models.Declared, isolation=isolation) as engine:
        assert described(infer(engine, NONE)) == DECLARED
        assert described(infer(engine, NONE, outputs=("text",))) == {"text": ("BYTES", (0, 0))}
        assert described(engine.submit(request(NONE)).result(WAIT_S)) == DECLARED
        assert engine.model_statistics().compute_infer.count == 0


@pytest.mark.parametrize("isolation", ["thread", pytest.param("process", marks=pytest.mark.slow)])
def test_declared_outputs_of_steps_have_zero_rows(isolation):
    with serving(models.DeclaredSteps, isolation=isolation) as engine:
        start = {"sequence_id": "a", "sequence_start": True}
        assert described(infer(engine, NONE)) == DECLARED
        assert described(engine.submit(request(NONE)).result(WAIT_S)) == DECLARED
        response = infer(engine, NONE, parameters=start)
        assert (described(response), response.parameters["sequence_id"]) == (DECLARED, "a")
        assert described(infer(engine, ONE, parameters={"sequence_id": "a"}))["y"] == ("FP64", (1, 3))


@ISOLATIONS
def test_undeclared_outputs_are_known_after_a_response(isolation):
    """Of any instance. The model is not called for them."""
    instances = 1 if isolation == "inline" else 2
    with serving(models.Undeclared, isolation=isolation, instances=instances) as engine:
        assert described(infer(engine, NONE)) == {}
        infer(engine, ONE)
        known = {"y": ("FP64", (0, 3)), "text": ("BYTES", (0, 2))}
        for _ in range(8):
            assert described(infer(engine, NONE)) == known
