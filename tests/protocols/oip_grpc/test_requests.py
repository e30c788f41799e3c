"""Decoding of ModelInferRequest messages, and refusal of malformed ones."""

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import levels
from cases import for_each
from headrace.core.errors import DataError, UnsupportedError
from headrace.core.tensor import DEFAULT_PRIORITY
from headrace.protocols.oip_grpc import requests
from headrace.protocols.oip_grpc.requests import decode_request
from headrace.protocols.protobuf import message_class

Request = message_class("ModelInferRequest")
NAMES = {
    "bool": ("BOOL", "bool_contents"),
    "int8": ("INT8", "int_contents"),
    "int16": ("INT16", "int_contents"),
    "int32": ("INT32", "int_contents"),
    "int64": ("INT64", "int64_contents"),
    "uint8": ("UINT8", "uint_contents"),
    "uint16": ("UINT16", "uint_contents"),
    "uint32": ("UINT32", "uint_contents"),
    "uint64": ("UINT64", "uint64_contents"),
    "float32": ("FP32", "fp32_contents"),
    "float64": ("FP64", "fp64_contents"),
}
ARRAYS = st.sampled_from(sorted(NAMES)).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
)


def message(array=None, *, datatype="FP32", shape=None, raw=None, name="x", **contents):
    made = Request(model_name="m", model_version="2", id="i")
    shape = shape if shape is not None else (array.shape if array is not None else (1,))
    tensor = made.inputs.add(name=name, datatype=datatype, shape=shape)
    if raw is not None:
        made.raw_input_contents.append(raw)
    for field, value in contents.items():
        getattr(tensor.contents, field).extend(value)
    return made


def decode(made, **settings):
    return decode_request(made.SerializeToString(), **{"now": 100.0, **settings})


def refusal(made, kind=DataError):
    with pytest.raises(kind) as caught:
        decode(made)
    return str(caught.value)


def plain_message(model="m", name="x", shape=(1, 2), values=(1.0, 2.0), id="", **more):
    """Return a message with one raw tensor."""
    message = Request(model_name=model, id=id, **more)
    message.inputs.add(name=name, datatype="FP32", shape=shape)
    message.raw_input_contents.append(np.array(values, np.float32).tobytes())
    return message.SerializeToString()


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["m", "n", "a" * 60 + "m", "a" * 60 + "n"]),
            st.sampled_from(["x", "y"]),
            st.sampled_from([(1, 2), (2, 1), (2,)]),
            st.lists(st.floats(width=32, allow_nan=False), min_size=2, max_size=2),
            st.sampled_from(["", "", "i"]),
        ),
        min_size=2,
        max_size=12,
    )
)
def test_cached_prefix_decodes_equally(messages):
    """Only values differ. Each message decodes as it does without the cache."""
    requests._PREFIXES.clear()
    for model, name, shape, values, id in messages:
        wire = decode_request(plain_message(model, name, shape, values, id), now=0.0, deadline=3.0)
        (tensor,) = wire.request.inputs
        assert (wire.model, wire.raw, tensor.name, wire.request.id) == (model, True, name, id)
        assert (tensor.data.shape, wire.request.deadline) == (shape, 3.0)
        assert tensor.data.ravel().tolist() == values
        assert tensor.data.flags.aligned


def test_prefix_is_cached_if_only_values_follow():
    requests._PREFIXES.clear()
    decode_request(plain_message(), now=0.0)
    assert len(requests._PREFIXES) == 1
    plain = plain_message()
    unknown = plain[-8:]  # An unknown field that ends with the bytes of the values.
    decode_request(plain + b"\xfa\x07\x08" + unknown, now=0.0)
    twice = plain + plain[-10:]
    with pytest.raises(DataError, match="raw_input_contents"):
        decode_request(twice, now=0.0)
    decode_request(plain_message(id="an-id"), now=0.0)
    assert len(requests._PREFIXES) == 1


def test_prefix_cache_is_bounded():
    requests._PREFIXES.clear()
    for i in range(requests._PREFIXES_MAX + 10):
        decode_request(plain_message(model=f"model-{i}"), now=0.0)
    decode_request(plain_message(name="x" * 2000), now=0.0)
    assert len(requests._PREFIXES) <= requests._PREFIXES_MAX
    assert not any(len(prefix.prefix_bytes) > 1024 for prefix in requests._PREFIXES.values())


