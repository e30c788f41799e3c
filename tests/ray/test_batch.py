"""Batches in either format, and those that are none."""

import numpy as np
import pyarrow as pa
import pytest

from headrace.core.errors import ConfigError, DataError
from headrace.ray.batch import batch_of


def test_a_mapping_of_arrays_is_taken_as_it_is():
    column = np.arange(3)
    batch = batch_of({"a": column})
    assert batch.rows == 3
    assert batch.array("a") is column
    assert not batch.arrow


def test_an_arrow_table_tells_null_from_nan():
    batch = batch_of(pa.table({"a": [1.0, None, float("nan")], "s": ["x", None, "y"], "i": [1, 2, 3]}))
    assert (batch.rows, batch.arrow) == (3, True)
    first, null, nan = batch.array("a")
    assert (first, null) == (1.0, None)
    assert np.isnan(nan)
    assert batch.array("s").tolist() == ["x", None, "y"]
    assert batch.array("i").dtype == np.int64


@pytest.mark.parametrize("nothing", [{}, pa.table({})])
def test_a_batch_without_columns_has_no_rows(nothing):
    assert batch_of(nothing).rows == 0


def test_another_format_is_refused_with_those_that_are_taken():
    pandas = pytest.importorskip("pandas")
    with pytest.raises(ConfigError, match=r'DataFrame.*batch_format="numpy" or "pyarrow"'):
        batch_of(pandas.DataFrame({"a": [1]}))


def test_columns_of_different_lengths_are_refused():
    with pytest.raises(DataError, match="a: 2, b: 3"):
        batch_of({"a": np.arange(2), "b": np.arange(3)})


def test_two_columns_of_one_name_are_refused():
    with pytest.raises(DataError, match="two columns of one name"):
        batch_of(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]))
