import csv
import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import ConfigError
from headrace.formats.csv_cells import Dialect, Rows, cell_grid, column_texts, narrowed

COMMA = Dialect.of(",", '"')
# As a format gives them: every quote that opens is closed, and newlines stand inside quotes alone.
RECORDS = st.one_of(
    st.lists(st.text(alphabet='a",1 \n', max_size=4).map(str.encode), min_size=1, max_size=4).map(
        COMMA.encoded
    ),
    st.sampled_from([b'a"b,c', b'"a"b,c', b'a"b"c', b'1,"a,b"c,2', b""]),
)


def by_csv_reader(record: bytes) -> list[bytes]:
    rows = list(csv.reader(io.StringIO(record.decode(), newline=""), quotechar='"'))
    return [cell.encode() for cell in rows[0]] if rows else [b""]


@given(st.lists(st.text(alphabet='a",1 \n', max_size=6), min_size=1, max_size=5))
def test_cells_are_those_of_pythons_own_reader(texts):
    written = io.StringIO(newline="")
    csv.writer(written).writerow(texts)
    record = written.getvalue().removesuffix("\r\n").encode()
    if record in (b"", b'""'):
        return  # a blank line, which never comes here
    assert COMMA.cells(record) == by_csv_reader(record) == [t.encode() for t in texts]


@given(st.lists(st.text(alphabet='a",1 \n\r', max_size=6).map(str.encode), min_size=1, max_size=5))
def test_what_is_encoded_reads_back(cells):
    assert COMMA.cells(COMMA.encoded(cells)) == cells


@pytest.mark.parametrize(
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
def test_stray_quotes_read_as_pythons_reader_has_them(record, cells):
    assert COMMA.cells(record) == cells


def test_a_header_is_held_to_the_letter():
    assert COMMA.names('"a b",ü'.encode()) == ("a b", "ü")
    with pytest.raises(ValueError, match="text after the closing quote of column 1"):
        COMMA.names(b'a,"b"c')
    with pytest.raises(UnicodeDecodeError):
        COMMA.names(b"\xff")


@pytest.mark.parametrize(
    ("delimiter", "quote"), [("", '"'), ("ab", '"'), ("\n", '"'), ("é", '"'), (",", ","), (",", "''")]
)
def test_dialects_that_cannot_be_are_refused(delimiter, quote):
    with pytest.raises(ConfigError):
        Dialect.of(delimiter, quote)


@given(st.lists(RECORDS, min_size=1, max_size=6), st.integers(1, 4))
def test_a_grid_holds_the_cells_of_every_record_of_that_width(records, width):
    rows = Rows.joined(records)
    grid = cell_grid(rows, COMMA, width)
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
def test_narrowed_rows_hold_the_columns_asked_for_in_that_order(table, columns):
    grid = cell_grid(Rows.joined([b",".join(row) for row in table]), COMMA, 3)
    rows = narrowed(grid, columns, b",")
    assert rows.texts(np.arange(len(rows))) == [b",".join(row[c] for c in columns) for row in table]


def test_rows_are_views_of_one_buffer():
    rows = Rows.joined([b"a", b"", b"ccc"])
    assert (rows.data, len(rows)) == (b"a\n\nccc", 3)
    assert [rows.row(i) for i in range(3)] == [b"a", b"", b"ccc"]
    assert rows.slice(1, 3).texts([0, 1]) == [b"", b"ccc"]


@given(RECORDS)
def test_raw_cells_are_the_records_bytes_and_read_as_its_cells(record):
    """Quotes and all: put together again they are the record."""
    raw = COMMA.raw_cells(record)
    assert b",".join(raw) == record
    assert [COMMA.cells(cell) for cell in raw] == [[cell] for cell in COMMA.cells(record)]
