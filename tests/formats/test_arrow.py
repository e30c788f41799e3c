"""Tests of the pyarrow adapter: delimited numbers, columns and nulls."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyarrow")

import pyarrow as pa

from cases import for_each
from headrace.core.errors import DataError
from headrace.formats.arrow import (
    array_with_nulls,
    column_array,
    delimited_numbers,
    is_tensor_column,
    null_array,
    parquet_modules,
    table_columns,
)
from headrace.formats.csv_dialect import CsvDialect

CELLS = st.one_of(
    st.floats(allow_nan=False).map(repr),
    st.sampled_from(
        ["nan", "inf", "-0", ".5", "1.", '"7"', "1e400", "x", "", " 1", "nan(1)", "0x1", "1\r2", "1,2"]
    ),
)


@given(st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=8))
def test_accepted_numbers_equal_float(table):
    text = "\n".join(",".join(row) for row in table).encode()
    numbers = delimited_numbers(text, len(table), 2, CsvDialect())
    if numbers is None:
        return
    expected = [float(cell.strip('"')) for row in table for cell in row]
    np.testing.assert_array_equal(numbers, expected)


@for_each("text", [b"1,2\n3", b"1,2\nx,3", b"1,2\n,3", b"1,2\n1\r,2", b"1,2\nnan(1),2", b"1,2\n3,4\n5,6"])
def test_malformed_text_is_rejected(text):
    assert delimited_numbers(text, 2, 2, CsvDialect()) is None


def test_number_syntax_is_wider_than_json():
    numbers = delimited_numbers(b'nan;"1.5"\n-inf;.5', 2, 2, CsvDialect(b";"))
    np.testing.assert_array_equal(numbers, [np.nan, 1.5, -np.inf, 0.5])


def test_parquet_modules_are_those_of_pyarrow():
    pa, parquet = parquet_modules()
    assert (pa.__name__, parquet.__name__) == ("pyarrow", "pyarrow.parquet")


@for_each(
    ("chunks", "dtype"),
    [
        ([[1, 2], [3]], np.int64),
        ([[1, None], [3]], object),
        ([[1, 2], [None]], object),
        ([["a"], [None], []], object),
        ([[[1.0], [2.0, 3.0]], [[]]], object),
        ([], np.float64),
    ],
)
def test_column_array_contains_all_chunks(chunks, dtype):
    column = pa.chunked_array(chunks, type=None if chunks else pa.int64())
    array = column_array(column)
    assert array.dtype == dtype
    assert not is_tensor_column(column)
    assert [v.tolist() if isinstance(v, np.ndarray) else v for v in array.tolist()] == column.to_pylist()


@given(st.lists(st.tuples(st.integers(0, 99), st.booleans())), st.sampled_from(["int8", "float16", "bool"]))
def test_nulls_replace_missing_values_and_keep_the_type(cells, dtype):
    values = np.array([value for value, _ in cells], dtype)
    array = array_with_nulls(values, np.array([missing for _, missing in cells], bool))
    assert array.type == pa.from_numpy_dtype(values.dtype)
    expected = [
        None if missing else value for value, (_, missing) in zip(values.tolist(), cells, strict=True)
    ]
    assert array.to_pylist() == expected


@for_each(
    ("values", "kind"), [(["a", None], pa.string()), ([b"a", None], pa.binary()), ([None], pa.string())]
)
def test_text_stays_string_or_binary(values, kind):
    objects = np.array(values, object)
    array = array_with_nulls(objects, np.array([value is None for value in values]))
    assert (array.type, array.to_pylist()) == (kind, values)


def test_null_array_has_no_type():
    assert (null_array(2).type, len(null_array(2))) == (pa.null(), 2)


def test_table_columns_reject_duplicate_names():
    assert table_columns(pa.table({"a": [1], "b": ["x"]}))["b"].to_pylist() == ["x"]
    with pytest.raises(DataError, match="two columns with the same name"):
        table_columns(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]))
