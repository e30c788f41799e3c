"""Tests of the number parsers: every parser returns the same numbers, or None."""

import math

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from cases import for_each
from headrace.formats.arrow import delimited_numbers
from headrace.formats.csv_dialect import CsvDialect
from headrace.formats.matrix import FlatNumberReader, orjson_flat_numbers

JSON_NUMBERS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.integers(-(2**63), 2**64 - 1).map(str),
    st.from_regex(r"-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,2})?", fullmatch=True),
)
ODD = st.sampled_from(
    [
        "+1",
        ".5",
        "1.",
        "007",
        "nan",
        "-inf",
        "Infinity",
        "1e400",
        "1e-400",
        " 1 ",
        '"1.5"',
        '"1"5',
        '1"5',
        '"1""5"',
        "0x10",
        "1_0",
        "1e",
        "",
        "NA",
        "null",
        "true",
        "nan(1)",
        "\t2",
        "1\r",
        "--1",
        "-0",
        "-0.0",
        "1e-0",
    ]
)


@for_each("read", [FlatNumberReader(), orjson_flat_numbers])
@given(st.lists(JSON_NUMBERS, min_size=1, max_size=8))
@example(["9007199254740993", "-9007199254740993", "18446744073709551615"])
@example(["-0.0", "5e-324", "1.7976931348623157e308", "2.2250738585072011e-308"])
def test_numbers_are_the_nearest_float64(read, texts):
    """Numbers equal those of `float` bit for bit, except that the integer -0 has no sign."""
    numbers = read(f"[{','.join(texts)}]".encode(), "d")
    if numbers is None:
        assert any(
            (abs(float(t)) >= 2**63 and t.lstrip("-").isdigit()) or math.isinf(float(t)) for t in texts
        )
        return
    assert numbers.dtype == np.float64
    assert numbers.tolist() == [float(t) for t in texts]
    signed = [t for t in zip(texts, numbers, strict=True) if t[0] != "-0"]
    assert all(math.copysign(1, float(t)) == math.copysign(1, n) for t, n in signed)


@for_each("read", [FlatNumberReader(), orjson_flat_numbers])
@for_each("kind", ["d", "i", "u"])
@for_each("cell", ["true", "false", "null", '"1"', "{}", "+1", "", "nan", "01", "1 2", "x"])
def test_texts_other_than_json_numbers_are_rejected(read, kind, cell):
    assert read(f"[1,{cell}]".encode(), kind) is None
    assert read(b"[1,2]", kind).tolist() == [1, 2]


@for_each("read", [FlatNumberReader(), orjson_flat_numbers])
def test_integers_are_exact_or_rejected(read):
    low, high, top = -(2**63), 2**63 - 1, 2**64 - 1
    assert read(f"[{low},{high}]".encode(), "i").tolist() == [low, high]
    assert read(f"[0,{top}]".encode(), "u").tolist() == [0, top]
    for kind, text in [
        ("i", top),
        ("i", 2**64),
        ("i", "1.0"),
        ("i", "1e3"),
        ("u", -1),
        ("u", 2**64),
        ("u", "2.0"),
    ]:
        assert read(f"[1,{text}]".encode(), kind) is None


def test_result_outlives_the_next_text():
    """The parser is reused, but does not own the numbers."""
    read = FlatNumberReader()
    first = read(b"[1.5,2.5]", "d")
    assert read(b"[", "d") is None
    read(b"[7,8,9]", "d")
    assert first.tolist() == [1.5, 2.5]


@given(st.lists(JSON_NUMBERS | ODD, min_size=1, max_size=4))
def test_arrow_reads_the_values_of_float_or_none(cells):
    """Arrow accepts more than JSON, and must not accept more than `float`."""
    text = "\n".join(f"{cell};1" for cell in cells).encode()
    numbers = delimited_numbers(text, len(cells), 2, CsvDialect(b";"))
    if numbers is None:
        return
    exact = [float(CsvDialect(b";").cells(line)[0]) for line in text.split(b"\n")]
    assert repr(numbers[::2].tolist()).replace("-nan", "nan") == repr(exact)


def test_arrow_accepts_quoted_numbers_and_nan():
    numbers = delimited_numbers(b'"1.5",nan\r\n+2,.5', 2, 2, CsvDialect())
    assert repr(numbers.tolist()) == "[1.5, nan, 2.0, 0.5]"


def test_orjson_is_used_without_the_extras(monkeypatch):
    import sys

    from headrace.formats import matrix

    monkeypatch.setattr(matrix, "simdjson", None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "headrace.formats.arrow", raising=False)
    assert matrix.load_flat_numbers() is orjson_flat_numbers
    assert matrix.load_delimited_numbers() is None
