"""Tests of numbers in CSV dialects: null words, decimal commas, and digits that other readers refuse."""

import math
import struct

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import levels
from cases import for_each
from headrace.core.block import FailureKind, Position
from headrace.formats.csv import CsvFormat, TextRows
from headrace.formats.csv_decode import CsvColumnsDecoder, CsvMatrixDecoder
from headrace.formats.csv_dialect import CsvDialect
from headrace.formats.matrix import (
    InvalidCell,
    NumberParser,
    load_delimited_numbers,
    load_flat_numbers,
    orjson_flat_numbers,
)

ENGINES = {
    "orjson": {"flat_numbers": orjson_flat_numbers, "delimited_numbers": lambda: None},
    "orjson, arrow": {"flat_numbers": orjson_flat_numbers},
    "simdjson": {"flat_numbers": load_flat_numbers(), "delimited_numbers": lambda: None},
    "simdjson, arrow": {"flat_numbers": load_flat_numbers(), "delimited_numbers": load_delimited_numbers},
}
NULL_NUMBER = "-8765432109876543e-300"
DIALECTS = [
    CsvDialect(null_words=("NA", "", "-9.5")),
    CsvDialect(b";", null_words=("NA", "0", "1e3")),
    CsvDialect(b";", decimal=","),
    CsvDialect(b"\t", null_words=("-", "7,5"), decimal=","),
    CsvDialect(b"|", b"'", b"\\", null_words=("\\N", "nan")),
    CsvDialect(b" ", b"", null_words=("x",)),
    CsvDialect(b".", decimal=","),
    CsvDialect(escape=b"-"),
    CsvDialect(b"-", null_words=("", "NA")),
    CsvDialect(b"8", null_words=("",)),
    CsvDialect(null_words=(NULL_NUMBER, "NA")),
    CsvDialect(),
]
NUMBERS = st.one_of(st.floats(width=32).map(repr), st.integers(-(2**54), 2**54).map(str))
CELLS = st.one_of(
    NUMBERS,
    NUMBERS,
    st.sampled_from(["NA", " NA", "NA ", "", " ", "-9.5", "0", "-0", "1e3", "1000", "-", "7,5", "1,5", "1,"]),
    st.sampled_from(["1_0", "٣", "\xa01", "1\x0c", "+1", "nan", "inf", "\\N", "x", "NAN", "NA5", "5NA"]),
    st.sampled_from([NULL_NUMBER, '"NA"', "'NA'", '"1,5"', "'7'", "1.5", "1,5.0"]),
)
TABLES = st.lists(st.lists(CELLS, min_size=2, max_size=2), min_size=1, max_size=30)


def number_of(text: str, dialect: CsvDialect) -> float | None:
    """Return the number of a cell as the documentation defines it, or None."""
    if text.strip() in dialect.null_words:
        return math.nan
    if not text.isascii() or "_" in text or (dialect.decimal == "," and "." in text):
        return None
    try:
        return float(text.replace(",", ".") if dialect.decimal == "," else text)
    except ValueError:
        return None


def bits(value: float) -> bytes:
    return b"nan" if np.isnan(value) else struct.pack("<d", float(value))


