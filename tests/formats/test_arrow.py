import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow")

import pyarrow as pa

from headrace.core.errors import DataError
from headrace.formats.arrow import (
    array_with_nulls,
    column_array,
    delimited_numbers,
    is_tensors,
    nulls,
    parquet_modules,
    table_columns,
)

CELLS = st.one_of(
    st.floats(allow_nan=False).map(repr),
    st.sampled_from(
        ["nan", "inf", "-0", ".5", "1.", '"7"', "1e400", "x", "", " 1", "nan(1)", "0x1", "1\r2", "1,2"]
    ),
)


@settings(deadline=None)  # pyarrow's first import may fall into an example.
@given(st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=8))
def test_what_it_takes_has_the_values_that_float_gives(table):
    text = "\n".join(",".join(row) for row in table).encode()
    numbers = delimited_numbers(text, len(table), 2, b",", b'"')
    if numbers is None:
        return
    wanted = [float(cell.strip('"')) for row in table for cell in row]
    np.testing.assert_array_equal(numbers, wanted)


@pytest.mark.parametrize(
    "text", [b"1,2\n3", b"1,2\nx,3", b"1,2\n,3", b"1,2\n1\r,2", b"1,2\nnan(1),2", b"1,2\n3,4\n5,6"]
)
def test_what_is_not_as_it_should_be_is_refused_whole(text):
    assert delimited_numbers(text, 2, 2, b",", b'"') is None


def test_it_takes_more_than_json_does():
    numbers = delimited_numbers(b'nan;"1.5"\n-inf;.5', 2, 2, b";", b'"')
    np.testing.assert_array_equal(numbers, [np.nan, 1.5, -np.inf, 0.5])


def test_parquets_modules_come_by_the_same_door():
    pa, parquet = parquet_modules()
    assert (pa.__name__, parquet.__name__) == ("pyarrow", "pyarrow.parquet")


@pytest.mark.parametrize(
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
def test_all_chunks_of_a_column_are_in_its_array(chunks, dtype):
    column = pa.chunked_array(chunks, type=None if chunks else pa.int64())
    made = column_array(column)
    assert made.dtype == dtype
    assert not is_tensors(column)
    assert [v.tolist() if isinstance(v, np.ndarray) else v for v in made.tolist()] == column.to_pylist()


@given(st.lists(st.tuples(st.integers(0, 99), st.booleans())), st.sampled_from(["int8", "float16", "bool"]))
def test_nulls_stand_where_a_value_is_missing_in_the_arrays_own_type(cells, dtype):
    values = np.array([value for value, _ in cells], dtype)
    made = array_with_nulls(values, np.array([missing for _, missing in cells], bool))
    assert made.type == pa.from_numpy_dtype(values.dtype)
    expected = [
        None if missing else value for value, (_, missing) in zip(values.tolist(), cells, strict=True)
    ]
    assert made.to_pylist() == expected


@pytest.mark.parametrize(
    ("values", "kind"), [(["a", None], pa.string()), ([b"a", None], pa.binary()), ([None], pa.string())]
)
def test_text_keeps_its_kind(values, kind):
    objects = np.array(values, object)
    made = array_with_nulls(objects, np.array([value is None for value in values]))
    assert (made.type, made.to_pylist()) == (kind, values)


def test_nulls_of_no_type():
    assert (nulls(2).type, len(nulls(2))) == (pa.null(), 2)


def test_a_table_by_its_columns():
    assert table_columns(pa.table({"a": [1], "b": ["x"]}))["b"].to_pylist() == ["x"]
    with pytest.raises(DataError, match="two columns of one name"):
        table_columns(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]))
