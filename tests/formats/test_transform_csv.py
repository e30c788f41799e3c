"""The CSV output filter: the cells that a slow reading picks, byte for byte, in whatever records there are."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.block import Block, Position
from headrace.core.errors import ConfigError, DataError
from headrace.formats import transform_csv
from headrace.formats.contract import Piece
from headrace.formats.csv import CsvFormat
from headrace.formats.csv_cells import Dialect
from headrace.formats.csv_encode import CsvEncoder
from headrace.formats.encode import output_columns
from headrace.formats.json_path import compile_path
from headrace.formats.transform_csv import TransformCsvEncoder


def pieces_of(text, **options):
    return [Piece(block, 0, len(block)) for block in CsvFormat(**options).blocks([text], Position("o.csv"))]


def encoded(pieces, outputs, path, **options):
    """A whole part."""
    encoder = TransformCsvEncoder(output_columns(outputs), output_filter=compile_path(path), **options)
    return encoder.begin() + encoder.encode(pieces, outputs) + encoder.finish()


def slow_cells(record, delimiter=0x2C):
    """The cells as they stand, read byte by byte."""
    cells, cell, quoted, at = [], b"", False, 0
    while at < len(record):
        byte = record[at]
        if quoted and record[at : at + 2] == b'""':
            cell += b'""'
            at += 2
            continue
        if byte == 0x22 and (quoted or not cell):
            quoted = not quoted
        if byte == delimiter and not quoted:
            cells.append(cell)
            cell = b""
        else:
            cell += bytes([byte])
        at += 1
    return [*cells, cell]


cells = st.sampled_from(
    [
        b"1",
        b"",
        b"007",
        b'"q"',
        b'""',
        b'"a,b"',
        b'"x ""y"" z"',
        b'"two\nlines"',
        b'"\r\n"',
        b"%d",
        b"\xff",
        b" s ",
    ]
)
stray = cells | st.sampled_from([b'5" d', b'"a"b', b'x""', b"lone\rreturn"])
PATHS = [
    "$[0]",
    "$[1]",
    "$[0,-1]",
    "$[-1,0]",
    "$[1:]",
    "$[:-1]",
    "$[-1]",
    "$[-2:]",
    "$[1,1]",
    "$[0:2,-1]",
    "$[*]",
    "$",
    "$[0:99]",
]


@settings(deadline=None, max_examples=500)
@given(
    st.lists(st.lists(cells, min_size=3, max_size=3), min_size=1, max_size=6)
    | st.lists(st.lists(stray, min_size=3, max_size=3), min_size=1, max_size=6)
    | st.lists(st.lists(stray, min_size=2, max_size=4), min_size=1, max_size=6),
    st.sampled_from([b"\n", b"\r\n", b"\n\n"]),
    st.sampled_from(PATHS),
    st.booleans(),
)
def test_the_columns_kept_are_those_that_a_slow_reading_picks(rows, line_end, path, text_output):
    """Quotes, newlines in quotes, blanks, stray quotes, ragged records, line ends of either kind."""
    records = [b",".join(row) for row in rows]
    pieces = pieces_of(line_end.join(records) + line_end)
    count = sum(map(len, pieces))
    y = np.array([f'"{i}",\n' for i in range(count)]) if text_output else np.arange(count)
    predictions = [b'"""%d"",\n"' % i if text_output else b"%d" % i for i in range(count)]
    selection = compile_path(path).columns
    expected = b""
    for record, prediction in zip(records, predictions, strict=True):
        line = slow_cells(record + b"," + prediction)
        kept = range(len(line)) if selection is None else selection.indices(len(line), None)
        expected += (b",".join([line[i] for i in kept]) or b'""') + b"\n"
    assert encoded(pieces, {"y": y}, path, join="input") == expected


@settings(deadline=None)
@given(st.lists(stray, min_size=1, max_size=5))
def test_cells_as_they_stand_are_the_cells(row):
    """With their quotes; without them they are what the dialect reads."""
    dialect = Dialect(b",", b'"')
    record = b",".join(row)
    found = dialect.raw_cells(record)
    assert found == slow_cells(record)
    assert [dialect.cells(cell)[0] for cell in found] == dialect.cells(record)


def test_much_text_is_cut_in_turns(monkeypatch):
    """Each of about so many bytes; nothing is lost between them."""
    text = b"".join(b'%d,"a\n%d",x\n' % (i, i) for i in range(500))
    whole = encoded(pieces_of(text), {"y": np.arange(500)}, "$[0,-1]", join="input")
    for size in (1, 7, 100, 8000):
        monkeypatch.setattr(transform_csv, "_CUT_BYTES", size)
        assert encoded(pieces_of(text), {"y": np.arange(500)}, "$[0,-1]", join="input") == whole
    assert whole == b"".join(b"%d,%d\n" % (i, i) for i in range(500))


OUTPUTS = {"label": np.array([1, 0]), "p": np.array([[0.25, 0.75], [1.0, 0.0]], np.float32)}


