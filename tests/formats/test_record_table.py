"""Tests of tables of records: Arrow columns as JSON and as arrays, and oversized rows."""

import datetime as dt
import decimal
import subprocess
import sys

import numpy as np
import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.formats.column_decode import values_dtype
from headrace.formats.record_table import flat_array, rows_text

UTC = dt.UTC


def texts_of(column):
    return rows_text(pa.record_batch({"x": column}))


NOON = dt.datetime(2020, 1, 2, 12, 30, 15, 250_000)  # noqa: DTZ001 - the case has no zone


@for_each(
    ("column", "text", "values"),
    [
        (pa.array([1, -2], pa.int8()), [b"1", b"-2"], [1, -2]),
        (pa.array([2**64 - 1], pa.uint64()), [b"18446744073709551615"], [2**64 - 1]),
        (pa.array([0.1, 1e30], pa.float64()), [b"0.1", b"1e+30"], [0.1, 1e30]),
        (pa.array([True, False]), [b"true", b"false"], [True, False]),
        (pa.array([True, None]), [b"true", b"null"], [True, None]),
        (pa.array([1, None]), [b"1", b"null"], [1, None]),
        (pa.array([None, 2**63], pa.uint64()), [b"null", b"9223372036854775808"], [None, 2**63]),
        (pa.array(['é"\n', None]), ['"é\\"\\n"'.encode(), b"null"], ['é"\n', None]),
        (pa.array(["a"], pa.large_string()), [b'"a"'], ["a"]),
        (pa.array(["a"], pa.string_view()), [b'"a"'], ["a"]),
        (pa.array(["b", None, "b"]).dictionary_encode(), [b'"b"', b"null", b'"b"'], ["b", None, "b"]),
        (pa.array([b"a", b"\xff", None]), [b'"a"', b'{"base64":"/w=="}', b"null"], [b"a", b"\xff", None]),
        (pa.array([b"ab"], pa.binary(2)), [b'"ab"'], [b"ab"]),
        (pa.array([decimal.Decimal("1.20"), None]), [b"1.20", b"null"], [1.2, None]),
        (pa.array([dt.date(2020, 1, 2), None]), [b'"2020-01-02"', b"null"], ["2020-01-02", None]),
        (pa.array([NOON], pa.timestamp("ms")), [b'"2020-01-02T12:30:15.250"'], ["2020-01-02T12:30:15.250"]),
        (
            pa.array([NOON.replace(tzinfo=UTC), None], pa.timestamp("s", "Europe/Berlin")),
            [b'"2020-01-02T12:30:15Z"', b"null"],
            ["2020-01-02T12:30:15Z", None],
        ),
        (pa.array([1], pa.timestamp("ns")), [b'"1970-01-01T00:00:00.000000001"'], None),
        (pa.array([dt.time(1, 2)], pa.time32("s")), [b'"01:02:00"'], ["01:02:00"]),
        (pa.array([5, None], pa.duration("ms")), [b"5", b"null"], [5, None]),
    ],
)
def test_flat_columns_become_json_and_arrays(column, text, values):
    texts = texts_of(column)
    assert texts == [b'{"x":' + value + b"}" for value in text]
    assert [orjson.loads(t) for t in texts]
    if values is not None:
        assert flat_array(column).tolist() == values


@for_each(
    ("column", "text"),
    [
        (pa.array([[1, 2], None, []]), [b"[1,2]", b"null", b"[]"]),
        (pa.array([{"a": 1, "b": [NOON]}]), [b'{"a":1,"b":["2020-01-02T12:30:15.250000"]}']),
        (pa.array([[b"\xff", b"a"]]), [b'[{"base64":"/w=="},"a"]']),
        (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())), [b'[["k",1]]']),
        (pa.nulls(2), [b"null", b"null"]),
    ],
)
def test_nested_columns_become_json_only(column, text):
    assert texts_of(column) == [b'{"x":' + value + b"}" for value in text]
    assert flat_array(column) is None


@given(
    st.lists(st.none() | st.floats(width=32), min_size=1, max_size=8),
    st.sampled_from([np.float32, np.float64]),
)
def test_floats_read_back_the_same(values, dtype):
    """NaN and infinities are null in JSON and unchanged in the array. Only null is None there."""
    column = pa.array(values, pa.from_numpy_dtype(dtype), from_pandas=False)
    array = flat_array(column)
    for value, text, stored in zip(values, texts_of(column), array.tolist(), strict=True):
        read = orjson.loads(text)["x"]
        if value is None or not np.isfinite(value):
            assert read is None
        else:
            assert dtype(read) == value
        assert repr(stored) == repr(value)
    assert values_dtype(array) == dtype


def test_float32_has_the_fewest_digits():
    assert texts_of(pa.array([0.1], pa.float32())) == [b'{"x":0.1}']


def test_column_names_are_escaped():
    columns = {name: pa.array([1]) for name in ("100%b", 'a"b', "é\n", "")}
    assert [orjson.loads(t) for t in rows_text(pa.record_batch(columns))] == [
        {"100%b": 1, 'a"b': 1, "é\n": 1, "": 1}
    ]


def test_text_that_is_not_utf8_is_bytes():
    """Arrow does not verify the text of a file."""
    broken = pa.Array.from_buffers(pa.string(), 2, [None, *pa.array([b"ok", b"\xff"]).buffers()[1:]])
    assert texts_of(broken) == [b'{"x":"ok"}', b'{"x":{"base64":"/w=="}}']
    assert flat_array(broken).tolist() == ["ok", b"\xff"]


def test_sliced_column_yields_only_its_values():
    column = pa.array([1.5, None, 2.5, 3.5]).slice(1, 2)
    assert texts_of(column) == [b'{"x":null}', b'{"x":2.5}']


NANOSECONDS = """
import sys
class WithoutPandas:
    def find_spec(self, name, path=None, target=None):
        if name == "pandas":
            raise ImportError(name)
if sys.argv[1] == "without":
    sys.meta_path.insert(0, WithoutPandas())
import pyarrow as pa
from headrace.core.errors import MissingExtraError
from headrace.formats.record_table import rows_text
try:
    print(rows_text(pa.record_batch({"x": pa.array([[1]], pa.list_(pa.timestamp("ns")))}))[0].decode())
except MissingExtraError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("pandas", "output"),
    [
        pytest.param("with", '{"x":["1970-01-01 00:00:00.000000001"]}\n', marks=pytest.mark.slow),
        (
            "without",
            (
                "column 'x', whose lists or structs hold times of nanoseconds, needs an extra: "
                "pip install 'headrace[pandas]'\n"
            ),
        ),
    ],
)
def test_nested_times_of_nanoseconds_need_pandas(pandas, output):
    process = subprocess.run(
        [sys.executable, "-c", NANOSECONDS, pandas], capture_output=True, text=True, check=True
    )
    assert process.stdout == output
