"""Tests of `TableDecoder`: exact casts, failures of single rows."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from formats.parquet_files import read_single_block
from headrace.core.block import FailureKind
from headrace.formats.column_decode import ColumnsInput, TableDecoder, nullable_array, values_dtype

F4 = np.dtype(np.float32)


def decode(columns, dtype=F4, shape=(), names=("x",)):
    spec = ColumnsInput(names, None if dtype is None else np.dtype(dtype), shape)
    return TableDecoder({"in": spec}).decode(read_single_block(columns))


def test_several_columns_form_a_matrix():
    decoded = decode({"x": [1, 2], "y": [0.5, float("nan")]}, shape=(2,), names=("y", "x"))
    assert decoded.tensors["in"].dtype == F4
    assert repr(decoded.tensors["in"].tolist()) == "[[0.5, 1.0], [nan, 2.0]]"
    assert (decoded.rows, decoded.failures) == (None, ())


def test_null_fails_only_its_row():
    """NaN is a value and no failure."""
    x = pa.array([1.5, None, float("nan"), 4.0], from_pandas=False)
    decoded = decode({"x": x, "y": [1, 2, 3, None]}, shape=(2,), names=("x", "y"))
    assert repr(decoded.tensors["in"].tolist()) == "[[1.5, 1.0], [nan, 3.0]]"
    assert decoded.rows.tolist() == [0, 2]
    assert [(f.position.record, f.kind, f.why) for f in decoded.failures] == [
        (1, FailureKind.DECODE, 'column "x" is not float32, but null'),
        (3, FailureKind.DECODE, 'column "y" is not float32, but null'),
    ]
    assert decoded.failures[0].raw == b'{"x":null,"y":2}'


@for_each(
    ("column", "dtype", "expected", "why"),
    [
        (pa.array([1, 300]), "uint8", [1], "is not uint8, but 300"),
        (pa.array([1, -1]), "uint64", [1], "is not uint64, but -1"),
        (
            pa.array([2**63 - 1, 2**63], pa.uint64()),
            "int64",
            [2**63 - 1],
            "is not int64, but 9223372036854775808",
        ),
        (pa.array([2**63, None], pa.uint64()), "uint64", [2**63], "is not uint64, but null"),
        (pa.array([None, 7]), "int32", [7], "is not int32, but null"),
        (pa.array([1.0]), "int32", [], "is not int32, but 1.0"),
        (pa.array([True, None]), "bool", [True], "is not bool, but null"),
        (pa.array([1]), "bool", [], "is not bool, but 1"),
        (pa.array(["1"]), "float32", [], 'is not float32, but "1"'),
        (pa.array(["a", None]), None, ["a"], "is not text, but null"),
        (pa.array([b"\xff", b"a"]), None, [b"\xff", b"a"], None),
        (pa.array([1.5]), None, [], "is not text, but 1.5"),
        (pa.array([True, False]), "int64", [1, 0], None),
        (pa.array([True, False]), "float32", [1, 0], None),
    ],
)
def test_only_fitting_values_are_cast(column, dtype, expected, why):
    decoded = decode({"x": column}, dtype)
    assert decoded.tensors["in"].tolist() == expected
    assert decoded.tensors["in"].dtype == (object if dtype is None else dtype)
    assert [f.why for f in decoded.failures] == ([] if why is None else [f'column "x" {why}'])


@given(
    st.lists(st.none() | st.integers(-300, 300), max_size=9), st.sampled_from(["int8", "uint8", "float32"])
)
def test_nulls_do_not_change_the_cast_of_other_values(values, dtype):
    block_values = nullable_array(values, np.dtype(np.int64))
    assert values_dtype(block_values) == np.int64
    assert values_dtype(block_values[:3]) == np.int64
    if not values:
        return
    with_nulls = decode({"x": pa.array(values, pa.int64())}, dtype)
    good = [v for v in values if v is not None]
    expected = decode({"x": pa.array(good, pa.int64())}, dtype).tensors["in"].tolist() if good else []
    assert with_nulls.tensors["in"].tolist() == expected


def test_lists_are_decoded_from_json():
    column = pa.array([[1, 2], None, [3], [4.5, 5]])
    decoded = decode({"x": column}, shape=(2,))
    assert decoded.tensors["in"].tolist() == [[1, 2], [4.5, 5]]
    assert [f.position.record for f in decoded.failures] == [1, 2]
    one = decode({"x": pa.array([[1.5], [2.5]])}, shape=(1,))
    assert one.tensors["in"].tolist() == [[1.5], [2.5]]


def test_struct_fields_are_decoded_by_path():
    assert decode({"x": [{"a": 1.5}, {"a": 2}]}, names=("x.a",)).tensors["in"].tolist() == [1.5, 2]


def test_missing_column_fails_every_row():
    decoded = decode({"y": [1, 2]}, shape=(1,))
    assert decoded.tensors["in"].shape == (0, 1)
    assert [f.why for f in decoded.failures] == ['field "x" is missing: the record has "y"'] * 2


def test_row_failed_for_one_input_is_in_no_input():
    block = read_single_block({"x": [1, None, 3], "t": ["a", "b", None], "v": [[1], [2], [3]]})
    decoder = TableDecoder(
        {
            "x": ColumnsInput(("x",), F4, (1,)),
            "t": ColumnsInput(("t",), None, ()),
            "v": ColumnsInput(("v",), F4, (1,)),
        }
    )
    decoded = decoder.decode(block)
    assert {n: t.tolist() for n, t in decoded.tensors.items()} == {"x": [[1]], "t": ["a"], "v": [[1]]}
    assert decoded.rows.tolist() == [0]
    assert len(decoded.failures) == 2


def test_tensors_are_writeable():
    """Arrow's own memory is read-only."""
    assert decode({"x": pa.array([1.5], pa.float32())}).tensors["in"].flags.writeable