@settings(max_examples=levels.examples(4))
@given(st.sampled_from(DIALECTS), TABLES, st.sampled_from(["float64", "float32", "float16"]), st.booleans())
@example(DIALECTS[0], [["NA", "-9.5"], [NULL_NUMBER, "1"]], "float64", False)
@example(DIALECTS[0], [["1", "NA"]] * 40 + [["1", ""], ["-9.5", "-0"]], "float32", False)
@example(DIALECTS[1], [["NA", "x"]] * 200, "float64", False)
@example(DIALECTS[2], [["1,5", "2"]] * 200 + [["1.5", "1,"]], "float64", True)
@example(DIALECTS[0], [[" NA", " -9.5 "]] * 200, "float64", False)
@example(DIALECTS[4], [["0.0", "\\N"], ["1", "\\\\N"]], "float64", False)
@example(DIALECTS[0], [["NA", "-9.50"], ["-9.5 ", "1"]] * 100, "float64", False)
@example(DIALECTS[3], [["7,5", "-"], ["7.5", "1,25"]] * 100, "float64", False)
def test_every_parser_returns_the_documented_number_of_each_cell(dialect, table, dtype, crlf):
    records = [dialect.delimiter.join(cell.encode() for cell in row) for row in table]
    data = b"".join(record + (b"\r\n" if crlf else b"\n") for record in records)
    blocks = list(CsvFormat(dialect=dialect, header="none").blocks([data], Position()))
    good: list[list[float]] = []
    bad: list[tuple[int, FailureKind]] = []
    for index, record in enumerate(record for block in blocks for record in block.texts()):
        values = [number_of(cell.decode(), dialect) for cell in dialect.cells(record)]
        if len(values) == 2 and None not in values:
            with np.errstate(over="ignore"):
                good.append([np.dtype(dtype).type(value) for value in values])
        else:
            bad.append((index, FailureKind.DECODE))
    for engine in ENGINES.values():
        decoder = CsvMatrixDecoder("x", width=2, dtype=dtype, dialect=dialect, **engine)
        decoded = [decoder.decode(block) for block in blocks]
        found = [row for each in decoded for row in each.tensors["x"]]
        assert [[bits(v) for v in row] for row in found] == [[bits(v) for v in row] for row in good]
        assert [(f.position.record, f.kind) for each in decoded for f in each.failures] == bad


@for_each("engine", ENGINES)
@for_each("text", ["1_000", "٣", "\uff11\uff12", "\xa01", "1\u2007", "٣.1"])
@for_each("dtype", ["float32", "int64", "uint8", "bool"])
def test_digits_of_other_scripts_and_underscores_are_no_numbers(engine, text, dtype):
    data = f"1,1\n0,{text}\n1,0\n".encode()
    (block,) = CsvFormat(header="none").blocks([data], Position())
    decoded = CsvMatrixDecoder("x", width=2, dtype=dtype, **ENGINES[engine]).decode(block)
    assert decoded.tensors["x"].tolist() == [[1, 1], [1, 0]]
    (failure,) = decoded.failures
    assert failure.why.startswith(f'column 1: "{text}" is not ')


@for_each("dtype", ["int64", "uint8", "bool"])
@for_each("word", ["NA", "-999", ""])
@for_each("count", [1, 60])
def test_null_words_fail_for_integers_and_booleans(dtype, word, count):
    dialect = CsvDialect(null_words=("NA", "-999", ""))
    data = b"a,b\n" + b"1,1\n" * count + f"1, {word} \n".encode() + b"0,1\n" * count
    (block,) = CsvFormat(dialect=dialect, header="names").blocks([data], Position())
    for engine in ENGINES.values():
        for columns in (None, ["b"]):
            decoder = CsvMatrixDecoder("x", columns=columns, dtype=dtype, dialect=dialect, **engine)
            (failure,) = decoder.decode(block).failures
            expected = {"bool": "true, false, 1 or 0"}.get(dtype, f"an integer that {dtype} holds")
            assert failure.why == f'column 1 ("b"): missing, expected {expected}'
            assert failure.position.record == count


def test_null_words_stay_text_for_inputs_of_text():
    dialect = CsvDialect(null_words=("NA",))
    (block,) = CsvFormat(dialect=dialect, header="none").blocks([b"NA,NA\n1,x\n"], Position())
    decoder = CsvColumnsDecoder({"n": (0, "float32"), "t": (1, "text")}, dialect=dialect)
    decoded = decoder.decode(block)
    assert decoded.failures == ()
    assert decoded.tensors["t"].tolist() == ["NA", "x"]
    assert np.isnan(decoded.tensors["n"][0])


def test_number_of_a_null_word_in_the_data_is_kept():
    """The number that stands for null words could occur; then no null word is lost, and no number."""
    parser = NumberParser("float64", CsvDialect(null_words=("NA",)))
    parsed = parser.parse(TextRows.from_texts([b"NA,1", f"{NULL_NUMBER},2".encode(), b"3,NA"]), 2)
    np.testing.assert_array_equal(parsed.matrix, [[math.nan, 1], [float(NULL_NUMBER), 2], [3, math.nan]])


