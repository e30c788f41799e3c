"""CSV out: the record's own bytes, numbers that read back, quotes only where they must be."""

import csv
import io
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from headrace.core.block import Block, Position
from headrace.core.errors import ConfigError, ModelContractError
from headrace.formats.contract import Piece
from headrace.formats.csv import CsvFormat
from headrace.formats.csv_encode import CsvEncoder
from headrace.formats.encode import output_columns


def pieces_of(text, **settings):
    """Pieces of every block that the CSV format cuts."""
    blocks = CsvFormat(**settings).blocks([text], Position())
    return [Piece(block, 0, len(block)) for block in blocks]


def media_piece(rows):
    """Records without raw bytes."""
    return Piece(Block(Position(), starts=np.zeros(rows, np.int64), ends=np.zeros(rows, np.int64)), 0, rows)


def encoded(pieces, outputs, **settings):
    """A whole part."""
    encoder = CsvEncoder(output_columns(outputs), **settings)
    return encoder.begin() + encoder.encode(pieces, outputs) + encoder.finish()


def test_records_come_out_byte_for_byte():
    """Quotes, odd spacing, percent signs and bytes that are not UTF-8 stay; line ends become LF."""
    text = b'1.50,"a ""b"",\nc"\n 007 ,x%y\n\xff,\n'
    out = encoded(pieces_of(text), {"y": np.array([0.5, 1.0, 2.0], np.float32)}, join="input")
    assert out == b'1.50,"a ""b"",\nc",0.5\n 007 ,x%y,1.0\n\xff,,2.0\n'


@pytest.mark.parametrize("text", [b"a\nb\nc\n", b"a\r\nb\r\nc", b"a\n\nb\r\nc\n"])
def test_line_ends_never_show(text):
    """LF, CRLF, blank lines, no line end at the end: the same output."""
    assert encoded(pieces_of(text), {"y": np.arange(3)}, join="input") == b"a,0\nb,1\nc,2\n"


def test_every_kind_of_output():
    """Vectors become numbered columns, deeper arrays are flattened; the names say so."""
    outputs = {
        "label": np.array([3, 4]),
        "p": np.array([[0.25, 0.75], [1.0, 0.0]], np.float32),
        "ok": np.array([True, False]),
        "box": np.arange(8, dtype=np.uint8).reshape(2, 2, 2),
        "one": np.array([[1], [2]]),
        "none": np.empty((2, 0), np.float32),
        "tags": np.array([["a", "b,c"], ["", 'd"']], object),
    }
    assert encoded([media_piece(2)], outputs, header=True).decode().splitlines() == [
        "label,p_0,p_1,ok,box_0,box_1,box_2,box_3,one_0,tags_0,tags_1",
        '3,0.25,0.75,true,0,1,2,3,1,a,"b,c"',
        '4,1.0,0.0,false,4,5,6,7,2,,"d"""',
    ]


def test_what_is_not_finite_has_a_name():
    """NaN and infinities, in scalars and in vectors, read back with float()."""
    outputs = {"y": np.array([np.nan, 1.0]), "v": np.array([[np.inf, 2], [3, -np.inf]], np.float32)}
    assert encoded([media_piece(2)], outputs) == b"nan,inf,2.0\n1.0,3.0,-inf\n"


def test_another_delimiter():
    """It stands between all columns, and a comma no longer needs quotes."""
    outputs = {"v": np.array([[1, 2], [3, 4]]), "s": np.array(["a,b", "c;d"])}
    text = b"x;y\nz;w\n"
    out = encoded(
        pieces_of(text, delimiter=";"),
        outputs,
        join="input",
        header=True,
        delimiter=";",
        input_columns=["k", "l"],
    )
    assert out == b'k;l;v_0;v_1;s\nx;y;1;2;a,b\nz;w;3;4;"c;d"\n'


def test_text_elements_of_any_kind():
    """Bytes as they are, None empty, objects as JSON, and a lone surrogate does not break the run."""
    values = [b"\xff", "ä", None, 7, [1, "a"], True, "\ud800"]
    outputs = {"s": np.array([*values, None], object)[:-1], "n": np.arange(len(values))}
    assert encoded([media_piece(len(values))], outputs) == (
        b'\xff,0\n\xc3\xa4,1\n,2\n7,3\n"[1,""a""]",4\ntrue,5\n\\ud800,6\n'
    )


def test_an_empty_string_alone_is_no_blank_line():
    """A blank line is no record for any CSV reader."""
    out = encoded([media_piece(2)], {"s": np.array(["", "a"])})
    assert out == b'""\na\n'
    assert list(csv.reader(io.StringIO(out.decode()))) == [[""], ["a"]]


def test_a_record_that_is_no_csv_is_one_field():
    """A JSON line joined into CSV is quoted where it must be, so that the columns stay columns."""
    pieces = pieces_of(b'{"a":1,"b":2}\nplain\n', quote="")
    outputs = {"y": np.array([1, 2])}
    out = encoded(pieces, outputs, join="input", header=True, input_is_csv=False)
    assert out == b'input,y\n"{""a"":1,""b"":2}",1\nplain,2\n'
    plain = pieces_of(b"a\nb\n")
    assert encoded(plain, outputs, join="input", input_is_csv=False) == b"a,1\nb,2\n"


