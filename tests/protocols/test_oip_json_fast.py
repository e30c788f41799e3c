"""The fast path accepts only bodies that the general path decodes equally."""

import json
from contextlib import suppress

import numpy as np
import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import levels
from cases import for_each
from headrace.core.errors import DataError, ModelInputError
from headrace.core.tensor import InferResponse, ModelMetadata, Tensor, TensorSpec, text_array
from headrace.protocols import oip_json
from headrace.protocols.oip_json import (
    decode_request,
    decode_response,
    encode_response,
    fast_decode_request,
    fast_encode_response,
    parse_header_length,
)
from headrace.protocols.plain_bodies import decode_raw_request

NUMBERS = (
    st.integers(-(2**70), 2**70)
    | st.integers(-300, 300)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(
        [1e39, -1e39, 3.4028236e38, 65520.0, 0.1, 2**53 + 1, 2**63, 2**64, True, False, None, "1", [], {}]
    )
)
DATA = st.lists(NUMBERS, max_size=6) | st.lists(st.lists(NUMBERS, max_size=3), max_size=3)
DATATYPES = st.sampled_from(
    [
        "FP16",
        "FP32",
        "FP64",
        "INT8",
        "INT16",
        "INT32",
        "INT64",
        "UINT8",
        "UINT16",
        "UINT32",
        "UINT64",
        "BOOL",
        "BYTES",
        "BF16",
        "X",
        5,
        None,
    ]
)
SHAPES = st.lists(st.integers(-1, 6) | st.sampled_from([2**63, True, 1.0, "1", None]), max_size=4) | st.none()
PARAMETERS = st.sampled_from([None, {}, [], {"content_type": "np"}, {"binary_data_size": 4}, "x"])


@st.composite
def tensors(draw):
    data = draw(DATA)
    shapes = (
        SHAPES
        | st.just([len(data)])
        | st.just(list(np.shape(data) if all(type(d) is not list for d in data) else [len(data)]))
    )
    entry = {
        "name": draw(st.sampled_from(["x", "y", "true", "", 5])),
        "shape": draw(shapes),
        "datatype": draw(DATATYPES),
        "data": data,
    }
    parameters = draw(st.none() | PARAMETERS)
    if parameters is not None:
        entry["parameters"] = parameters
    for key in draw(st.sets(st.sampled_from(["name", "shape", "datatype", "data"]), max_size=1)):
        if draw(st.integers(0, 5)) == 0:
            del entry[key]
    return entry


DOCUMENTS = st.fixed_dictionaries(
    {"inputs": st.lists(tensors(), max_size=3)},
    optional={
        "id": st.sampled_from(["i", "", None, 5]),
        "parameters": PARAMETERS,
        "outputs": st.sampled_from([None, [], [{"name": "y"}], "x"]),
        "other": st.booleans(),
    },
)