@given(ARRAYS)
def test_raw_contents_round_trip(array):
    wire = decode(message(array, datatype=NAMES[array.dtype.name][0], raw=array.tobytes()))
    assert (wire.model, wire.version, wire.raw) == ("m", "2", True)
    assert wire.request.id == "i"
    np.testing.assert_array_equal(wire.request["x"], array)
    assert wire.request["x"].dtype == array.dtype


@given(ARRAYS)
def test_typed_contents_round_trip(array):
    datatype, field = NAMES[array.dtype.name]
    wire = decode(message(array, datatype=datatype, **{field: array.ravel().tolist()}))
    assert not wire.raw
    np.testing.assert_array_equal(wire.request["x"], array)
    assert wire.request["x"].dtype == array.dtype


def test_bytes_decode_from_raw_and_typed():
    raw = decode(message(datatype="BYTES", shape=(2,), raw=b"\2\0\0\0ab\0\0\0\0")).request["x"]
    typed = decode(message(datatype="BYTES", shape=(2,), bytes_contents=[b"ab", b""])).request["x"]
    assert raw.tolist() == typed.tolist() == [b"ab", b""]


def test_half_floats_decode_and_bf16_becomes_float32():
    half = np.array([1.5, -2], np.float16)
    assert decode(message(half, datatype="FP16", raw=half.tobytes())).request["x"].dtype == np.float16
    wide = decode(message(datatype="BF16", shape=(1,), raw=b"\x80\x3f")).request["x"]
    assert (wide.dtype, wide.tolist()) == (np.float32, [1.0])


def test_parameters_of_every_type_decode():
    made = message(raw=b"\0\0\0\0")
    made.parameters["b"].bool_param = True
    made.parameters["i"].int64_param = -5
    made.parameters["s"].string_param = "text"
    made.parameters["d"].double_param = 0.5
    made.parameters["u"].uint64_param = 2**64 - 1
    made.parameters["nothing"].Clear()
    assert decode(made).request.parameters == {"b": True, "i": -5, "s": "text", "d": 0.5, "u": 2**64 - 1}


def test_priority_and_timeout_leave_the_parameters():
    made = message(raw=b"\0\0\0\0")
    made.parameters["priority"].uint64_param = 3
    made.parameters["timeout"].int64_param = 2_500_000
    made.parameters["kept"].bool_param = True
    request = decode(made).request
    assert (request.priority, request.deadline, request.parameters) == (3, 102.5, {"kept": True})
    assert decode(made, deadline=101.0).request.deadline == 101.0
    assert decode(made, deadline=200.0).request.deadline == 102.5


def test_zero_priority_and_timeout_mean_none():
    made = message(raw=b"\0\0\0\0")
    made.parameters["priority"].uint64_param = 0
    made.parameters["timeout"].int64_param = 0
    request = decode(made).request
    assert (request.priority, request.deadline) == (DEFAULT_PRIORITY, None)


def test_empty_final_response_flag_leaves_the_parameters():
    made = message(raw=b"\0\0\0\0")
    made.parameters["triton_enable_empty_final_response"].bool_param = True
    assert decode(made).empty_final
    assert decode(made).request.parameters == {}


def test_requested_outputs_decode_to_names():
    made = message(raw=b"\0\0\0\0")
    made.outputs.add(name="a")
    made.outputs.add(name="b")
    assert decode(made).request.outputs == ("a", "b")


@for_each(
    ("made", "why"),
    [
        (Request(model_name="m"), "at least one tensor"),
        (message(raw=b"123"), "takes 4 bytes"),
        (message(raw=b"1234", fp32_contents=[1]), "has contents, but the request has raw_input_contents"),
        (message(shape=(2,), fp32_contents=[1]), "takes 2 fp32_contents, but it has 1 fp32_contents"),
        (message(int_contents=[1]), "takes 1 fp32_contents, but it has 1 int_contents"),
        (message(fp32_contents=[1], int_contents=[1]), "1 int_contents and 1 fp32_contents"),
        (message(), "but it has no contents"),
        (message(datatype="FP16", fp32_contents=[1]), "FP16 has no typed contents"),
        (message(datatype="BF16", fp32_contents=[1]), "BF16 has no typed contents"),
        (message(datatype="FP99", fp32_contents=[1]), "unknown datatype 'FP99'"),
        (message(datatype="FP99", raw=b"1234"), "unknown datatype 'FP99'"),
        (message(datatype="INT8", int_contents=[128]), "out of the range of INT8"),
        (message(datatype="UINT16", uint_contents=[65536]), "out of the range of UINT16"),
        (message(shape=(-1,), raw=b"1234"), "must be 0 or more, not -1"),
        (message(shape=(-1, -1), raw=b"1234"), "must be 0 or more, not -1"),
        (message(shape=(), raw=b"12345678"), "takes 4 bytes, but its binary_data_size is 8"),
        (message(shape=(), fp32_contents=[1, 2]), "takes 1 fp32_contents, but it has 2"),
        (message(shape=(1,) * 17, raw=b"1234"), "the limit is 16"),
        (message(shape=(2**40, 2), raw=b"1234"), "too large"),
        (message(name="", raw=b"1234"), "has no name"),
        (message(name="x" * 5000, raw=b"1234"), "the limit is 4096"),
        (
            Request(model_name="m" * 5000, inputs=message().inputs, raw_input_contents=[b"1234"]),
            "4096 characters",
        ),
        (
            Request(inputs=[*message().inputs, *message().inputs], raw_input_contents=[b"1234"]),
            "2 inputs, but 1",
        ),
        (Request(inputs=[*message().inputs] * 2, raw_input_contents=[b"1234"] * 2), "the same name"),
    ],
)
def test_malformed_request_names_the_tensor(made, why):
    assert why in refusal(made)


