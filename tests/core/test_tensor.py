import copy
import pickle
from dataclasses import fields, replace

import numpy as np
import pytest

from cases import for_each
from headrace.core.errors import ModelInputError
from headrace.core.frozen import statically_frozen
from headrace.core.tensor import InferRequest, Tensor, datatype_of, dtype_of, text_array


@for_each("dtype", ["bool", "uint8", "int16", "uint32", "int64", "float16", "float32", "float64"])
def test_datatype_round_trip(dtype):
    assert dtype_of(datatype_of(np.dtype(dtype))) == np.dtype(dtype)


@for_each("dtype", ["S3", "U3", object])
def test_strings_have_datatype_bytes(dtype):
    assert datatype_of(np.dtype(dtype)) == "BYTES"


def test_text_array_keeps_its_values():
    """numpy's own conversion would strip zero bytes and pad to the longest."""
    made = text_array(["a", b"b\0", None])
    assert (made.dtype, made.tolist()) == (object, ["a", b"b\0", None])
    assert text_array([]).shape == (0,)


def test_unsupported_types_are_refused():
    with pytest.raises(TypeError, match="complex64"):
        datatype_of(np.dtype("complex64"))
    with pytest.raises(TypeError, match=r"FP8.*datatypes are.*FP32"):
        dtype_of("FP8")


def test_rows_must_agree():
    assert InferRequest((Tensor("a", np.zeros((3, 2))), Tensor("b", np.zeros(3)))).rows == 3
    with pytest.raises(ModelInputError, match="a: 3, b: 2"):
        _ = InferRequest((Tensor("a", np.zeros((3, 2))), Tensor("b", np.zeros(2)))).rows
    with pytest.raises(ModelInputError, match="at least one"):
        _ = InferRequest(()).rows


@statically_frozen
class Point:
    """A class with two numbers."""

    x: int
    y: int = 0


def test_class_is_a_dataclass_with_slots():
    point = Point(1)
    assert (point, [f.name for f in fields(point)]) == (Point(1, 0), ["x", "y"])
    assert replace(point, y=2) == Point(1, 2)
    assert not hasattr(point, "__dict__")


def test_instance_can_be_copied_and_pickled():
    point = Point(1, 2)
    assert copy.deepcopy(point) == pickle.loads(pickle.dumps(point)) == point
