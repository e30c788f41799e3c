"""Tests of parsing rows of numbers, with every parser."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cases import for_each
from headrace.core.errors import ConfigError
from headrace.formats.csv import CsvDialect, TextRows
from headrace.formats.matrix import (
    InvalidCell,
    NumberParser,
    load_delimited_numbers,
    load_flat_numbers,
    number_dtype,
    orjson_flat_numbers,
)

COMMA = CsvDialect.from_strings(",", '"')
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
    ("plain", orjson_flat_numbers, lambda: None),
    ("fastest", load_flat_numbers(), load_delimited_numbers),
]


def parse(texts: list[str], dtype, flat, other, width=2):
    parser = NumberParser(dtype, COMMA, flat_numbers=flat, delimited_numbers=other)
    return parser.parse(TextRows.from_texts([t.encode() for t in texts]), width)


def parse_with_python(cell: str, dtype) -> float | int | None:
    """Return the value that Python gives a cell of ASCII text without underscores, or None."""
    if not cell.isascii() or "_" in cell:
        return None
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


@for_each(("name", "flat", "other"), ENGINES)
@for_each("dtype", ["float32", "float64", "int64", "uint8", "uint64"])
@given(data=st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=40))
@example(data=[("1", "-0")] * 30 + [("x", "1")])
@example(data=[("nan", ".5")] * 30)
@example(data=[("1", "2"), ("9223372036854775808", "18446744073709551615")])
def test_numbers_equal_pythons_values_of_each_cell(name, flat, other, dtype, data):
    parsed = parse([f"{a},{b}" for a, b in data], dtype, flat, other)
    good, bad = [], {}
    for index, row in enumerate(data):
        cells = [c.decode() for c in COMMA.cells(",".join(row).encode())]
        values = [parse_with_python(c, dtype) for c in cells]
        if len(cells) != 2:
            bad[index] = len(cells)
        elif None in values:
            column = values.index(None)
            bad[index] = (column, cells[column])
        else:
            good.append(values)
    matrix = np.array(good, dtype).reshape(len(good), 2)
    assert parsed.matrix.dtype == dtype
    # Signs are compared too, so that -0 counts; all NaNs are equal.
    np.testing.assert_array_equal(parsed.matrix, matrix)
    if np.dtype(dtype).kind == "f":
        numbers = ~np.isnan(matrix)
        assert (np.signbit(parsed.matrix) == np.signbit(matrix))[numbers].all()
    assert {
        i: (b.column, b.text) if isinstance(b, InvalidCell) else b for i, b in parsed.invalid.items()
    } == bad


@for_each(("name", "flat", "other"), ENGINES)
def test_booleans_are_words_or_digits(name, flat, other):
    parsed = parse(["true,0", "FALSE, 1", "yes,1", "2,0"], "bool", flat, other)
    assert parsed.matrix.tolist() == [[True, False], [False, True]]
    assert {i: b.text for i, b in parsed.invalid.items()} == {2: "yes", 3: "2"}
    assert parsed.invalid[2].expected == "true, false, 1 or 0"


def test_cell_that_is_not_utf8_has_no_text():
    parser = NumberParser("float32", COMMA)
    parsed = parser.parse(TextRows.from_texts([b"1,\xff", b"1,2"]), 2)
    assert (parsed.invalid[0].column, parsed.invalid[0].text) == (1, None)
    assert parsed.matrix.tolist() == [[1, 2]]


@for_each("width", [1, 255, 256, 257, 600])
def test_cells_of_wide_rows_are_counted_exactly(width):
    """Delimiters are counted in one byte per row as long as that is enough."""
    row = ",".join(["1"] * width)
    longer = row + ",1" * 256
    parsed = parse([row, longer, row], "float32", None, lambda: None, width)
    assert (parsed.matrix.shape, parsed.invalid) == ((2, width), {1: width + 256})


def test_zero_rows_give_a_matrix_of_the_width():
    assert parse([], "float32", None, lambda: None, 3).matrix.shape == (0, 3)


@for_each("dtype", ["object", "complex64", "U3", "datetime64[s]"])
def test_dtypes_that_text_cannot_become_are_rejected(dtype):
    with pytest.raises(ConfigError, match="use a boolean, integer or float dtype"):
        number_dtype(dtype)


def test_delimited_parser_is_not_called_for_each_bad_row():
    """A call costs as much as a hundred rows."""
    asked = []

    def refuses(text, rows, *_):
        asked.append(rows)

    parsed = parse(["a,b"] * 5000, "float32", None, lambda: refuses)
    assert len(parsed.invalid) == 5000
    assert len(asked) < 5000 / 20
