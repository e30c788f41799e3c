import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow")

from headrace.formats.arrow import delimited_numbers, parquet_modules

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
