import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.core.errors import ConfigError
from headrace.formats.csv_cells import Dialect, Rows
from headrace.formats.matrix import (
    BadCell,
    NumberParser,
    arrow_delimited_numbers,
    fastest_flat_numbers,
    number_dtype,
    plain_flat_numbers,
)

COMMA = Dialect.of(",", '"')
CELLS = st.one_of(
    st.floats(allow_nan=False, width=32).map(repr),
    st.integers(-(2**70), 2**70).map(str),
    st.sampled_from(
        [
            "-0",
            "-0.0",
            "0",
            "1e400",
            "1E-400",
            " 1",
            "2 ",
            "1_0",
            "+3",
            ".5",
            "1.",
            "nan",
            "Infinity",
            "1e5",
            "0x1",
        ]
    ),
    st.sampled_from(["", "x", "true", "[", "]", '"7"', "1,", "null", "٣"]),
)
ENGINES = [
    ("plain", plain_flat_numbers, lambda: None),
    ("fastest", fastest_flat_numbers(), arrow_delimited_numbers),
]


def parse(texts: list[str], dtype, flat, other, width=2):
    parser = NumberParser(dtype, COMMA, flat_numbers=flat, delimited_numbers=other)
    return parser.parse(Rows.joined([t.encode() for t in texts]), width)


def expected(cell: str, dtype) -> float | int | None:
    """What Python makes of a cell."""
    if np.dtype(dtype).kind == "f":
        try:
            with np.errstate(over="ignore"):
                return np.dtype(dtype).type(float(cell))
        except ValueError:
            return None
    try:
        value = int(cell)
    except ValueError:
        return None
    bounds = np.iinfo(dtype)
    return value if bounds.min <= value <= bounds.max else None


@pytest.mark.parametrize(("name", "flat", "other"), ENGINES, ids=[e[0] for e in ENGINES])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint8", "uint64"])
@given(data=st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=40))
@example(data=[("1", "-0")] * 30 + [("x", "1")])
@example(data=[("nan", ".5")] * 30)
@example(data=[("1", "2"), ("9223372036854775808", "18446744073709551615")])
def test_numbers_are_what_python_makes_of_each_cell(name, flat, other, dtype, data):
    parsed = parse([f"{a},{b}" for a, b in data], dtype, flat, other)
    good, bad = [], {}
    for index, row in enumerate(data):
        cells = [c.decode() for c in COMMA.cells(",".join(row).encode())]
        values = [expected(c, dtype) for c in cells]
        if len(cells) != 2:
            bad[index] = len(cells)
        elif None in values:
            column = values.index(None)
            bad[index] = (column, cells[column])
        else:
            good.append(values)
    wanted = np.array(good, dtype).reshape(len(good), 2)
    assert parsed.matrix.dtype == dtype
    # Bits, so that -0 and nan count; every nan is one.
    np.testing.assert_array_equal(parsed.matrix, wanted)
    if np.dtype(dtype).kind == "f":
        numbers = ~np.isnan(wanted)
        assert (np.signbit(parsed.matrix) == np.signbit(wanted))[numbers].all()
    assert {i: (b.column, b.text) if isinstance(b, BadCell) else b for i, b in parsed.bad.items()} == bad


@pytest.mark.parametrize(("name", "flat", "other"), ENGINES, ids=[e[0] for e in ENGINES])
def test_booleans_are_words_or_digits(name, flat, other):
    parsed = parse(["true,0", "FALSE, 1", "yes,1", "2,0"], "bool", flat, other)
    assert parsed.matrix.tolist() == [[True, False], [False, True]]
    assert {i: b.text for i, b in parsed.bad.items()} == {2: "yes", 3: "2"}
    assert parsed.bad[2].wanted == "true, false, 1 or 0"


def test_what_is_not_utf8_is_told_apart():
    parser = NumberParser("float32", COMMA)
    parsed = parser.parse(Rows.joined([b"1,\xff", b"1,2"]), 2)
    assert (parsed.bad[0].column, parsed.bad[0].text) == (1, None)
    assert parsed.matrix.tolist() == [[1, 2]]


@pytest.mark.parametrize("width", [1, 255, 256, 257, 600])
def test_wide_rows_are_counted_right(width):
    """Delimiters are counted in a byte a row while that is enough."""
    row = ",".join(["1"] * width)
    longer = row + ",1" * 256
    parsed = parse([row, longer, row], "float32", None, lambda: None, width)
    assert (parsed.matrix.shape, parsed.bad) == ((2, width), {1: width + 256})


def test_no_rows_are_a_matrix_of_that_width():
    assert parse([], "float32", None, lambda: None, 3).matrix.shape == (0, 3)


@pytest.mark.parametrize("dtype", ["object", "complex64", "U3", "datetime64[s]"])
def test_dtypes_that_no_text_becomes_are_refused(dtype):
    with pytest.raises(ConfigError, match="use a boolean, integer or float dtype"):
        number_dtype(dtype)


def test_where_all_rows_are_bad_the_other_engine_is_not_asked_for_each():
    """Asking it costs a hundred times what a row does: many failures would else be that much slower."""
    asked = []

    def refuses(text, rows, *_):
        asked.append(rows)

    parsed = parse(["a,b"] * 5000, "float32", None, lambda: refuses)
    assert len(parsed.bad) == 5000
    assert len(asked) < 5000 / 20
