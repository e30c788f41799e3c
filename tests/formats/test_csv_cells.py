"""Tests of splitting CSV records into cells and of cell grids."""

import csv
import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.core.errors import ConfigError
from headrace.formats.csv import CsvDialect, TextRows, cell_grid, column_texts, select_columns

COMMA = CsvDialect.from_strings(",", '"')
# Records as a format yields them: all quotes are closed, and newlines stand only inside quotes.
RECORDS = st.one_of(
    st.lists(st.text(alphabet='a",1 \n', max_size=4).map(str.encode), min_size=1, max_size=4).map(
        COMMA.encode_record
    ),
    st.sampled_from([b'a"b,c', b'"a"b,c', b'a"b"c', b'1,"a,b"c,2', b""]),
)


def read_with_csv_reader(record: bytes) -> list[bytes]:
    rows = list(csv.reader(io.StringIO(record.decode(), newline=""), quotechar='"'))
    return [cell.encode() for cell in rows[0]] if rows else [b""]


@given(st.lists(st.text(alphabet='a",1 \n', max_size=6), min_size=1, max_size=5))
def test_cells_equal_csv_readers(texts):
    written = io.StringIO(newline="")
    csv.writer(written).writerow(texts)
    record = written.getvalue().removesuffix("\r\n").encode()
    if record in (b"", b'""'):
        return  # A blank line is not a record.
    assert COMMA.cells(record) == read_with_csv_reader(record) == [t.encode() for t in texts]


@given(st.lists(st.text(alphabet='a",1 \n\r', max_size=6).map(str.encode), min_size=1, max_size=5))
def test_encoded_record_is_read_back(cells):
    assert COMMA.cells(COMMA.encode_record(cells)) == cells


@for_each(
    ("record", "cells"),
    [
        (b"", [b""]),
        (b",", [b"", b""]),
        (b'"a,b",c', [b"a,b", b"c"]),
        (b'"a""b"', [b'a"b']),
        (b'a"b,c', [b'a"b', b"c"]),
        (b'"a"b,c', [b"ab", b"c"]),
        (b'"a,b', [b"a,b"]),
    ],
)
def test_stray_quotes_are_read_as_by_csv_reader(record, cells):
    assert COMMA.cells(record) == cells


def test_header_must_be_strict_csv():
    assert COMMA.header_names('"a b",ü'.encode()) == ("a b", "ü")
    with pytest.raises(ValueError, match="text after the closing quote of column 1"):
        COMMA.header_names(b'a,"b"c')
    with pytest.raises(UnicodeDecodeError):
        COMMA.header_names(b"\xff")


@for_each(("delimiter", "quote"), [("", '"'), ("ab", '"'), ("\n", '"'), ("é", '"'), (",", ","), (",", "''")])
def test_invalid_dialects_are_rejected(delimiter, quote):
    with pytest.raises(ConfigError):
        CsvDialect.from_strings(delimiter, quote)


@given(st.lists(RECORDS, min_size=1, max_size=6), st.integers(1, 4), st.data())
def test_grid_holds_the_cells_of_every_record_of_the_width(records, width, data):
    rows = TextRows.from_texts(records)
    chosen = sorted(data.draw(st.sets(st.integers(0, len(records) - 1), min_size=1)))
    records = [records[row] for row in chosen]
    grid = cell_grid(TextRows(rows.data, rows.starts[chosen], rows.ends[chosen]), COMMA, width)
    cells = [COMMA.cells(r) for r in records]
    assert grid.rows.tolist() == [i for i, c in enumerate(cells) if len(c) == width]
    assert grid.ragged == {i: len(c) for i, c in enumerate(cells) if len(c) != width}
    for column in range(width):
        found = [COMMA.cells(text)[0] for text in column_texts(grid, column)]
        assert found == [cells[i][column] for i in grid.rows]


@given(
    st.lists(
        st.lists(st.sampled_from([b"", b"1", b"-2.5", b'"a,b"']), min_size=3, max_size=3),
        min_size=1,
        max_size=5,
    ),
    st.lists(st.integers(0, 2), min_size=1, max_size=4),
)
def test_selected_columns_keep_the_requested_order(table, columns):
    grid = cell_grid(TextRows.from_texts([b",".join(row) for row in table]), COMMA, 3)
    rows = select_columns(grid, columns, b",")
    assert rows.texts(np.arange(len(rows))) == [b",".join(row[c] for c in columns) for row in table]


def test_rows_are_slices_of_one_buffer():
    rows = TextRows.from_texts([b"a", b"", b"ccc"])
    assert (rows.data, len(rows)) == (b"a\n\nccc", 3)
    assert [rows.row(i) for i in range(3)] == [b"a", b"", b"ccc"]
    assert rows.slice(1, 3).texts([0, 1]) == [b"", b"ccc"]


@given(RECORDS)
def test_raw_cells_join_to_the_record_and_read_as_its_cells(record):
    raw = COMMA.raw_cells(record)
    assert b",".join(raw) == record
    assert [COMMA.cells(cell) for cell in raw] == [[cell] for cell in COMMA.cells(record)]
