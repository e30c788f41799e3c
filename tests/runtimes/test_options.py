"""Options: plain values, known names, and specs of tensors."""

import math
from pathlib import Path

import pytest

from cases import for_each
from headrace.core.errors import ConfigError
from headrace.core.tensor import TensorSpec
from headrace.runtimes.load import keyword_arguments, option_names, plain_options
from headrace.runtimes.model_io import tensor_specs


def test_options_become_plain_copies():
    given = {"a": (1, 2), "b": {"c": [True, None, 1.5, "x"]}}
    plain = plain_options(given, "m")
    assert plain == {"a": [1, 2], "b": {"c": [True, None, 1.5, "x"]}}
    given["b"]["c"].clear()
    assert plain["b"]["c"]
    assert plain_options(None, "m") == plain_options({}, "m") == {}


@for_each("value", [object(), {1: 2}, [Path("x")], {"a": {"b": {3}}}, 1 << 70, "\ud800"])
def test_non_json_value_is_named(value):
    with pytest.raises(ConfigError, match="m: option 'bad' must be a plain value"):
        plain_options({"fine": 1, "bad": value}, "m")


def test_nan_becomes_none():
    assert plain_options({"a": math.nan}, "m") == {"a": None}


class Configured:
    def __init__(self, path, *, class_=None, threads=1):
        self.got = (path, class_, threads)


def test_options_are_constructor_keywords():
    assert option_names(Configured) == ("path", "class", "threads")
    assert option_names(lambda **anything: anything) is None
    assert keyword_arguments({"class": "x", "threads": 2}, option_names(Configured), "m") == {
        "class_": "x",
        "threads": 2,
    }
    assert keyword_arguments({"whatever": 1}, None, "m") == {"whatever": 1}


@for_each(("known", "has"), [(("a", "b"), "it has a, b"), ((), "it has none")])
def test_unknown_option_lists_known_ones(known, has):
    with pytest.raises(ConfigError, match=f"m has no option 'x', 'y'; {has}"):
        keyword_arguments({"x": 1, "y": 2}, known, "m")


def test_specs_are_read_from_plain_values():
    option = [
        {"name": "x", "shape": [-1, 4]},
        {"name": "t", "datatype": "BYTES"},
        TensorSpec("s", "BF16", (-1,)),
    ]
    assert tensor_specs(option, "inputs", "m") == (
        TensorSpec("x", "FP32", (-1, 4)),
        TensorSpec("t", "BYTES"),
        TensorSpec("s", "BF16", (-1,)),
    )
    assert tensor_specs([{"name": "b", "datatype": "BF16"}], "inputs", "m") == (TensorSpec("b", "BF16"),)
    assert tensor_specs(None, "inputs", "m") == ()


@for_each(
    "option",
    [
        "x",
        {"name": "x"},
        ["x"],
        [{}],
        [{"name": 1}],
        [{"name": "x", "dtype": "FP32"}],
        [{"name": "x", "datatype": "float"}],
        [{"name": "x", "datatype": 3}],
        [{"name": "x", "shape": 3}],
        [{"name": "x", "shape": []}],
        [{"name": "x", "shape": [-2]}],
        [{"name": "x", "shape": [True]}],
    ],
)
def test_invalid_specs_show_an_example(option):
    with pytest.raises(ConfigError, match=r"m: option 'inputs' must be a list such as \[\{name"):
        tensor_specs(option, "inputs", "m")