def test_pieces_of_several_blocks_and_with_rows_left_out():
    """Row i of the outputs goes to the i-th record of all pieces together."""
    first, second = pieces_of(b"a\nb\nc\n")[0].block, pieces_of(b"d\ne\n")[0].block
    pieces = [Piece(first, 0, 3, np.array([0, 2])), Piece(second, 1, 2), Piece(second, 0, 1)]
    out = encoded(pieces, {"y": np.arange(4)}, join="input")
    assert out == b"a,0\nc,1\ne,2\nd,3\n"


def test_nothing_to_predict():
    """Without outputs there is no prediction column, and no delimiter for it; without rows no line."""
    pieces = pieces_of(b"a,b\nc,d\n")
    assert encoded(pieces, {}, join="input", header=True, input_columns=["p", "q"]) == b"p,q\na,b\nc,d\n"
    assert CsvEncoder((), header=True).begin() == b""
    assert encoded([], {"y": np.empty(0)}) == b""


def test_a_header_needs_the_inputs_names():
    """Names over the predictions alone would stand over the wrong columns."""
    with pytest.raises(ConfigError, match="needs the names of the input's columns"):
        CsvEncoder((), join="input", header=True)


def test_names_are_quoted_too():
    """A column name may hold anything."""
    pieces = pieces_of(b"1,2\n")
    out = encoded(pieces, {"y": np.array([3])}, join="input", header=True, input_columns=['a"b', "c,d"])
    assert out == b'"a""b","c,d",y\n1,2,3\n'


@pytest.mark.parametrize(
    "settings", [{"join": "outer"}, {"delimiter": ""}, {"delimiter": "ab"}, {"delimiter": '"'}]
)
def test_settings_that_cannot_be(settings):
    """Refused at once."""
    with pytest.raises(ConfigError):
        CsvEncoder((), **settings)


def test_outputs_that_change_their_shape_are_refused():
    """A vector of three under a header of two would be a broken file."""
    encoder = CsvEncoder(output_columns({"y": np.zeros((1, 2))}))
    with pytest.raises(ModelContractError, match=r"began with rows of shape \(2,\)"):
        encoder.encode([media_piece(1)], {"y": np.zeros((1, 3))})


cells = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5)
# Python's writer leaves a lone carriage return unquoted, and a byte order mark at the start is none of the data.
raw_cells = st.text(st.characters(codec="utf-8", exclude_characters="\0\r\ufeff"), max_size=5)
numbers = hnp.arrays(
    st.sampled_from([np.float32, np.float64, np.int64, np.uint64]),
    hnp.array_shapes(min_dims=1, max_dims=3, max_side=4),
)


@settings(deadline=None)
@given(numbers, st.data())
def test_what_python_reads_back(array, data):
    """`csv.reader` finds the records' cells, then every number and string, in every shape and any cut."""
    rows = len(array)
    texts = data.draw(st.lists(cells, min_size=rows, max_size=rows))
    records = data.draw(st.lists(st.lists(raw_cells, min_size=2, max_size=2), min_size=rows, max_size=rows))
    source = io.StringIO()
    csv.writer(source, lineterminator=data.draw(st.sampled_from(["\n", "\r\n"]))).writerows(records)
    pieces = [
        Piece(piece.block, index, index + 1)
        if data.draw(st.booleans())
        else Piece(piece.block, index, index + 1, np.array([index]))
        for piece in pieces_of(source.getvalue().encode())
        for index in range(len(piece))
    ]
    outputs = {"a": array, "s": np.array([*texts, None], object)[:-1]}
    out = encoded(pieces, outputs, join="input").decode()
    read = list(csv.reader(io.StringIO(out, newline="")))
    assert [row[:2] for row in read] == records
    assert [row[-1] for row in read] == texts
    values = np.array([[array.dtype.type(cell) for cell in row[2:-1]] for row in read])
    np.testing.assert_array_equal(values, array.reshape(rows, -1))


@settings(deadline=None)
@given(st.integers(1, 30), st.lists(st.integers(0, 30), max_size=4))
def test_bytes_do_not_depend_on_the_batches(rows, cuts):
    """Any cut of the same records into calls gives the same part."""
    (piece,) = pieces_of(b"".join(b"%d,%%\n" % i for i in range(rows)))
    array = np.arange(rows, dtype=np.float32) / 7
    edges = sorted({0, rows, *(cut for cut in cuts if cut < rows)})
    encoder = CsvEncoder(output_columns({"y": array[:1]}), join="input")
    parts = [encoder.encode([Piece(piece.block, a, b)], {"y": array[a:b]}) for a, b in pairwise(edges)]
    assert b"".join(parts) == encoded([piece], {"y": array}, join="input")
