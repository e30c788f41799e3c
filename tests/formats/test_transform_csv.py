"""Tests of the CSV output filter: the cells that a slow reader selects, byte for byte."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import levels
from cases import for_each
from headrace.core.block import Block, Position
from headrace.core.errors import ConfigError, DataError
from headrace.formats import csv_encode as transform_csv
from headrace.formats.contract import BlockSelection
from headrace.formats.csv import CsvDialect, CsvFormat
from headrace.formats.csv_encode import CsvEncoder, TransformCsvEncoder
from headrace.formats.encode import output_columns
from headrace.formats.json_path import compile_path


def selections_of(text, **options):
    return [
        BlockSelection(block, 0, len(block))
        for block in CsvFormat(**options).blocks([text], Position("o.csv"))
    ]


def encode_part(selections, outputs, path, **options):
    """Return a whole part."""
    encoder = TransformCsvEncoder(output_columns(outputs), output_filter=compile_path(path), **options)
    return encoder.begin() + encoder.encode(selections, outputs) + encoder.finish()


def reference_cells(record, delimiter=0x2C):
    """Return the unchanged cells, read byte by byte."""
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


@settings(max_examples=levels.examples(5))
@given(
    st.lists(st.lists(cells, min_size=3, max_size=3), min_size=1, max_size=6)
    | st.lists(st.lists(stray, min_size=3, max_size=3), min_size=1, max_size=6)
    | st.lists(st.lists(stray, min_size=2, max_size=4), min_size=1, max_size=6),
    st.sampled_from([b"\n", b"\r\n", b"\n\n"]),
    st.sampled_from(PATHS),
    st.booleans(),
)
def test_selected_columns_equal_the_reference(rows, line_end, path, text_output):
    """Quotes, quoted newlines, blanks, stray quotes, ragged records and all line ends are drawn."""
    records = [b",".join(row) for row in rows]
    selections = selections_of(line_end.join(records) + line_end)
    count = sum(map(len, selections))
    y = np.array([f'"{i}",\n' for i in range(count)]) if text_output else np.arange(count)
    predictions = [b'"""%d"",\n"' % i if text_output else b"%d" % i for i in range(count)]
    selection = compile_path(path).columns
    expected = b""
    for record, prediction in zip(records, predictions, strict=True):
        line = reference_cells(record + b"," + prediction)
        kept = range(len(line)) if selection is None else selection.indices(len(line), None)
        expected += (b",".join([line[i] for i in kept]) or b'""') + b"\n"
    assert encode_part(selections, {"y": y}, path, join="input") == expected


@given(st.lists(stray, min_size=1, max_size=5))
def test_raw_cells_equal_the_reference(row):
    dialect = CsvDialect(b",", b'"')
    record = b",".join(row)
    found = dialect.raw_cells(record)
    assert found == reference_cells(record)
    assert [dialect.cells(cell)[0] for cell in found] == dialect.cells(record)


def test_large_text_is_filtered_in_parts(monkeypatch):
    text = b"".join(b'%d,"a\n%d",x\n' % (i, i) for i in range(500))
    whole = encode_part(selections_of(text), {"y": np.arange(500)}, "$[0,-1]", join="input")
    for size in (1, 7, 100, 8000):
        monkeypatch.setattr(transform_csv, "_PART_BYTES", size)
        assert encode_part(selections_of(text), {"y": np.arange(500)}, "$[0,-1]", join="input") == whole
    assert whole == b"".join(b"%d,%d\n" % (i, i) for i in range(500))


OUTPUTS = {"label": np.array([1, 0]), "p": np.array([[0.25, 0.75], [1.0, 0.0]], np.float32)}


def test_filter_without_a_join_selects_prediction_columns():
    selections = selections_of(b"a,b\nc,d\n")
    assert encode_part(selections, OUTPUTS, "$[0,-1]") == b"1,0.75\n0,0.0\n"
    assert encode_part(selections, OUTPUTS, "$['p_1','label']") == b"0.75,1\n0.0,0\n"
    assert encode_part(selections, OUTPUTS, "$.label", header=True) == b"label\n1\n0\n"
    assert encode_part(selections, OUTPUTS, "$[0:3]") == b"1,0.25,0.75\n0,1.0,0.0\n"