def decode_general(body):
    """Return the request of the general path, None if it refuses the body."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(oip_json, "fast_decode_request", lambda *_: None)
        try:
            return decode_request(body)
        except DataError:
            return None


def same(one, other):
    assert (one.id, one.outputs, one.parameters) == (other.id, other.outputs, other.parameters)
    assert [t.name for t in one.inputs] == [t.name for t in other.inputs]
    for a, b in zip(one.inputs, other.inputs, strict=True):
        assert (a.data.dtype, a.data.shape) == (b.data.dtype, b.data.shape)
        np.testing.assert_array_equal(a.data, b.data)


@settings(max_examples=levels.examples(4))
@given(DOCUMENTS)
@example({"inputs": [{"name": "x", "shape": [2], "datatype": "FP32", "data": [True, 1.5]}]})
@example({"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": ["1"]}]})
@example({"inputs": [{"name": "x", "shape": [1.0], "datatype": "FP32", "data": [1]}]})
@example({"inputs": [{"name": "x", "shape": [-1], "datatype": "FP32", "data": [1]}]})
@example({"inputs": [{"name": "x", "shape": [], "datatype": "FP32", "data": [1]}]})
@example({"inputs": [{"name": "x", "shape": [], "datatype": "FP32", "data": 1}]})
@example({"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1e39]}]})
@example({"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [2**53 + 1]}]})
@example({"inputs": [{"name": "x", "shape": [1], "datatype": "UINT8", "data": [256]}]})
@example({"inputs": [{"name": "x", "shape": [1], "datatype": "INT64", "data": [2**63]}]})
@example({"inputs": [{"name": "x", "shape": [4], "datatype": "FP32", "data": [[1, 2], [3, 4]]}]})
@example({"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1], "parameters": []}]})
def test_fast_and_general_decoding_agree(document):
    try:
        body = orjson.dumps(document)
    except TypeError:  # Integers beyond those that orjson parses.
        body = json.dumps(document).encode()
    fast = fast_decode_request(orjson.loads(body), body)
    general = decode_general(body)
    if fast is not None:
        assert general is not None, "the fast path accepted a malformed body"
        same(fast, general.request)
    try:
        found = decode_request(body)
    except DataError:
        assert general is None
    else:
        same(found.request, general.request)


@for_each("datatype", ["FP32", "FP64", "INT8", "INT64", "UINT32"])
@for_each("data", [[1, 2, 3, 4], [[1, 2], [3, 4]]])
def test_plain_bodies_take_the_fast_path(datatype, data):
    """Without this the agreement test could pass with an unused fast path."""
    document = {
        "id": "i",
        "inputs": [
            {
                "name": "x",
                "shape": [2, 2],
                "datatype": datatype,
                "data": data,
                "parameters": {"content_type": "np"},
            }
        ],
    }
    found = fast_decode_request(document, orjson.dumps(document))
    assert found["x"].tolist() == [[1, 2], [3, 4]]


ARRAYS = st.sampled_from(
    [np.float32, np.float64, np.int64, np.uint8, np.float16, np.bool_, np.dtype(">f4"), np.uint64]
).flatmap(lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=4)))
TEXTS = st.lists(st.text(max_size=4) | st.sampled_from(["null", b"a"]), max_size=4).map(text_array)


@given(
    ARRAYS | TEXTS,
    st.booleans(),
    st.sampled_from([None, "1"]),
    st.sampled_from(["", "null", "i"]),
    st.sampled_from([{}, {"p": [1]}]),
)
def test_fast_and_general_encoding_agree(array, strided, version, id_, parameters):
    data = array[::-1] if strided else array
    response = InferResponse(
        (Tensor("y", data), Tensor("z", array.T if array.ndim > 1 else array)), "m", version, id_, parameters
    )
    quick = fast_encode_response(response)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(oip_json, "fast_encode_response", lambda _: None)
        try:
            careful = encode_response(response).body
        except DataError:
            careful = None
    if quick is not None:
        assert quick == careful
    if careful is None:
        with pytest.raises(DataError, match="infinite"):
            encode_response(response)
    else:
        assert encode_response(response).body == careful


def test_plain_responses_take_the_fast_path():
    response = InferResponse((Tensor("y", np.ones((1, 2), np.float32)),), "m")
    assert (
        fast_encode_response(response)
        == b'{"model_name":"m","outputs":[{"name":"y","shape":[1,2],"datatype":"FP32","data":[1.0,1.0]}]}'
    )
    text = InferResponse((Tensor("y", text_array(["null", "é"]).reshape(2, 1)),), "m")
    assert fast_encode_response(text) is None, "it may be a number that is none"
    text = InferResponse((Tensor("y", text_array(["a", "é"]).reshape(2, 1)),), "m")
    assert fast_encode_response(text) == encode_response(text).body
    assert orjson.loads(fast_encode_response(text))["outputs"][0]["data"] == ["a", "é"]
    for array in (
        np.array([np.inf]),
        np.array([np.nan]),
        np.array([True]),
        np.array([1.0], ">f4"),
        *map(text_array, ([b"a"], [np.str_("a")], ["\ud800"], [None])),
    ):
        assert fast_encode_response(InferResponse((Tensor("y", array),), "m")) is None


# Any bytes in every parser of bodies

VALID = orjson.dumps(
    {"id": "i", "inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1.5, 2]}]}
)


@st.composite
def mutated_bodies(draw):
    """Valid bodies with bytes changed, removed or inserted."""
    body = bytearray(VALID)
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, len(body)))
        body[at : at + draw(st.integers(0, 3))] = draw(
            st.binary(max_size=3) | st.sampled_from([b"[", b"null", b"1e999", b"-", b'"'])
        )
    return bytes(body)


@settings(max_examples=levels.examples(3))
@given(mutated_bodies() | st.binary(max_size=80), st.none() | st.integers(0, 120))
def test_any_body_decodes_or_raises_data_error(body, json_bytes):
    for decode in (decode_request, decode_response):
        with suppress(DataError):
            decode(body, json_bytes)


@given(st.text(max_size=30) | st.integers().map(str))
def test_any_header_parses_or_raises_data_error(value):
    try:
        found = parse_header_length(value)
    except DataError:
        return
    assert found is not None
    assert found >= 0


@given(
    st.binary(max_size=64),
    st.sampled_from(["FP32", "FP16", "BF16", "BYTES", "BOOL", "INT64"]),
    st.none() | st.lists(st.integers(-1, 4), min_size=0, max_size=3).map(lambda s: (-1, *s)),
)
def test_any_raw_body_decodes_or_raises_an_error(body, datatype, shape):
    metadata = ModelMetadata("m", inputs=(TensorSpec("x", datatype, shape),))
    try:
        found = decode_raw_request(body, metadata)
    except (DataError, ModelInputError):
        return
    data = found.request["x"]
    assert data.ndim == len(shape)
    assert (
        all(want in (-1, have) for want, have in zip(shape[1:], data.shape[1:], strict=True))
        or datatype == "BYTES"
    )
    assert found.binary("any output")


def test_raw_body_size_gives_the_variable_dimension():
    def shape(size, *declared, datatype="FP32"):
        metadata = ModelMetadata("m", inputs=(TensorSpec("x", datatype, declared),))
        return decode_raw_request(bytes(size), metadata).request["x"].shape

    assert shape(32, -1, 4) == (2, 4)
    assert shape(32, -1) == (8,)
    assert shape(24, -1, 3, -1) == (1, 3, 2)
    assert shape(0, -1, 4) == (0, 4)
    assert shape(8, -1, 2, datatype="BF16") == (2, 2)
    assert shape(5, -1, datatype="BYTES") == (1,)
    for size, *declared in [(33, -1, 4), (32, -1, -1, -1), (8, -1, 0)]:
        with pytest.raises(DataError):
            shape(size, *declared)
