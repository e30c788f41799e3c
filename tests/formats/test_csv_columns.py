"""Tests of resolving the requested columns of CSV records."""

import numpy as np
import pytest

from cases import for_each
from headrace.core.block import Block, FailureKind, Position
from headrace.core.errors import ConfigError
from headrace.formats.csv import CsvDialect
from headrace.formats.csv_decode import BoundColumns, ColumnFinder
from headrace.formats.json_path import compile_path
from headrace.formats.matrix import InvalidCell

COMMA = CsvDialect.from_strings(",", '"')


def block_of(record: bytes, names: tuple[str, ...] | None = None) -> Block:
    return Block(Position("a.csv"), record, np.array([0]), np.array([len(record)]), column_names=names)


def test_columns_are_found_by_number_from_either_end():
    bound = ColumnFinder([2, -3], None, COMMA).find_in(block_of(b"a,b,c"))
    assert (bound.indices, bound.width, bound.all_in_order) == ((2, 0), 3, False)


def test_no_request_selects_all_columns_in_order():
    bound = ColumnFinder(None, None, COMMA).find_in(block_of(b"a,b,c"))
    assert bound.all_in_order


def test_columns_are_resolved_again_for_each_header():
    finder = ColumnFinder(["y", "x"], None, COMMA)
    assert finder.find_in(block_of(b"1,2", ("x", "y"))).indices == (1, 0)
    assert finder.find_in(block_of(b"1,2,3", ("y", "z", "x"))).indices == (0, 2)


@for_each(
    ("requested", "names", "why"),
    [
        ([3], None, "there is no column 3: records have 3 columns, counted from 0"),
        (["x"], None, 'column "x" is selected by name, but no header was read'),
        (["x"], ("a", "b", "c"), 'there is no column "x"; the columns are: a, b, c'),
        (["a"], ("a", "b", "a"), 'more than one column is named "a"'),
    ],
)
def test_columns_missing_from_the_first_records_raise(requested, names, why):
    with pytest.raises(ConfigError, match=why):
        ColumnFinder(requested, None, COMMA).find_in(block_of(b"1,2,3", names))


def test_columns_missing_from_later_files_fail_their_records():
    finder = ColumnFinder(["x"], 2, COMMA)
    assert finder.find_in(block_of(b"1,2", ("x", "y"))).indices == (0,)
    assert finder.find_in(block_of(b"1,2", ("p", "q"))) == 'there is no column "x"; the columns are: p, q'
    assert finder.find_in(block_of(b"1", ("x",))) == "the header has 1 columns, 2 expected: x"
    assert finder.find_in(block_of(b"1,2", ("y", "x"))).indices == (1,)


def test_first_record_without_a_header_fixes_the_width():
    finder = ColumnFinder(None, None, COMMA)
    assert finder.count == 0
    finder.find_in(block_of(b"1,2"))
    assert finder.find_in(block_of(b"1,2,3")).width == 2
    assert finder.count == 2


@for_each(
    ("invalid", "kind", "reason"),
    [
        (1, FailureKind.DECODE, "has 1 column, 2 expected"),
        (5, FailureKind.DECODE, "has 5 columns, 2 expected"),
        (InvalidCell(0, "x", "a number"), FailureKind.DECODE, 'column 1 ("b"): "x" is not a number'),
        (
            InvalidCell(0, " ", "a number"),
            FailureKind.DECODE,
            'column 1 ("b"): empty, expected a number',
        ),
        (InvalidCell(0, None, "a number"), FailureKind.DECODE, 'column 1 ("b"): not UTF-8'),
        (
            InvalidCell(0, "y" * 99, "a number"),
            FailureKind.DECODE,
            f'column 1 ("b"): "{"y" * 80}…" is not a number',
        ),
    ],
)
def test_failure_names_the_column_of_the_source(invalid, kind, reason):
    assert BoundColumns((1,), 2, ("a", "b")).failure_reason(invalid, [1]) == (kind, reason)


def test_zero_width_is_rejected():
    with pytest.raises(ConfigError, match="width must be at least 1"):
        ColumnFinder(None, 0, COMMA)


def test_failures_of_wide_files_stay_short():
    """Each record has a failure: with all header names, the failures would be longer than the file."""
    finder = ColumnFinder(["x"], None, COMMA)
    finder.bind(("x", "y"))
    wide = tuple(f"a rather long name of a column, {i}" for i in range(5000))
    for names in (wide, wide[:2], ("y" * 5000, "z")):
        why = finder.find_in(block_of(b"1", names))
        assert isinstance(why, str)
        assert len(why) < 1200
    assert "… (5000 in all)" in finder.find_in(block_of(b"1", wide))


def select(path):
    return compile_path(path).columns


def test_selection_is_resolved_by_the_width_of_the_record():
    finder = ColumnFinder(select("$[1:]"), None, COMMA)
    assert finder.count == 0
    assert finder.find_in(block_of(b"1,2,3")).indices == (1, 2)
    assert finder.count == 2
    assert ColumnFinder(select("$[-1,0]"), None, COMMA).find_in(block_of(b"1,2,3")).indices == (2, 0)
    assert ColumnFinder(select("$[*]"), None, COMMA).find_in(block_of(b"1,2,3")).all_in_order


def test_selection_by_name_is_resolved_again_for_each_header():
    finder = ColumnFinder(select("$['y','x']"), None, COMMA)
    assert finder.find_in(block_of(b"1,2", ("x", "y"))).indices == (1, 0)
    assert finder.find_in(block_of(b"1,2,3", ("y", "z", "x"))).indices == (0, 2)
    assert "there is no column" in finder.find_in(block_of(b"1", ("x",)))


def test_columns_are_counted_and_named_within_an_input_selection():
    input_selection = select("$[2,0:2]")
    assert ColumnFinder([0, -1], None, COMMA, input_selection=input_selection).find_in(
        block_of(b"1,2,3")
    ).indices == (2, 1)
    named = block_of(b"1,2,3", ("a", "b", "c"))
    assert ColumnFinder(["b", "c"], None, COMMA, input_selection=input_selection).find_in(named).indices == (
        1,
        2,
    )
    finder = ColumnFinder(["c"], None, COMMA, input_selection=select("$[0:2]"))
    with pytest.raises(ConfigError, match=r'\$\[0:2\]: there is no column "c"; the columns are: a, b'):
        finder.find_in(named)


def test_selection_that_does_not_match_the_first_records_raises():
    with pytest.raises(ConfigError, match=r"\$\[7\]: there is no column 7: records have 3"):
        ColumnFinder(select("$[7]"), None, COMMA).find_in(block_of(b"1,2,3"))
    with pytest.raises(ConfigError, match="no header was read"):
        ColumnFinder(select("$.a"), None, COMMA).find_in(block_of(b"1,2,3"))
    with pytest.raises(ConfigError, match="two selections"):
        ColumnFinder(select("$[7]"), None, COMMA, input_selection=select("$[7]"))
