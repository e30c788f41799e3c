"""Generated signatures, and results of any form by name."""

import inspect
from dataclasses import dataclass
from typing import NamedTuple

import pytest

from cases import for_each
from headrace.core.model import Model
from headrace.core.tensor import TensorSpec
from headrace.engine.inputs import ModelInputs
from headrace.runtimes.model_io import outputs_by_name, predict_with_signature


class Pair(NamedTuple):
    a: int
    b: int


@dataclass
class Data:
    a: int
    b: int | None


def is_int(value):
    return isinstance(value, int)


@for_each(
    ("result", "named"),
    [
        (1, {"output": 1}),
        ((1, 2), {"output_0": 1, "output_1": 2}),
        ([1, None], {"output_0": 1}),
        ({"x": 1, 2: 3, "no": None}, {"x": 1, "2": 3}),
        (Pair(1, 2), {"a": 1, "b": 2}),
        (Data(1, None), {"a": 1}),
    ],
)
def test_outputs_are_named(result, named):
    assert outputs_by_name(result, is_int) == named


def test_unsupported_result_is_refused():
    with pytest.raises(TypeError, match="the module returned a str: it must return tensors"):
        outputs_by_name("text", is_int)


def test_engine_reads_the_signature():
    model = Model()
    model.predict = predict_with_signature(dict, ["x", "y"], ["scale"])
    inputs = ModelInputs.of(model, "m")
    assert inputs.specs == (TensorSpec("x", "FP32"), TensorSpec("y", "FP32"))
    assert inputs.optional == ("scale",)
    assert inputs.call(model.predict, {"y": 2, "x": 1}) == {"x": 1, "y": 2}


def test_unnamed_inputs_accept_any_name():
    predict = predict_with_signature(dict, [], [])
    assert predict(a=1) == {"a": 1}
    assert next(iter(inspect.signature(predict).parameters.values())).kind is inspect.Parameter.VAR_KEYWORD