def test_filter_by_name_covers_input_and_outputs_and_the_header():
    selections = selections_of(b'id,"b,c"\n7,x\n8,y\n', header="names")
    options = {"join": "input", "input_columns": ["id", "b,c"], "header": True}
    assert (
        encode_part(selections, OUTPUTS, "$['b,c','label','id']", **options)
        == b'"b,c",label,id\nx,1,7\ny,0,8\n'
    )
    assert encode_part(selections, OUTPUTS, "$[1,-1]", **options) == b'"b,c",p_1\nx,0.75\ny,0.0\n'
    assert encode_part(selections, OUTPUTS, "$['p_0']", **options) == b"p_0\n0.25\n1.0\n"


@for_each("path", ["$", "$[*]", "$[:]"])
def test_filter_of_everything_keeps_the_bytes_of_the_encoder(path, monkeypatch):
    """This holds even for records that could not be split."""
    monkeypatch.setattr(transform_csv, "cell_grid", None)
    selections = selections_of(b'1,"2"\n3,4\n')
    plain = CsvEncoder(output_columns(OUTPUTS), join="input").encode(selections, OUTPUTS)
    assert encode_part(selections, OUTPUTS, path, join="input") == plain


@for_each(
    ("path", "expected"),
    [("$[-3:]", b"1,0.25,0.75\n0,1.0,0.0\n"), ("$['label','p_0','p_1']", b"1,0.25,0.75\n0,1.0,0.0\n")],
)
def test_filter_of_predictions_does_not_read_the_records(path, expected, monkeypatch):
    monkeypatch.setattr(transform_csv, "cell_grid", None)
    selections = selections_of(b"1,2\n3,4\n")
    assert encode_part(selections, OUTPUTS, path, join="input", input_columns=["a", "b"]) == expected


def test_records_that_are_not_csv_are_one_quoted_column():
    block = Block(Position(), b'{"a":1,"b":2}\n[3]\n', np.array([0, 14]), np.array([13, 17]), line_end=b"\n")
    selections = [BlockSelection(block, 0, 2)]
    options = {"join": "input", "input_is_csv": False}
    assert encode_part(selections, OUTPUTS, "$[0,1]", **options) == b'"{""a"":1,""b"":2}",1\n[3],0\n'
    assert encode_part(selections, OUTPUTS, "$['label','input']", header=True, **options) == (
        b'label,input\n1,"{""a"":1,""b"":2}"\n0,[3]\n'
    )


def test_another_delimiter():
    selections = selections_of(b'1;"a;b";3\n', dialect=CsvDialect(b";"))
    assert (
        encode_part(selections, {"y": np.array([5])}, "$[1,-1]", join="input", dialect=CsvDialect(b";"))
        == b'"a;b";5\n'
    )


@for_each(
    ("path", "options", "why"),
    [
        ("$[5]", {"join": "input"}, r"there is no column 5: records have 5"),
        ("$[5:]", {"join": "input"}, "selects no column: records have 5"),
        ("$[3]", {}, "there is no column 3: records have 3"),
        ("$['x']", {}, 'there is no column "x"; the columns are: label, p_0, p_1'),
        ("$['a']", {"join": "input"}, "the records have no header"),
        ("$['x']", {"join": "input", "input_columns": ["a", "b"]}, "the columns are: a, b, label, p_0, p_1"),
        ("$['label']", {"join": "input", "input_columns": ["a", "label"]}, "more than one column"),
        ("$.a.b", {"join": "input", "input_columns": ["a", "b"]}, "does not select columns of CSV records"),
    ],
)
def test_filters_that_do_not_match_raise_config_error(path, options, why):
    with pytest.raises(ConfigError, match=why):
        encode_part(selections_of(b"1,2\n3,4\n"), OUTPUTS, path, **options)


def test_record_with_an_unclosed_quote_is_rejected():
    """No format yields such a record, and the filter would lose the records after it."""
    block = Block(Position("o"), b'"a\nb\n', np.array([0, 3]), np.array([2, 4]), line_end=b"\n")
    with pytest.raises(DataError, match="0 CSV lines for 2 records"):
        encode_part([BlockSelection(block, 0, 2)], OUTPUTS, "$[0]", join="input")


def test_zero_records_give_zero_lines():
    nothing = {"label": np.empty(0, np.int64)}
    assert encode_part([], nothing, "$[5]", join="input") == b""