def test_without_a_join_the_predictions_columns_are_chosen():
    """By index, or by the names that outputs have."""
    pieces = pieces_of(b"a,b\nc,d\n")
    assert encoded(pieces, OUTPUTS, "$[0,-1]") == b"1,0.75\n0,0.0\n"
    assert encoded(pieces, OUTPUTS, "$['p_1','label']") == b"0.75,1\n0.0,0\n"
    assert encoded(pieces, OUTPUTS, "$.label", header=True) == b"label\n1\n0\n"
    assert encoded(pieces, OUTPUTS, "$[0:3]") == b"1,0.25,0.75\n0,1.0,0.0\n"


def test_names_go_through_both_and_the_header_is_filtered_alike():
    """The input's columns, then the outputs'."""
    pieces = pieces_of(b'id,"b,c"\n7,x\n8,y\n', header="names")
    options = {"join": "input", "input_columns": ["id", "b,c"], "header": True}
    assert encoded(pieces, OUTPUTS, "$['b,c','label','id']", **options) == b'"b,c",label,id\nx,1,7\ny,0,8\n'
    assert encoded(pieces, OUTPUTS, "$[1,-1]", **options) == b'"b,c",p_1\nx,0.75\ny,0.0\n'
    assert encoded(pieces, OUTPUTS, "$['p_0']", **options) == b"p_0\n0.25\n1.0\n"


@pytest.mark.parametrize("path", ["$", "$[*]", "$[:]"])
def test_everything_is_never_cut(path, monkeypatch):
    """The encoder's bytes as they are: even of records that could not be cut."""
    monkeypatch.setattr(transform_csv, "cell_grid", None)
    pieces = pieces_of(b'1,"2"\n3,4\n')
    plain = CsvEncoder(output_columns(OUTPUTS), join="input").encode(pieces, OUTPUTS)
    assert encoded(pieces, OUTPUTS, path, join="input") == plain


@pytest.mark.parametrize(
    ("path", "expected"),
    [("$[-3:]", b"1,0.25,0.75\n0,1.0,0.0\n"), ("$['label','p_0','p_1']", b"1,0.25,0.75\n0,1.0,0.0\n")],
)
def test_predictions_alone_are_not_cut_out_of_the_records(path, expected, monkeypatch):
    """They are written without them."""
    monkeypatch.setattr(transform_csv, "cell_grid", None)
    pieces = pieces_of(b"1,2\n3,4\n")
    assert encoded(pieces, OUTPUTS, path, join="input", input_columns=["a", "b"]) == expected


def test_records_that_are_no_csv_are_one_quoted_column():
    """Called as `CsvEncoder` calls it."""
    block = Block(Position(), b'{"a":1,"b":2}\n[3]\n', np.array([0, 14]), np.array([13, 17]), line_end=b"\n")
    pieces = [Piece(block, 0, 2)]
    options = {"join": "input", "input_is_csv": False}
    assert encoded(pieces, OUTPUTS, "$[0,1]", **options) == b'"{""a"":1,""b"":2}",1\n[3],0\n'
    assert encoded(pieces, OUTPUTS, "$['label','input']", header=True, **options) == (
        b'label,input\n1,"{""a"":1,""b"":2}"\n0,[3]\n'
    )


def test_another_delimiter():
    """Between the cells kept too."""
    pieces = pieces_of(b'1;"a;b";3\n', delimiter=";")
    assert encoded(pieces, {"y": np.array([5])}, "$[1,-1]", join="input", delimiter=";") == b'"a;b";5\n'


@pytest.mark.parametrize(
    ("path", "options", "why"),
    [
        ("$[5]", {"join": "input"}, r"there is no column 5: records have 5"),
        ("$[5:]", {"join": "input"}, "keeps no column: records have 5"),
        ("$[3]", {}, "there is no column 3: records have 3"),
        ("$['x']", {}, 'there is no column "x"; there are: label, p_0, p_1'),
        ("$['a']", {"join": "input"}, "the records have no header"),
        ("$['x']", {"join": "input", "input_columns": ["a", "b"]}, "there are: a, b, label, p_0, p_1"),
        ("$['label']", {"join": "input", "input_columns": ["a", "label"]}, "more than one column"),
        ("$.a.b", {"join": "input", "input_columns": ["a", "b"]}, "leads into the cells"),
    ],
)
def test_filters_that_do_not_fit_are_config_errors(path, options, why):
    """With what there is."""
    with pytest.raises(ConfigError, match=why):
        encoded(pieces_of(b"1,2\n3,4\n"), OUTPUTS, path, **options)


def test_a_record_whose_quote_never_closes_hides_no_others():
    """No format cuts one; what would lose records is refused."""
    block = Block(Position("o"), b'"a\nb\n', np.array([0, 3]), np.array([2, 4]), line_end=b"\n")
    with pytest.raises(DataError, match="0 lines of CSV where 2 records"):
        encoded([Piece(block, 0, 2)], OUTPUTS, "$[0]", join="input")


def test_no_records_are_no_lines():
    """And no error either, though nothing is known of them."""
    nothing = {"label": np.empty(0, np.int64)}
    assert encoded([], nothing, "$[5]", join="input") == b""
