"""Tests of the parts that encoders share: output columns, and values as text."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.core.block import Block, Position
from headrace.core.errors import ConfigError, ModelContractError
from headrace.core.tensor import TensorSpec
from headrace.formats.contract import BlockSelection
from headrace.formats.encode import (
    TextEncoder,
    check_outputs,
    json_text,
    number_text,
    output_columns,
    row_width,
    text_bytes,
)


def selection_of(rows):
    """Return a selection of records without content."""
    none = np.zeros(rows, np.int64)
    return BlockSelection(Block(Position(), starts=none, ends=none), 0, rows)


def test_columns_come_from_the_first_outputs():
    outputs = {"y": np.zeros(2, np.float32), "v": np.zeros((2, 3, 4), np.int64), "s": np.array(["a", "b"])}
    columns = output_columns(outputs)
    assert columns == (
        TensorSpec("y", "FP32", (-1,)),
        TensorSpec("v", "INT64", (-1, 3, 4)),
        TensorSpec("s", "BYTES", (-1,)),
    )
    assert [row_width(column) for column in columns] == [1, 12, 1]


def test_complex_dtype_is_rejected():
    with pytest.raises(ConfigError, match=r"output 'z' cannot be written: .*complex64"):
        output_columns({"z": np.zeros(2, np.complex64)})


@for_each(
    ("outputs", "message"),
    [
        ({"z": np.zeros(2, np.float32)}, "returned outputs z; this part started with y"),
        ({"y": np.zeros(2, np.float32), "z": np.zeros(2)}, "returned outputs y, z"),
        ({"y": np.zeros(1, np.float32)}, r"shape \(1,\) for 2 records"),
        (
            {"y": np.zeros((2, 2), np.float32)},
            r"shape \(2, 2\) for 2 records; this part started with rows of shape \(\)",
        ),
        ({"y": np.zeros(2, np.float64)}, "is float64; this part started with FP32"),
    ],
)
def test_outputs_that_change_within_a_part_are_rejected(outputs, message):
    """A missing row would assign every later prediction to the wrong record."""
    columns = output_columns({"y": np.zeros(2, np.float32)})
    selection = selection_of(2)
    with pytest.raises(ModelContractError, match=message):
        check_outputs(columns, [selection], outputs, datatypes=True)


FLOATS = [0.1, 1 / 3, -0.0, 1e-7, 65504.0, 5.5]


@for_each("dtype", ["float16", "float32", "float64"])
def test_numbers_are_short_and_read_back(dtype):
    """0.1 stays 0.1 in every dtype, and parsing returns the same bits."""
    numbers = np.array(FLOATS).astype(dtype)
    texts = number_text(numbers, nonfinite_names=False)[1:-1].split(b",")
    assert texts[0] == b"0.1"
    assert np.array([float(text) for text in texts]).astype(dtype).tobytes() == numbers.tobytes()


def test_nonfinite_numbers_are_named_or_null():
    numbers = np.array([[np.nan, 1.0, np.inf], [2.0, -np.inf, 3.0]], np.float32)
    assert number_text(numbers, nonfinite_names=True) == b"[[nan,1.0,inf],[2.0,-inf,3.0]]"
    assert number_text(numbers, nonfinite_names=False) == b"[[null,1.0,null],[2.0,null,3.0]]"
    assert number_text(numbers[:, ::2], nonfinite_names=True) == b"[[nan,inf],[2.0,3.0]]"


def reject_constant(name):
    raise AssertionError(f"{name} is no JSON")


@for_each(
    ("value", "means"),
    [
        (2**70, 2**70),
        ([2**70, float("nan"), -float("inf")], [2**70, None, None]),
        ({1: "a", None: 2**70, (1, "b"): 0.5}, {"1": "a", "null": 2**70, '[1,"b"]': 0.5}),
        (["\ud800", b"a", b"\xff"], ["\ud800", "a", {"base64": "/w=="}]),
        ([2**70, np.float32("nan"), np.arange(2), np.array([np.nan])], [2**70, None, [0, 1], [None]]),
        ({"\ud800": (1, {2})}, {"\ud800": [1, "{2}"]}),
    ],
)
def test_any_object_becomes_valid_json(value, means):
    """Values that the fast path rejects are written by the slow one."""
    for text in (json_text(value), text_bytes(value)):
        assert json.loads(text, parse_constant=reject_constant) == means


@for_each("dtype", [">f2", ">f4", ">f8", ">i4"])
def test_outputs_get_native_byte_order(dtype):
    data = np.array([0.1, 2], dtype)
    _, (array,) = check_outputs(output_columns({"y": data}), [selection_of(2)], {"y": data})
    assert array.dtype.isnative
    assert number_text(array, nonfinite_names=False) == number_text(
        data.astype(dtype[1:]), nonfinite_names=False
    )


def selections_of(rows: int) -> list[BlockSelection]:
    none = np.zeros(rows, np.int64)
    return [BlockSelection(Block(Position(), starts=none, ends=none), 0, rows)]


def encode_part(outputs, **options) -> bytes:
    (data,) = outputs.values()
    encoder = TextEncoder(output_columns(outputs), **options)
    return encoder.begin() + encoder.encode(selections_of(len(data)), outputs) + encoder.finish()


def test_texts_are_written_unchanged():
    texts = np.array(['a "b",c', "two\nlines", "", None, b"\xff\x00", "ä", 7, "\ud800"], object)
    assert encode_part({"t": texts}) == b'a "b",c\ntwo\nlines\n\n\n\xff\x00\n\xc3\xa4\n7\n\\ud800\n'
    assert encode_part({"t": np.array(["a", "b"])}, separator=b"") == b"ab"
    assert encode_part({"t": np.array([["a"], ["b"]])}) == b"a\nb\n"


@given(st.lists(st.text(alphabet="ab\n", max_size=5), max_size=9), st.integers(0, 9))
def test_output_is_independent_of_batches(texts, cut):
    data = np.array(texts, object)
    encoder = TextEncoder(output_columns({"t": np.array(["x"], object)}))
    parts = [encoder.encode(selections_of(len(part)), {"t": part}) for part in (data[:cut], data[cut:])]
    assert b"".join(parts) == "".join(text + "\n" for text in texts).encode()


@for_each(
    "outputs",
    [
        {},
        {"y": np.zeros(2)},
        {"t": np.array(["a", "b"]), "u": np.array(["a", "b"])},
        {"t": np.array([["a", "b"], ["c", "d"]])},
    ],
)
def test_outputs_other_than_one_text_per_record_are_rejected(outputs):
    with pytest.raises(ConfigError, match="choose csv or jsonl"):
        TextEncoder(output_columns(outputs))


def test_missing_row_is_rejected():
    encoder = TextEncoder(output_columns({"t": np.array(["a"])}))
    with pytest.raises(ModelContractError):
        encoder.encode(selections_of(2), {"t": np.array(["a"])})
