"""Batches in both formats, and unsupported batches."""

import numpy as np
import pyarrow as pa
import pytest

from cases import for_each
from headrace.contrib.ray.inputs import as_column_batch
from headrace.core.errors import ConfigError, DataError


def test_mapping_columns_are_not_copied():
    column = np.arange(3)
    batch = as_column_batch({"a": column})
    assert batch.rows == 3
    assert batch.array("a") is column
    assert not batch.arrow


def test_arrow_table_distinguishes_null_from_nan():
    batch = as_column_batch(pa.table({"a": [1.0, None, float("nan")], "s": ["x", None, "y"], "i": [1, 2, 3]}))
    assert (batch.rows, batch.arrow) == (3, True)
    first, null, nan = batch.array("a")
    assert (first, null) == (1.0, None)
    assert np.isnan(nan)
    assert batch.array("s").tolist() == ["x", None, "y"]
    assert batch.array("i").dtype == np.int64


@for_each("empty", [{}, pa.table({})])
def test_batch_without_columns_has_no_rows(empty):
    assert as_column_batch(empty).rows == 0


def test_unsupported_format_is_refused():
    pandas = pytest.importorskip("pandas")
    with pytest.raises(ConfigError, match=r'DataFrame.*batch_format="numpy" or "pyarrow"'):
        as_column_batch(pandas.DataFrame({"a": [1]}))


def test_columns_of_different_lengths_are_refused():
    with pytest.raises(DataError, match="a: 2, b: 3"):
        as_column_batch({"a": np.arange(2), "b": np.arange(3)})


def test_two_columns_of_one_name_are_refused():
    with pytest.raises(DataError, match="two columns with the same name"):
        as_column_batch(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]))
