"""Which columns of a CSV record are wanted: found by number, or by a header's names, and named in failures."""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.core.block import Block, FailureKind
from headrace.core.errors import ConfigError
from headrace.formats.csv_cells import CellGrid, Dialect
from headrace.formats.csv_selection import ColumnSelection, listed
from headrace.formats.matrix import BadCell

Column = str | int
"""A column by the name its header gives, or by its index from 0 (from the end when negative)."""

Whys = dict[int, tuple[FailureKind, str]]
"""By record of a block, why it fails."""


@dataclass(frozen=True, slots=True)
class BoundColumns:
    """Columns found in records of `width` columns, with names where a header gave them."""

    indices: tuple[int, ...]
    width: int
    names: tuple[str, ...] | None

    @property
    def all_in_order(self) -> bool:
        """Whether they are all there is, as they stand."""
        return self.indices == tuple(range(self.width))

    def label(self, column: int) -> str:
        """A column's number and name, for people."""
        return f"column {column}" if self.names is None else f'column {column} ("{self.names[column]}")'

    def ragged(self, grid: CellGrid) -> Whys:
        """Why the records with more or fewer cells than `width` fail."""
        return {row: self.why(cells, ()) for row, cells in grid.ragged.items()}

    def why(self, bad: BadCell | int, indices: Sequence[int]) -> tuple[FailureKind, str]:
        """Kind and words; `indices` are the columns that were read."""
        if isinstance(bad, int):
            columns = "column" if bad == 1 else "columns"
            return FailureKind.FORMAT, f"has {bad} {columns}, {self.width} expected"
        label = self.label(indices[bad.column])
        if bad.text is None:
            return FailureKind.DECODE, f"{label}: not UTF-8"
        if not bad.text.strip():
            return FailureKind.DECODE, f"{label}: empty, where {bad.wanted} is wanted"
        text = bad.text if len(bad.text) <= 80 else bad.text[:80] + "…"
        return FailureKind.DECODE, f'{label}: "{text}" is not {bad.wanted}'


class ColumnFinder:
    """Finds the wanted columns: once without a header, else once for each header met.

    `wanted` are columns, or a selection of them, or None for all. Where a selection stands `within` too, they are
    counted, and named, among the columns that it keeps.

    What the very first records show to be missing is a ConfigError: the question was wrong. After a first success
    it is the data that differ, and their records fail.
    """

    def __init__(
        self,
        wanted: Sequence[Column] | ColumnSelection | None,
        width: int | None,
        dialect: Dialect,
        *,
        within: ColumnSelection | None = None,
    ) -> None:
        if width is not None and width < 1:
            raise ConfigError(f"width must be at least 1, not {width}")
        if isinstance(wanted, ColumnSelection):
            if within is not None:
                raise ConfigError(f"two selections of columns, {within.text} and {wanted.text}: give one")
            wanted, within = None, wanted
        self._wanted = wanted
        self._within = within
        self._width = width
        self._dialect = dialect
        self._last: BoundColumns | None = None

    @property
    def count(self) -> int:
        """How many columns are wanted; 0 when that is not known yet."""
        if self._wanted is not None:
            return len(self._wanted)
        if self._last is not None:
            return len(self._last.indices)
        return self._width or 0 if self._within is None else 0

    def bind(self, names: tuple[str, ...] | None) -> BoundColumns:
        """Find them by this header; ConfigError naming the columns there are."""
        found = self._find(names)
        if isinstance(found, str):
            raise ConfigError(found)
        self._last = found
        return found

    def of(self, block: Block) -> BoundColumns | str:
        """The columns in this block's records, or why they are not there."""
        names = block.column_names
        last = self._last
        if last is not None and last.names == names:
            return last
        if self._width is None and names is None:
            # Kept for good: every later record without a header is held to the first one.
            self._width = len(self._dialect.cells(block.record(0)))
        if last is None:
            self.bind(names)
            assert self._last is not None, "bind raises or sets it"
            return self._last
        found = self._find(names)
        if isinstance(found, BoundColumns):
            self._last = found
        return found

    def _find(self, names: tuple[str, ...] | None) -> BoundColumns | str:
        width = self._width
        if width is None:
            if names is None:
                return "records without a header: how many columns they have is not known yet"
            width = len(names)
        if names is not None and len(names) != width:
            return f"the header has {len(names)} columns, {width} expected: {listed(names)}"
        if self._within is None:
            kept = tuple(range(width))
        else:
            try:
                kept = self._within.indices(width, names)
            except ValueError as error:
                return str(error)
        if self._wanted is None:
            return BoundColumns(kept, width, names)
        kept_names = None if names is None else tuple(names[index] for index in kept)
        indices: list[int] = []
        for column in self._wanted:
            index = _index(column, len(kept), kept_names)
            if isinstance(index, str):
                return index if self._within is None else f"behind {self._within.text} {index}"
            indices.append(kept[index])
        return BoundColumns(tuple(indices), width, names)


def _index(column: Column, width: int, names: tuple[str, ...] | None) -> int | str:
    if isinstance(column, int):
        if -width <= column < width:
            return column % width
        return f"there is no column {column}: records have {width} columns, counted from 0"
    if names is None:
        return f'column "{column}" is wanted by name, but no header was read: use column numbers, or --header names'
    match names.count(column):
        case 1:
            return names.index(column)
        case 0:
            return f'there is no column "{column}"; there are: {listed(names)}'
        case _:
            return f'more than one column is called "{column}": use column numbers'
