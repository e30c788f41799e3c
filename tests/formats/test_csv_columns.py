import numpy as np
import pytest

from headrace.core.block import Block, FailureKind, Position
from headrace.core.errors import ConfigError
from headrace.formats.csv_cells import Dialect
from headrace.formats.csv_columns import BoundColumns, ColumnFinder
from headrace.formats.json_path import compile_path
from headrace.formats.matrix import BadCell

COMMA = Dialect.of(",", '"')


def block_of(record: bytes, names: tuple[str, ...] | None = None) -> Block:
    return Block(Position("a.csv"), record, np.array([0]), np.array([len(record)]), column_names=names)


def test_columns_are_found_by_number_from_either_end():
    bound = ColumnFinder([2, -3], None, COMMA).of(block_of(b"a,b,c"))
    assert (bound.indices, bound.width, bound.all_in_order) == ((2, 0), 3, False)


def test_all_columns_are_all_there_are():
    bound = ColumnFinder(None, None, COMMA).of(block_of(b"a,b,c"))
    assert bound.all_in_order


def test_columns_are_found_anew_by_each_header():
    finder = ColumnFinder(["y", "x"], None, COMMA)
    assert finder.of(block_of(b"1,2", ("x", "y"))).indices == (1, 0)
    assert finder.of(block_of(b"1,2,3", ("y", "z", "x"))).indices == (0, 2)


@pytest.mark.parametrize(
    ("wanted", "names", "why"),
    [
        ([3], None, "there is no column 3: records have 3 columns, counted from 0"),
        (["x"], None, 'column "x" is wanted by name, but no header was read'),
        (["x"], ("a", "b", "c"), 'there is no column "x"; there are: a, b, c'),
        (["a"], ("a", "b", "a"), 'more than one column is called "a"'),
    ],
)
def test_what_the_first_records_lack_is_an_error(wanted, names, why):
    with pytest.raises(ConfigError, match=why):
        ColumnFinder(wanted, None, COMMA).of(block_of(b"1,2,3", names))


def test_what_later_files_lack_fails_their_records():
    finder = ColumnFinder(["x"], 2, COMMA)
    assert finder.of(block_of(b"1,2", ("x", "y"))).indices == (0,)
    assert finder.of(block_of(b"1,2", ("p", "q"))) == 'there is no column "x"; there are: p, q'
    assert finder.of(block_of(b"1", ("x",))) == "the header has 1 columns, 2 expected: x"
    assert finder.of(block_of(b"1,2", ("y", "x"))).indices == (1,)


def test_the_first_record_without_a_header_decides_the_width_for_good():
    finder = ColumnFinder(None, None, COMMA)
    assert finder.count == 0
    finder.of(block_of(b"1,2"))
    assert finder.of(block_of(b"1,2,3")).width == 2
    assert finder.count == 2


@pytest.mark.parametrize(
    ("bad", "kind", "why"),
    [
        (1, FailureKind.FORMAT, "has 1 column, 2 expected"),
        (5, FailureKind.FORMAT, "has 5 columns, 2 expected"),
        (BadCell(0, "x", "a number"), FailureKind.DECODE, 'column 1 ("b"): "x" is not a number'),
        (BadCell(0, " ", "a number"), FailureKind.DECODE, 'column 1 ("b"): empty, where a number is wanted'),
        (BadCell(0, None, "a number"), FailureKind.DECODE, 'column 1 ("b"): not UTF-8'),
        (
            BadCell(0, "y" * 99, "a number"),
            FailureKind.DECODE,
            f'column 1 ("b"): "{"y" * 80}…" is not a number',
        ),
    ],
)
def test_a_failure_names_the_column_of_the_source(bad, kind, why):
    assert BoundColumns((1,), 2, ("a", "b")).why(bad, [1]) == (kind, why)


def test_a_width_of_nothing_is_refused():
    with pytest.raises(ConfigError, match="width must be at least 1"):
        ColumnFinder(None, 0, COMMA)


def test_what_each_record_of_a_wide_file_is_told_stays_short():
    """A failure a record, each with all the names of a wide header, would be far longer than the file."""
    finder = ColumnFinder(["x"], None, COMMA)
    finder.bind(("x", "y"))
    wide = tuple(f"a rather long name of a column, {i}" for i in range(5000))
    for names in (wide, wide[:2], ("y" * 5000, "z")):
        why = finder.of(block_of(b"1", names))
        assert isinstance(why, str)
        assert len(why) < 1200
    assert "… (5000 in all)" in finder.of(block_of(b"1", wide))


def select(path):
    return compile_path(path).columns


def test_a_selection_is_resolved_by_the_records_width():
    finder = ColumnFinder(select("$[1:]"), None, COMMA)
    assert finder.count == 0
    assert finder.of(block_of(b"1,2,3")).indices == (1, 2)
    assert finder.count == 2
    assert ColumnFinder(select("$[-1,0]"), None, COMMA).of(block_of(b"1,2,3")).indices == (2, 0)
    assert ColumnFinder(select("$[*]"), None, COMMA).of(block_of(b"1,2,3")).all_in_order


def test_a_selection_by_name_is_found_anew_by_each_header():
    finder = ColumnFinder(select("$['y','x']"), None, COMMA)
    assert finder.of(block_of(b"1,2", ("x", "y"))).indices == (1, 0)
    assert finder.of(block_of(b"1,2,3", ("y", "z", "x"))).indices == (0, 2)
    assert "there is no column" in finder.of(block_of(b"1", ("x",)))


def test_columns_are_counted_and_named_among_those_of_a_selection():
    within = select("$[2,0:2]")
    assert ColumnFinder([0, -1], None, COMMA, within=within).of(block_of(b"1,2,3")).indices == (2, 1)
    named = block_of(b"1,2,3", ("a", "b", "c"))
    assert ColumnFinder(["b", "c"], None, COMMA, within=within).of(named).indices == (1, 2)
    finder = ColumnFinder(["c"], None, COMMA, within=select("$[0:2]"))
    with pytest.raises(ConfigError, match=r'behind \$\[0:2\] there is no column "c"; there are: a, b'):
        finder.of(named)


def test_a_selection_that_does_not_fit_the_first_records_is_an_error():
    with pytest.raises(ConfigError, match=r"\$\[7\]: there is no column 7: records have 3"):
        ColumnFinder(select("$[7]"), None, COMMA).of(block_of(b"1,2,3"))
    with pytest.raises(ConfigError, match="no header was read"):
        ColumnFinder(select("$.a"), None, COMMA).of(block_of(b"1,2,3"))
    with pytest.raises(ConfigError, match="two selections"):
        ColumnFinder(select("$[7]"), None, COMMA, within=select("$[7]"))
