"""Values of one tensor: exact round trips, and refusals before any allocation."""

import math
import struct

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cases import for_each
from headrace.core.errors import ConfigError, DataError
from headrace.core.tensor import dtype_of
from headrace.protocols.tensors import (
    array_from_binary,
    array_from_json,
    bf16_from_float32,
    binary_values,
    float32_from_bf16,
    json_values,
    validate_datatype,
    validate_shape,
)

NUMERIC = [
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64",
]  # fmt: skip
SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)


@st.composite
def numeric(draw, *, finite: bool):
    datatype = draw(st.sampled_from(NUMERIC))
    dtype = dtype_of(datatype)
    elements = {"allow_infinity": False} if finite and dtype.kind == "f" else {}
    return datatype, draw(hnp.arrays(dtype, draw(SHAPES), elements=elements or None))


def texts(values, kind):
    made = np.empty(len(values), object)
    made[:] = values
    return made


def assert_decoded_or_refused(make, shape):
    """Expect an array of that shape, or a DataError about x."""
    try:
        made = make()
    except DataError as refusal:
        made = refusal
    assert getattr(made, "shape", None) == shape or "tensor 'x'" in str(made)


def by_json(datatype, array):
    data = orjson.loads(orjson.dumps(json_values("x", datatype, array), option=orjson.OPT_SERIALIZE_NUMPY))
    return array_from_json("x", datatype, array.shape, data)


def by_binary(datatype, array):
    return array_from_binary(
        "x", datatype, array.shape, memoryview(b"".join([binary_values("x", datatype, array)]))
    )


@given(numeric(finite=True))
def test_numbers_round_trip_json_exactly_except_nan_bits(given_):
    datatype, array = given_
    found = by_json(datatype, array)
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)


@given(numeric(finite=False))
def test_numbers_round_trip_binary_exactly(given_):
    datatype, array = given_
    found = by_binary(datatype, array)
    assert (found.dtype, found.shape, found.tobytes()) == (array.dtype, array.shape, array.tobytes())


@given(numeric(finite=False), st.data())
def test_views_of_any_order_encode_row_major(given_, data):
    datatype, array = given_
    view = array.transpose(data.draw(st.permutations(range(array.ndim))))
    np.testing.assert_array_equal(by_binary(datatype, view), view)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), max_size=6))
def test_text_round_trips_json_and_binary(values):
    array = texts(values, str)
    assert by_json("BYTES", array).tolist() == values
    assert [v.decode() for v in by_binary("BYTES", array)] == values


@given(st.lists(st.binary(max_size=8), max_size=6))
def test_bytes_round_trip_binary(values):
    assert by_binary("BYTES", texts(values, bytes)).tolist() == values


@given(st.sampled_from([*NUMERIC, "BYTES", "BF16"]), SHAPES, st.binary(max_size=64))
def test_any_bytes_decode_to_the_shape_or_raise(datatype, shape, data):
    assert_decoded_or_refused(lambda: array_from_binary("x", datatype, shape, memoryview(data)), shape)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=8,
)


@given(st.sampled_from([*NUMERIC, "BYTES", "BF16"]), SHAPES, JSON)
def test_any_json_decodes_to_the_shape_or_raises(datatype, shape, data):
    assert_decoded_or_refused(lambda: array_from_json("x", datatype, shape, data), shape)


def test_nested_and_flat_data_are_equal():
    nested = array_from_json("x", "INT32", (2, 2), [[1, 2], [3, 4]])
    np.testing.assert_array_equal(nested, array_from_json("x", "INT32", (2, 2), [1, 2, 3, 4]))


def test_null_is_nan_both_ways():
    assert math.isnan(array_from_json("x", "FP32", (1,), [None])[0])
    values = json_values("x", "FP32", np.array([np.nan], np.float32))
    assert orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY) == b"[null]"


@for_each(
    ("datatype", "shape", "data", "why"),
    [
        ("FP32", (2,), [1.0], "shape .2. has 2 values, but its data has 1"),
        ("FP32", (2, 1), [[1.0, 2.0]], "nested as"),
        ("FP32", (2, 2), [[1, 2], [3]], "ragged"),
        ("FP32", (2,), [1, [2]], "cannot be list"),
        ("FP32", (2,), [[1], 2], "mixes lists and values"),
        ("FP32", (1,), "1.0", "must be a list"),
        ("FP32", (1,), ["1.0"], "cannot be str"),
        ("FP32", (1,), [1e39], "too large for FP32"),
        ("FP16", (1,), [1e6], "too large for FP16"),
        ("FP64", (1,), [10**400], "too large for FP64"),
        ("INT8", (1,), [128], "out of the range of INT8"),
        ("UINT8", (1,), [-1], "out of the range of UINT8"),
        ("INT32", (1,), [1.5], "cannot have fractions"),
        ("INT32", (1,), [None], "cannot be null"),
        ("INT32", (1,), [True], "cannot be bool"),
        ("BOOL", (1,), [2], "BOOL values are"),
        ("BYTES", (1,), [1], "cannot be int"),
        ("BF16", (1,), [1.0], "send it as binary data"),
    ],
)
def test_malformed_json_names_the_tensor(datatype, shape, data, why):
    with pytest.raises(DataError, match=f"tensor 'x': .*{why}"):
        array_from_json("x", datatype, shape, data)


