"""Tests of the columns that a path selects, compared with slices of a list of cells."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.formats.json_path import ColumnSelection, compile_path, format_names
from headrace.formats.json_select import Slice

ends = st.none() | st.integers(-7, 7)
selectors = st.lists(st.integers(-7, 7) | st.builds(Slice, ends, ends), min_size=1, max_size=3).map(tuple)


def select_or_none(selection, width):
    """Return the selected numbers below `width`, or None if the selection is an error."""
    try:
        return selection.indices(width, None)
    except ValueError:
        return None


@given(selectors, st.integers(1, 7))
def test_indices_and_slices_behave_as_for_a_list(chosen, width):
    """Slices end where the record ends. An index beyond it, or an empty result, is an error."""
    cells = list(range(width))
    expected = []
    try:
        for place in chosen:
            expected += cells[place.start : place.stop] if isinstance(place, Slice) else [cells[place]]
    except IndexError:
        expected = []
    assert select_or_none(ColumnSelection("$[...]", chosen), width) == (tuple(expected) or None)


@given(selectors, st.integers(1, 4))
def test_selection_within_the_last_columns_ignores_the_others(chosen, count):
    selection = ColumnSelection("$[...]", chosen)
    if selection.is_within_last(count):
        alone = select_or_none(selection, count)
        for before in range(4):
            moved = None if alone is None else tuple(index + before for index in alone)
            assert select_or_none(selection, before + count) == moved


@for_each(
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
def test_is_within_last_counts_only_from_the_end(path, within):
    assert compile_path(path).columns.is_within_last(2) is within


@given(st.integers(1, 7))
def test_is_all_holds_for_any_width(width):
    for path in ("$[*]", "$[:]", "$[0:]", "$.*"):
        selection = compile_path(path).columns
        assert selection.is_all
        assert selection.indices(width, None) == tuple(range(width))
    assert not compile_path("$[0]").columns.is_all
    assert not compile_path("$[0:,0]").columns.is_all
    assert not compile_path("$['a']").columns.is_all


def test_names_are_resolved_in_the_selected_order():
    assert compile_path("$['c','a']").columns.indices(3, ("a", "b", "c")) == (2, 0)


@for_each(
    ("path", "width", "names", "why"),
    [
        ("$[7]", 5, None, r"\$\[7\]: there is no column 7: records have 5 columns, counted from 0"),
        ("$[-6]", 5, None, "there is no column -6: records have 5"),
        ("$[5:]", 5, None, r"\$\[5:\] selects no column: records have 5"),
        ("$['a']", 1, None, "selected by name, but no header was read"),
        ("$['x']", 2, ("a", "b"), 'there is no column "x"; the columns are: a, b'),
        ("$['a']", 2, ("a", "a"), 'more than one column is named "a"'),
        ("$['a']", 3, ("a", "b"), "records have 3 columns, but the header has 2"),
    ],
)
def test_missing_columns_raise_with_the_path_and_the_existing_ones(path, width, names, why):
    with pytest.raises(ValueError, match=why):
        compile_path(path).columns.indices(width, names)


def test_many_names_are_shortened():
    text = format_names(["x" * 99] * 5000)
    assert len(text) < 1200
    assert text.endswith("… (5000 in all)")
