"""Tests of CSV output: unchanged record bytes, numbers that read back, quotes only where necessary."""

import csv
import io
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cases import for_each
from headrace.core.block import Block, Position
from headrace.core.errors import ConfigError, ModelContractError
from headrace.formats.contract import BlockSelection
from headrace.formats.csv import CsvFormat
from headrace.formats.csv_dialect import CsvDialect
from headrace.formats.csv_encode import CsvEncoder
from headrace.formats.encode import output_columns


def selections_of(text, **settings):
    """Return selections of every block that the CSV format cuts."""
    blocks = CsvFormat(**settings).blocks([text], Position())
    return [BlockSelection(block, 0, len(block)) for block in blocks]


def media_selection(rows):
    """Return a selection of records without raw bytes."""
    return BlockSelection(
        Block(Position(), starts=np.zeros(rows, np.int64), ends=np.zeros(rows, np.int64)), 0, rows
    )


def encode_part(selections, outputs, **settings):
    """Return a whole part."""
    encoder = CsvEncoder(output_columns(outputs), **settings)
    return encoder.begin() + encoder.encode(selections, outputs) + encoder.finish()


def test_records_are_written_byte_for_byte():
    """Quotes, odd spacing, percent signs and bytes that are not UTF-8 stay; line ends become LF."""
    text = b'1.50,"a ""b"",\nc"\n 007 ,x%y\n\xff,\n'
    out = encode_part(selections_of(text), {"y": np.array([0.5, 1.0, 2.0], np.float32)}, join="input")
    assert out == b'1.50,"a ""b"",\nc",0.5\n 007 ,x%y,1.0\n\xff,,2.0\n'


@for_each("text", [b"a\nb\nc\n", b"a\r\nb\r\nc", b"a\n\nb\r\nc\n"])
def test_output_is_independent_of_line_ends(text):
    assert encode_part(selections_of(text), {"y": np.arange(3)}, join="input") == b"a,0\nb,1\nc,2\n"


def test_outputs_of_every_shape_and_type():
    """Vectors become numbered columns, and deeper arrays are flattened."""
    outputs = {
        "label": np.array([3, 4]),
        "p": np.array([[0.25, 0.75], [1.0, 0.0]], np.float32),
        "ok": np.array([True, False]),
        "box": np.arange(8, dtype=np.uint8).reshape(2, 2, 2),
        "one": np.array([[1], [2]]),
        "none": np.empty((2, 0), np.float32),
        "tags": np.array([["a", "b,c"], ["", 'd"']], object),
    }
    assert encode_part([media_selection(2)], outputs, header=True).decode().splitlines() == [
        "label,p_0,p_1,ok,box_0,box_1,box_2,box_3,one_0,tags_0,tags_1",
        '3,0.25,0.75,true,0,1,2,3,1,a,"b,c"',
        '4,1.0,0.0,false,4,5,6,7,2,,"d"""',
    ]


def test_nonfinite_numbers_are_named():
    outputs = {"y": np.array([np.nan, 1.0]), "v": np.array([[np.inf, 2], [3, -np.inf]], np.float32)}
    assert encode_part([media_selection(2)], outputs) == b"nan,inf,2.0\n1.0,3.0,-inf\n"


def test_another_delimiter():
    """It stands between all columns, and a comma no longer needs quotes."""
    outputs = {"v": np.array([[1, 2], [3, 4]]), "s": np.array(["a,b", "c;d"])}
    text = b"x;y\nz;w\n"
    out = encode_part(
        selections_of(text, dialect=CsvDialect(b";")),
        outputs,
        join="input",
        header=True,
        dialect=CsvDialect(b";"),
        input_columns=["k", "l"],
    )
    assert out == b'k;l;v_0;v_1;s\nx;y;1;2;a,b\nz;w;3;4;"c;d"\n'


def test_text_elements_of_any_type():
    """Bytes are unchanged, None is empty, objects are JSON, and a lone surrogate is escaped."""
    values = [b"\xff", "ä", None, 7, [1, "a"], True, "\ud800"]
    outputs = {"s": np.array([*values, None], object)[:-1], "n": np.arange(len(values))}
    assert encode_part([media_selection(len(values))], outputs) == (
        b'\xff,0\n\xc3\xa4,1\n,2\n7,3\n"[1,""a""]",4\ntrue,5\n\\ud800,6\n'
    )


def test_single_empty_string_is_not_a_blank_line():
    """A blank line is not a record for any CSV reader."""
    out = encode_part([media_selection(2)], {"s": np.array(["", "a"])})
    assert out == b'""\na\n'
    assert list(csv.reader(io.StringIO(out.decode()))) == [[""], ["a"]]


def test_record_that_is_not_csv_is_one_field():
    selections = selections_of(b'{"a":1,"b":2}\nplain\n', dialect=CsvDialect(quote=b""))
    outputs = {"y": np.array([1, 2])}
    out = encode_part(selections, outputs, join="input", header=True, input_is_csv=False)
    assert out == b'input,y\n"{""a"":1,""b"":2}",1\nplain,2\n'
    plain = selections_of(b"a\nb\n")
    assert encode_part(plain, outputs, join="input", input_is_csv=False) == b"a,1\nb,2\n"