@for_each(("name", "value"), [("priority", -1), ("timeout", -5)])
def test_negative_counts_are_refused(name, value):
    made = message(raw=b"\0\0\0\0")
    made.parameters[name].int64_param = value
    assert f"{name!r} must be a whole number" in refusal(made)


def test_non_numeric_priority_is_refused():
    made = message(raw=b"\0\0\0\0")
    made.parameters["priority"].string_param = "high"
    assert "not 'high'" in refusal(made)


def test_output_requested_twice_is_refused():
    made = message(raw=b"\0\0\0\0")
    made.outputs.add(name="a")
    made.outputs.add(name="a")
    assert "twice" in refusal(made)


def test_unsupported_features_are_refused():
    shared = message(shape=(1,))
    shared.inputs[0].parameters["shared_memory_region"].string_param = "r"
    assert "shared memory" in refusal(shared, UnsupportedError)
    classes = message(raw=b"\0\0\0\0")
    classes.outputs.add(name="a").parameters["classification"].int64_param = 3
    assert "classification" in refusal(classes, UnsupportedError)
    region = message(raw=b"\0\0\0\0")
    region.outputs.add(name="a").parameters["shared_memory_region"].string_param = "r"
    assert "shared memory" in refusal(region, UnsupportedError)


@pytest.mark.parametrize("bound", ["TENSORS_MAX", "PARAMETERS_MAX"])
def test_tensors_and_parameters_are_bounded(monkeypatch, bound):
    monkeypatch.setattr(requests, bound, 1)
    made = message(raw=b"\0\0\0\0")
    made.parameters["a"].bool_param = made.parameters["b"].bool_param = True
    made.inputs.add(name="z", datatype="FP32", shape=(1,))
    made.raw_input_contents.append(b"\0\0\0\0")
    assert "the limit is 1" in refusal(made)


@given(st.binary(max_size=200))
@settings(max_examples=levels.examples(5))
def test_any_bytes_decode_or_raise_data_error(data):
    with suppress(DataError, UnsupportedError):
        decode_request(data, now=0.0)


@given(st.binary(max_size=40), st.integers(0, 200), st.integers(0, 255), st.integers(0, 200))
@settings(max_examples=levels.examples(5))
def test_damaged_request_decodes_or_raises_data_error(inserted, at, byte, cut):
    whole = message(np.ones((2, 2), np.float32), raw=b"\0" * 16)
    whole.parameters["priority"].int64_param = 4
    typed = message(shape=(2,), datatype="INT8", int_contents=[1, 2], name="t")
    for made in (whole, typed):
        data = bytearray(made.SerializeToString())
        data[at % len(data)] = byte
        data[cut % len(data) : cut % len(data)] = inserted
        with suppress(DataError, UnsupportedError):
            decode_request(bytes(data), now=0.0)


def test_sequence_end_needs_no_inputs():
    message = Request(model_name="m")
    message.parameters["sequence_id"].int64_param = 7
    with pytest.raises(DataError, match="at least one tensor"):
        decode_request(message.SerializeToString(), now=0.0)
    message.parameters["sequence_end"].bool_param = True
    wire = decode_request(message.SerializeToString(), now=0.0)
    assert (wire.request.inputs, wire.request.parameters) == ((), {"sequence_id": 7, "sequence_end": True})
    message.raw_input_contents.append(b"1234")
    with pytest.raises(DataError, match="raw_input_contents"):
        decode_request(message.SerializeToString(), now=0.0)