def test_null_words_of_many_rows_are_not_parsed_one_by_one(monkeypatch):
    """Rows in Python would be a hundred times slower."""

    def refuse(*_args):
        raise AssertionError("parsed in Python")

    monkeypatch.setattr(NumberParser, "_parse_each_row", refuse)
    parser = NumberParser("float32", CsvDialect(null_words=("NA", "")), delimited_numbers=lambda: None)
    rows = [b"1.5,NA", b",2", b"NA,", b"3,4"] * 500
    matrix = parser.parse(TextRows.from_texts(rows), 2).matrix
    assert np.isnan(matrix[:4]).tolist() == [[False, True], [True, False], [True, True], [False, False]]
    assert matrix.shape == (2000, 2)


def test_invalid_cells_say_whether_they_are_null_words():
    parser = NumberParser("int8", CsvDialect(null_words=("NA",)))
    invalid = parser.parse(TextRows.from_texts([b"NA", b"x", b"300"]), 1).invalid
    cells = [cell for cell in invalid.values() if isinstance(cell, InvalidCell)]
    assert [(cell.text, cell.is_null) for cell in cells] == [("NA", True), ("x", False), ("300", False)]


def test_null_words_with_space_are_found_by_every_parser():
    """Arrow would read the number in a null word if space stands beside it."""
    dialect = CsvDialect(null_words=("-999", "x"))
    rows = [b"-999 ,x", b'x,"1"'] * 2000
    for engine in ENGINES.values():
        parsed = NumberParser("float64", dialect, **engine).parse(TextRows.from_texts(rows), 2)
        assert parsed.invalid == {}
        np.testing.assert_array_equal(parsed.matrix[:2], [[math.nan, math.nan], [math.nan, 1]])


def test_decimal_comma_is_read_by_every_parser():
    """Quoted numbers are not JSON."""
    dialect = CsvDialect(b";", decimal=",")
    rows = [b'"1,5";2'] * 200 + [b'"1.5";2']
    for engine in ENGINES.values():
        parsed = NumberParser("float64", dialect, **engine).parse(TextRows.from_texts(rows), 2)
        assert list(parsed.invalid) == [200]
        assert parsed.matrix.tolist() == [[1.5, 2]] * 200


def test_arrow_reads_decimal_commas_and_null_words():
    pytest.importorskip("pyarrow")
    from headrace.formats.arrow import delimited_numbers

    dialect = CsvDialect(b";", null_words=("NA",), decimal=",")
    numbers = delimited_numbers(b'"1,5";NA\n2;"NA"', 2, 2, dialect)
    np.testing.assert_array_equal(numbers, [1.5, math.nan, 2, math.nan])
    assert delimited_numbers(b"1.5;2", 1, 2, dialect) is None
    assert delimited_numbers(b"1\\;2", 1, 2, CsvDialect(b";", escape=b"\\")) is None


@for_each("delimiter", [";", "\t"])
def test_numbers_are_those_of_pandas(delimiter):
    pandas = pytest.importorskip("pandas")
    import io

    table = ["1,5;2", "NA;-3,25", ";1e3", "7;null", " 8 ;9"]
    text = "".join(line.replace(";", delimiter) + "\n" for line in table)
    expected = pandas.read_csv(
        io.StringIO(text),
        sep=delimiter,
        decimal=",",
        header=None,
        na_values=["NA", "null", ""],
        keep_default_na=False,
        skipinitialspace=True,
    ).to_numpy(np.float64)
    dialect = CsvDialect(delimiter.encode(), null_words=("NA", "null", ""), decimal=",")
    (block,) = CsvFormat(dialect=dialect).blocks([text.encode()], Position())
    decoded = CsvMatrixDecoder("x", width=2, dtype="float64", dialect=dialect).decode(block)
    np.testing.assert_array_equal(decoded.tensors["x"], expected)