def test_selections_of_several_blocks_with_missing_rows():
    """Row i of the outputs belongs to the i-th record of all selections."""
    first, second = selections_of(b"a\nb\nc\n")[0].block, selections_of(b"d\ne\n")[0].block
    selections = [
        BlockSelection(first, 0, 3, np.array([0, 2])),
        BlockSelection(second, 1, 2),
        BlockSelection(second, 0, 1),
    ]
    out = encode_part(selections, {"y": np.arange(4)}, join="input")
    assert out == b"a,0\nc,1\ne,2\nd,3\n"


def test_empty_outputs_and_empty_input():
    selections = selections_of(b"a,b\nc,d\n")
    assert (
        encode_part(selections, {}, join="input", header=True, input_columns=["p", "q"]) == b"p,q\na,b\nc,d\n"
    )
    assert CsvEncoder((), header=True).begin() == b""
    assert encode_part([], {"y": np.empty(0)}) == b""


def test_header_of_a_join_needs_the_input_names():
    with pytest.raises(ConfigError, match="needs the names of the input columns"):
        CsvEncoder((), join="input", header=True)


def test_header_names_are_quoted():
    selections = selections_of(b"1,2\n")
    out = encode_part(
        selections, {"y": np.array([3])}, join="input", header=True, input_columns=['a"b', "c,d"]
    )
    assert out == b'"a""b","c,d",y\n1,2,3\n'


@for_each("settings", [{"join": "outer"}, {"header": True, "join": "input"}])
def test_invalid_settings_are_rejected(settings):
    with pytest.raises(ConfigError):
        CsvEncoder((), **settings)


def test_outputs_that_change_their_shape_are_rejected():
    encoder = CsvEncoder(output_columns({"y": np.zeros((1, 2))}))
    with pytest.raises(ModelContractError, match=r"started with rows of shape \(2,\)"):
        encoder.encode([media_selection(1)], {"y": np.zeros((1, 3))})


cells = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5)
# csv.writer leaves a lone carriage return unquoted, and a byte order mark at the start is not data.
raw_cells = st.text(st.characters(codec="utf-8", exclude_characters="\0\r\ufeff"), max_size=5)
numbers = hnp.arrays(
    st.sampled_from([np.float32, np.float64, np.int64, np.uint64]),
    hnp.array_shapes(min_dims=1, max_dims=3, max_side=4),
)


@given(numbers, st.data())
def test_csv_reader_reads_the_output_back(array, data):
    """All shapes, and any cut into selections."""
    rows = len(array)
    texts = data.draw(st.lists(cells, min_size=rows, max_size=rows))
    records = data.draw(st.lists(st.lists(raw_cells, min_size=2, max_size=2), min_size=rows, max_size=rows))
    source = io.StringIO()
    csv.writer(source, lineterminator=data.draw(st.sampled_from(["\n", "\r\n"]))).writerows(records)
    selections = [
        BlockSelection(selection.block, index, index + 1)
        if data.draw(st.booleans())
        else BlockSelection(selection.block, index, index + 1, np.array([index]))
        for selection in selections_of(source.getvalue().encode())
        for index in range(len(selection))
    ]
    outputs = {"a": array, "s": np.array([*texts, None], object)[:-1]}
    out = encode_part(selections, outputs, join="input").decode()
    read = list(csv.reader(io.StringIO(out, newline="")))
    assert [row[:2] for row in read] == records
    assert [row[-1] for row in read] == texts
    values = np.array([[array.dtype.type(cell) for cell in row[2:-1]] for row in read])
    np.testing.assert_array_equal(values, array.reshape(rows, -1))


@given(st.integers(1, 30), st.lists(st.integers(0, 30), max_size=4))
def test_output_is_independent_of_batches(rows, cuts):
    (selection,) = selections_of(b"".join(b"%d,%%\n" % i for i in range(rows)))
    array = np.arange(rows, dtype=np.float32) / 7
    edges = sorted({0, rows, *(cut for cut in cuts if cut < rows)})
    encoder = CsvEncoder(output_columns({"y": array[:1]}), join="input")
    parts = [
        encoder.encode([BlockSelection(selection.block, a, b)], {"y": array[a:b]}) for a, b in pairwise(edges)
    ]
    assert b"".join(parts) == encode_part([selection], {"y": array}, join="input")


@for_each(
    ("dialect", "expected"),
    [
        (CsvDialect(b";", decimal=","), b"1,5;-2,0;true;a;nan\n"),
        (CsvDialect(b"."), b'"1.5"."-2.0".true.a.nan\n'),
        (CsvDialect(b".", decimal=","), b"1,5.-2,0.true.a.nan\n"),
        (CsvDialect(b"e", b"'"), b"1.5e-2.0e'true'eaenan\n"),
        (CsvDialect(b"5", b"", b"^"), b"1.^55-2.05true5a5nan\n"),
    ],
)
def test_numbers_have_the_decimal_mark_and_are_one_cell(dialect, expected):
    """A delimiter that numbers contain is quoted in them."""
    outputs = {
        "y": np.array([[1.5, -2.0]]),
        "b": np.array([True]),
        "t": np.array(["a"], object),
        "n": np.array([np.nan]),
    }
    encoder = CsvEncoder(output_columns(outputs), dialect=dialect)
    text = encoder.encode(selections_of(b"x\n"), outputs)
    assert text == expected
    assert len(dialect.cells(text[:-1])) == 5


def test_single_column_has_the_decimal_mark():
    outputs = {"y": np.array([1.5, 2.25])}
    encoder = CsvEncoder(output_columns(outputs), dialect=CsvDialect(b";", decimal=","))
    assert encoder.encode(selections_of(b"x\ny\n"), outputs) == b"1,5\n2,25\n"
