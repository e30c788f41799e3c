"""Signatures made to measure, and results of any form by name."""

import inspect
from dataclasses import dataclass
from typing import NamedTuple

import pytest

from headrace.core.model import Model
from headrace.core.tensor import TensorSpec
from headrace.engine.inputs import ModelInputs
from headrace.runtimes.named import by_name, with_names


class Pair(NamedTuple):
    a: int
    b: int


@dataclass
class Data:
    a: int
    b: int | None


def is_int(value):
    return isinstance(value, int)


@pytest.mark.parametrize(
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
def test_results_by_name(result, named):
    assert by_name(result, is_int) == named


def test_what_is_no_result():
    with pytest.raises(TypeError, match="the module returned a str: return tensors"):
        by_name("text", is_int)


def test_an_engine_reads_the_names():
    model = Model()
    model.predict = with_names(dict, ["x", "y"], ["scale"])
    inputs = ModelInputs.of(model, "m")
    assert inputs.specs == (TensorSpec("x", "FP32"), TensorSpec("y", "FP32"))
    assert inputs.optional == {"scale"}
    assert inputs.call(model.predict, {"y": 2, "x": 1}) == {"x": 1, "y": 2}


def test_without_names_any_will_do():
    predict = with_names(dict, [], [])
    assert predict(a=1) == {"a": 1}
    assert next(iter(inspect.signature(predict).parameters.values())).kind is inspect.Parameter.VAR_KEYWORD
