"""Arrays to DataFrames and back, with their types."""

import importlib
import sys

import numpy as np
import pandas as pd
import pytest

from headrace.core.errors import MissingExtraError
from headrace.core.tensor import text_array
from headrace.runtimes import frames as adapter
from headrace.runtimes.frames import columns_from_frame, frame_from_columns, is_frame

pytestmark = pytest.mark.slow


def test_columns_round_trip():
    columns = {
        "f": np.float32([1, 2]),
        "i": np.int64([3, 4]),
        "b": np.array([True, False]),
        "t": text_array(["a", "b"]),
    }
    frame = frame_from_columns(columns)
    assert is_frame(frame)
    back = columns_from_frame(frame)
    assert list(back) == list(columns)
    for name, data in columns.items():
        assert back[name].dtype == data.dtype
        assert back[name].tolist() == data.tolist()


def test_column_vectors_are_columns():
    assert frame_from_columns({"x": np.ones((3, 1))}).shape == (3, 1)
    with pytest.raises(ValueError, match="reshape"):
        frame_from_columns({"x": np.ones((3, 2))})


def test_a_series_is_the_column_of_its_name():
    assert columns_from_frame(pd.Series([1, 2], name="score"))["score"].tolist() == [1, 2]
    assert list(columns_from_frame(pd.Series([1, 2]))) == ["output"]


def test_pandas_types_become_numpy_types():
    frame = pd.DataFrame(
        {
            "whole": pd.array([1, 2], "Int32"),
            "gaps": pd.array([1, None], "Int64"),
            "text": pd.array(["a", "b"], "string"),
            "kind": pd.Categorical(["x", "y"]),
            "flag": pd.array([True, False], "boolean"),
        }
    )
    back = columns_from_frame(frame)
    assert {n: d.dtype.kind for n, d in back.items()} == {
        "whole": "i",
        "gaps": "f",
        "text": "O",
        "kind": "O",
        "flag": "b",
    }
    assert np.isnan(back["gaps"][1])


def test_dates_become_numpy_dates_in_utc():
    there = pd.to_datetime(["2026-01-01T12:00"])
    back = columns_from_frame(pd.DataFrame({"plain": there, "zoned": there.tz_localize("Europe/Oslo")}))
    assert [str(d[0])[:16] for d in back.values()] == ["2026-01-01T12:00", "2026-01-01T11:00"]


def test_missing_pandas_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    monkeypatch.delitem(sys.modules, adapter.__name__)
    with pytest.raises(MissingExtraError, match=r"pip install 'headrace\[pandas\]'"):
        importlib.import_module(adapter.__name__)
