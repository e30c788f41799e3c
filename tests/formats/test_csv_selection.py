"""Columns that a path keeps: those that a slice of the cells' list would be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.formats.csv_selection import ColumnSelection, listed
from headrace.formats.json_path import compile_path
from headrace.formats.json_path_grammar import Slice

ends = st.none() | st.integers(-7, 7)
places = st.lists(st.integers(-7, 7) | st.builds(Slice, ends, ends), min_size=1, max_size=3).map(tuple)


def picked(selection, width):
    """What is kept of the numbers below `width`, or None where that is an error."""
    try:
        return selection.indices(width, None)
    except ValueError:
        return None


@given(places, st.integers(1, 7))
def test_indices_and_slices_are_those_of_a_list(chosen, width):
    """Slices end where the record does; an index beyond it, or nothing at all, is an error."""
    cells = list(range(width))
    expected = []
    try:
        for place in chosen:
            expected += cells[place.start : place.stop] if isinstance(place, Slice) else [cells[place]]
    except IndexError:
        expected = []
    assert picked(ColumnSelection("$[...]", chosen), width) == (tuple(expected) or None)


@given(places, st.integers(1, 4))
def test_what_is_within_the_last_columns_is_the_same_without_the_others(chosen, count):
    """So that the others need never be looked at."""
    selection = ColumnSelection("$[...]", chosen)
    if selection.is_within_last(count):
        alone = picked(selection, count)
        for before in range(4):
            moved = None if alone is None else tuple(index + before for index in alone)
            assert picked(selection, before + count) == moved


@pytest.mark.parametrize(
    ("path", "within"),
    [
        ("$[-1]", True),
        ("$[-2:]", True),
        ("$[-2,-1]", True),
        ("$[-3]", False),
        ("$[1]", False),
        ("$[-2:5]", False),
        ("$[:-1]", False),
    ],
)
def test_which_selections_are_within_the_last_two(path, within):
    """Counted from the end alone."""
    assert compile_path(path).columns.is_within_last(2) is within


@given(st.integers(1, 7))
def test_all_is_all_of_any_width(width):
    """And nothing else says so."""
    for path in ("$[*]", "$[:]", "$[0:]", "$.*"):
        selection = compile_path(path).columns
        assert selection.is_all
        assert selection.indices(width, None) == tuple(range(width))
    assert not compile_path("$[0]").columns.is_all
    assert not compile_path("$[0:,0]").columns.is_all
    assert not compile_path("$['a']").columns.is_all


def test_names_are_those_of_a_header():
    """In the order asked for."""
    assert compile_path("$['c','a']").columns.indices(3, ("a", "b", "c")) == (2, 0)


@pytest.mark.parametrize(
    ("path", "width", "names", "why"),
    [
        ("$[7]", 5, None, r"\$\[7\]: there is no column 7: records have 5, counted from 0"),
        ("$[-6]", 5, None, "there is no column -6: records have 5"),
        ("$[5:]", 5, None, r"\$\[5:\] keeps no column: records have 5"),
        ("$['a']", 1, None, "wanted by name, but no header was read"),
        ("$['x']", 2, ("a", "b"), 'there is no column "x"; there are: a, b'),
        ("$['a']", 2, ("a", "a"), 'more than one column is called "a"'),
        ("$['a']", 3, ("a", "b"), "records have 3 columns, and the header 2"),
    ],
)
def test_what_is_not_there_is_said(path, width, names, why):
    """With the path, and what is there."""
    with pytest.raises(ValueError, match=why):
        compile_path(path).columns.indices(width, names)


def test_many_names_are_told_short():
    """Twenty of them, and how many there are."""
    text = listed(["x" * 99] * 5000)
    assert len(text) < 1200
    assert text.endswith("… (5000 in all)")
