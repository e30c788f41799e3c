import numpy as np
import pytest

from headrace.core.errors import ModelInputError
from headrace.core.tensor import InferRequest, Tensor, datatype_of, dtype_of, text_array


@pytest.mark.parametrize(
    "dtype", ["bool", "uint8", "int16", "uint32", "int64", "float16", "float32", "float64"]
)
def test_every_numpy_type_has_a_datatype_and_back(dtype):
    assert dtype_of(datatype_of(np.dtype(dtype))) == np.dtype(dtype)


@pytest.mark.parametrize("dtype", ["S3", "U3", object])
def test_strings_are_bytes_tensors(dtype):
    assert datatype_of(np.dtype(dtype)) == "BYTES"


def test_text_is_kept_as_it_is():
    """Numpy's own kinds of text would cut zero bytes off, and make all as long as the longest."""
    made = text_array(["a", b"b\0", None])
    assert (made.dtype, made.tolist()) == (object, ["a", b"b\0", None])
    assert text_array([]).shape == (0,)


def test_a_type_that_no_protocol_carries_is_refused():
    with pytest.raises(TypeError, match="complex64"):
        datatype_of(np.dtype("complex64"))
    with pytest.raises(TypeError, match=r"FP8.*known are.*FP32"):
        dtype_of("FP8")


def test_rows_are_the_first_axis_of_every_input():
    assert InferRequest((Tensor("a", np.zeros((3, 2))), Tensor("b", np.zeros(3)))).rows == 3
    with pytest.raises(ModelInputError, match="a: 3, b: 2"):
        _ = InferRequest((Tensor("a", np.zeros((3, 2))), Tensor("b", np.zeros(2)))).rows
    with pytest.raises(ModelInputError, match="at least one"):
        _ = InferRequest(()).rows