@for_each(
    ("datatype", "shape", "data", "why"),
    [
        ("FP32", (2,), b"1234567", "takes 8 bytes, but its binary_data_size is 7"),
        ("BYTES", (2**40,), b"", "do not fit"),
        ("BYTES", (1,), struct.pack("<I", 2**32 - 1), "declares 4294967295 bytes"),
        ("BYTES", (1,), struct.pack("<I", 1) + b"ab", "1 bytes follow its 1 elements"),
        ("BYTES", (2,), struct.pack("<I", 2) + b"abcd", "declares|ends before"),
    ],
)
def test_malformed_binary_names_the_tensor(datatype, shape, data, why):
    with pytest.raises(DataError, match=f"tensor 'x': .*({why})"):
        array_from_binary("x", datatype, shape, memoryview(data))


@for_each(
    ("shape", "why"),
    [
        (None, "must be a list"),
        ([1] * 17, "17 dimensions"),
        ([-1], "must be 0 or more"),
        ([1.5], "must be 0 or more"),
        ([-1.0], "must be 0 or more"),
        ([True], "must be 0 or more"),
        ([2**30, 2**30], "too large"),
        ([0, 2**62], "too large"),
    ],
)
def test_invalid_shapes_are_refused(shape, why):
    with pytest.raises(DataError, match=why):
        validate_shape("x", shape)


def test_whole_floats_are_sizes():
    assert validate_shape("x", [2.0, 3]) == (2, 3)
    assert all(type(size) is int for size in validate_shape("x", [2.0, 3]))


@for_each(("datatype", "value"), [("FP32", 1.5), ("INT8", -3), ("BOOL", True), ("BYTES", "text")])
def test_shape_without_axes_has_one_value(datatype, value):
    """As a list of one value, or nested as the shape says: as the value itself."""
    assert validate_shape("x", []) == ()
    for data in ([value], value):
        array = array_from_json("x", datatype, (), data)
        assert (array.shape, array.dtype, array.item()) == ((), dtype_of(datatype), value)
    for data in ([], [value, value], [[value]], None):
        with pytest.raises(DataError, match="tensor 'x'"):
            array_from_json("x", datatype, (), data)
    with pytest.raises(DataError, match="its data must be a list"):
        array_from_json("x", datatype, (1,), value)


@for_each("datatype", ["FP8", "fp32", 3, None])
def test_invalid_datatypes_are_refused(datatype):
    with pytest.raises(DataError, match="tensor 'x'"):
        validate_datatype("x", datatype)


def test_unencodable_json_names_the_element():
    with pytest.raises(DataError, match="element 1 is infinite"):
        json_values("x", "FP32", np.array([0, np.inf], np.float32))
    with pytest.raises(DataError, match="element 0 is not UTF-8"):
        json_values("x", "BYTES", texts([b"\xff"], bytes))
    with pytest.raises(DataError, match="element 0 must be bytes or str, not int"):
        json_values("x", "BYTES", texts([1], int))
    with pytest.raises(ConfigError, match="use binary tensors"):
        json_values("x", "BF16", np.zeros(1, np.uint16))


def test_unencodable_binary_names_the_element():
    with pytest.raises(DataError, match="element 1 must be bytes or str"):
        binary_values("x", "BYTES", texts(["a", None], str))
    with pytest.raises(DataError, match="element 0 has a lone surrogate"):
        binary_values("x", "BYTES", texts(["\ud800"], str))


@given(hnp.arrays(np.uint16, 8))
def test_every_bf16_round_trips_float32(bits):
    there_and_back = bf16_from_float32(float32_from_bf16(bits))
    wide = float32_from_bf16(bits)
    same = (there_and_back == bits) | np.isnan(wide)
    assert same.all()
    assert np.isnan(float32_from_bf16(there_and_back)[np.isnan(wide)]).all()


@given(
    hnp.arrays(np.float32, 8, elements={"allow_nan": False, "max_value": 2.0**126, "min_value": -(2.0**126)})
)
def test_bf16_rounds_to_nearest(values):
    rounded = float32_from_bf16(bf16_from_float32(values))
    down = float32_from_bf16((values.view(np.uint32) >> 16).astype(np.uint16))
    up = float32_from_bf16(((values.view(np.uint32) >> 16) + 1).astype(np.uint16))
    wide = values.astype(np.float64)
    nearest = np.minimum(np.abs(wide - down.astype(np.float64)), np.abs(wide - up.astype(np.float64)))
    np.testing.assert_array_equal(np.abs(wide - rounded.astype(np.float64)), nearest)
