"""TorchServe's bodies: rows as plain JSON, responses as arrays if their form allows it."""

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cases import for_each
from headrace.core.errors import DataError, ModelContractError
from headrace.core.tensor import Tensor
from headrace.protocols.torchserve import (
    DEFAULT_OUTPUT,
    ResponseLayout,
    decode_body,
    decode_error_body,
    encode_error_body,
    encode_row,
    outputs_from_responses,
)

NESTED = orjson.loads(b"[" * 100 + b"1" + b"]" * 100)


def objects(*values):
    made = np.empty(len(values), object)
    made[:] = values
    return made


def outputs_of(*responses):
    layout = ResponseLayout.from_responses(responses)
    return {t.name: t.data for t in outputs_from_responses(responses, layout)}


@given(
    hnp.arrays(
        np.float64,
        hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=4),
        elements={"allow_infinity": False, "allow_nan": False},
    )
)
def test_single_input_rows_round_trip(array):
    bodies = [encode_row((Tensor("x", array),), row) for row in range(len(array))]
    assert {b.content_type for b in bodies} == {"application/json"}
    responses = [decode_body(b.body) for b in bodies]
    assert responses == array.tolist()
    np.testing.assert_array_equal(outputs_of(*responses)[DEFAULT_OUTPUT], array)


def test_text_and_bytes_are_sent_unchanged():
    text = encode_row((Tensor("x", objects("naïve", b"\xff\x00")),), 0)
    assert (text.body, text.content_type) == ("naïve".encode(), "text/plain; charset=utf-8")
    raw = encode_row((Tensor("x", objects("naïve", b"\xff\x00")),), 1)
    assert (raw.body, raw.content_type) == (b"\xff\x00", "application/octet-stream")


def test_several_inputs_are_an_object_by_name():
    inputs = (
        Tensor("age", np.array([40.0, np.nan], np.float32)),
        Tensor("name", objects("a", "b")),
        Tensor("tags", objects(*"pqrs").reshape(2, 2)),
    )
    assert orjson.loads(encode_row(inputs, 1).body) == {"age": None, "name": "b", "tags": ["r", "s"]}


def test_unencodable_rows_are_refused():
    with pytest.raises(DataError, match=r"'x'.*infinite"):
        encode_row((Tensor("x", np.array([np.inf])),), 0)
    with pytest.raises(DataError, match=r"'x'.*surrogate"):
        encode_row((Tensor("x", objects("\ud800")),), 0)


@for_each(
    ("body", "value"),
    [
        (b"3", 3),
        (b'{"a":[1]}', {"a": [1]}),
        (b"tabby cat", "tabby cat"),
        (b"\xff\x00", b"\xff\x00"),
        (b"", ""),
    ],
)
def test_body_is_json_else_text_else_bytes(body, value):
    assert decode_body(body) == value


@for_each(
    ("responses", "dtype", "shape"),
    [
        ([1, 2], np.int64, (2,)),
        ([1, 2.5], np.float64, (2,)),
        ([1.5, None], np.float64, (2,)),
        ([2**63, 1], np.uint64, (2,)),
        ([True, False], np.bool_, (2,)),
        (["a", "b"], object, (2,)),
        ([[1, 2], [3, 4]], np.int64, (2, 2)),
        ([["a"], ["b"]], object, (2, 1)),
        ([b"\xff", b"\x00"], object, (2,)),
    ],
)
def test_responses_of_one_kind_become_an_array(responses, dtype, shape):
    found = outputs_of(*responses)
    assert list(found) == [DEFAULT_OUTPUT]
    assert (found[DEFAULT_OUTPUT].dtype, found[DEFAULT_OUTPUT].shape) == (np.dtype(dtype), shape)
    assert len(found[DEFAULT_OUTPUT]) == len(responses)


@for_each(
    ("responses", "texts"),
    [
        ([[1], [1, 2]], ["[1]", "[1,2]"]),
        ([1, "a"], ["1", "a"]),
        ([{"a": 1}, {"b": 2}], ['{"a":1}', '{"b":2}']),
        ([{"a": 1}, 2], ['{"a":1}', "2"]),
        ([True, 1], ["true", "1"]),
        ([-1, 2**63], ["-1", "9223372036854775808"]),
        ([{"a": 1}, b"\xff"], ['{"a":1}', b"\xff"]),
        ([NESTED], [orjson.dumps(NESTED).decode()]),
    ],
)
def test_mixed_responses_become_json_text(responses, texts):
    assert outputs_of(*responses)[DEFAULT_OUTPUT].tolist() == texts


def test_objects_with_equal_keys_become_columns():
    found = outputs_of({"cat": 0.5, "dog": "no"}, {"dog": "yes", "cat": 1})
    assert list(found) == ["cat", "dog"]
    assert found["cat"].tolist() == [0.5, 1.0]
    assert found["dog"].tolist() == ["no", "yes"]


@for_each("response", [{"a": 1}, {"a": 1, "b": 2, "c": 3}, 4])
def test_response_with_other_keys_breaks_the_contract(response):
    layout = ResponseLayout.from_responses([{"a": 1, "b": 2}])
    with pytest.raises(ModelContractError, match="earlier responses had the keys a, b"):
        outputs_from_responses([{"a": 1, "b": 2}, response], layout)


def test_unencodable_response_breaks_the_contract():
    with pytest.raises(ModelContractError, match="cannot be written"):
        outputs_of(orjson.loads(b"[" * 500 + b"]" * 500))


def test_field_named_output_is_a_column():
    assert outputs_of({"output": 1}, {"output": 2})["output"].tolist() == [1, 2]


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=1), inner, max_size=2),
    max_leaves=6,
)  # fmt: skip


@given(st.lists(JSON, min_size=1, max_size=5))
def test_every_output_has_a_row_per_response(responses):
    assert all(len(data) == len(responses) for data in outputs_of(*responses).values())


def test_errors_are_decoded_in_any_form():
    found = decode_error_body(encode_error_body(503, "InternalServerException", "Prediction failed"))
    assert (found.type, found.message) == ("InternalServerException", "Prediction failed")
    assert decode_error_body(b"bad gateway").message == "bad gateway"
    assert decode_error_body(b'["x"]').type == ""
