"""The requested columns of CSV records: by number, by header name, or by a JSONPath; named in failures."""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.core.block import Block, FailureKind
from headrace.core.errors import ConfigError
from headrace.formats.csv_cells import CellGrid, CsvDialect
from headrace.formats.json_path_grammar import (
    ElementSelector,
    MemberSelector,
    Segment,
    Slice,
    WildcardSelector,
)
from headrace.formats.matrix import InvalidCell

_NAMES_SHOWN = 20
_NAME_CHARACTERS_MAX = 50


@dataclass(frozen=True, slots=True)
class ColumnSelection:
    """Selected columns in the order of the path `text`; a column may occur more than once.

    Either `names` or `selectors` is empty.
    """

    text: str
    selectors: tuple[int | Slice, ...] = ()
    names: tuple[str, ...] = ()

    @property
    def is_all(self) -> bool:
        """Return True if every column is selected unchanged, for records of any width."""
        return len(self.selectors) == 1 and self.selectors[0] in (Slice(None, None), Slice(0, None))

    def indices(self, width: int, names: Sequence[str] | None) -> tuple[int, ...]:
        """Return the indices, from 0, in records of `width` columns with the header `names`.

        Slices end where the record ends. Raise ValueError if a column is missing, if names are
        selected without a header, or if no column is selected.
        """
        indices: list[int] = []
        for selector in self.selectors:
            if isinstance(selector, Slice):
                indices += range(width)[selector.start : selector.stop]
            elif -width <= selector < width:
                indices.append(selector % width)
            else:
                raise ValueError(
                    f"{self.text}: there is no column {selector}: "
                    f"records have {width} columns, counted from 0"
                )
        if names is not None and self.names and len(names) != width:
            raise ValueError(f"{self.text}: records have {width} columns, but the header has {len(names)}")
        indices += [self._index(name, names) for name in self.names]
        if not indices:
            raise ValueError(f"{self.text} selects no column: records have {width} columns")
        return tuple(indices)

    def _index(self, name: str, names: Sequence[str] | None) -> int:
        if names is None:
            raise ValueError(
                f'{self.text}: column "{name}" is selected by name, but no header was read: '
                "use column numbers or --header names"
            )
        count = names.count(name)
        if count == 1:
            return names.index(name)
        if count:
            raise ValueError(f'{self.text}: more than one column is named "{name}": use column numbers')
        raise ValueError(f'{self.text}: there is no column "{name}"; the columns are: {format_names(names)}')

    def is_within_last(self, count: int) -> bool:
        """Return True if only the last `count` columns are selected, for records of any width."""
        return bool(self.selectors) and all(_is_within_last(selector, count) for selector in self.selectors)


def _is_within_last(selector: int | Slice, count: int) -> bool:
    if isinstance(selector, Slice):
        start, stop = selector
        return start is not None and -count <= start < 0 and (stop is None or stop < 0)
    return -count <= selector < 0


def column_selection(text: str, segments: Sequence[Segment]) -> ColumnSelection | None:
    """Return the columns that a path selects, or None if the path is not exactly one segment deep."""
    if len(segments) != 1:
        return None
    match segments[0]:
        case MemberSelector(names):
            return ColumnSelection(text, names=tuple(dict.fromkeys(names)))
        case ElementSelector(selectors):
            return ColumnSelection(text, selectors)
        case WildcardSelector():
            return ColumnSelection(text, (Slice(None, None),))


def format_names(names: Sequence[str]) -> str:
    """Return a short list of names for messages.

    The list is repeated for every record below a header that does not match, so it is bounded.
    """
    shortened = [
        n if len(n) <= _NAME_CHARACTERS_MAX else n[:_NAME_CHARACTERS_MAX] + "…" for n in names[:_NAMES_SHOWN]
    ]
    more = f", … ({len(names)} in all)" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(shortened) + more


Column = str | int
"""A column by its header name, or by its index from 0 (negative indices count from the end)."""

FailureReasons = dict[int, tuple[FailureKind, str]]
"""The failure kind and message by index of the record in its block."""


@dataclass(frozen=True, slots=True)
class BoundColumns:
    """The requested columns, resolved for records of `width` columns, with names if known."""

    indices: tuple[int, ...]
    width: int
    names: tuple[str, ...] | None

    @property
    def all_in_order(self) -> bool:
        """Return True if the columns are all columns of the records, in their order."""
        return self.indices == tuple(range(self.width))

    def label(self, column: int) -> str:
        """Return the number and the name of a column for messages."""
        return f"column {column}" if self.names is None else f'column {column} ("{self.names[column]}")'

    def ragged_reasons(self, grid: CellGrid) -> FailureReasons:
        """Return the failure reasons of the records whose number of columns is not `width`."""
        return {row: self.failure_reason(cells, ()) for row, cells in grid.ragged.items()}

    def failure_reason(self, invalid: InvalidCell | int, indices: Sequence[int]) -> tuple[FailureKind, str]:
        """Return the kind and the message of a failure; `indices` are the columns that were read."""
        if isinstance(invalid, int):
            columns = "column" if invalid == 1 else "columns"
            return FailureKind.FORMAT, f"has {invalid} {columns}, {self.width} expected"
        label = self.label(indices[invalid.column])
        if invalid.text is None:
            return FailureKind.DECODE, f"{label}: not UTF-8"
        if not invalid.text.strip():
            return FailureKind.DECODE, f"{label}: empty, expected {invalid.expected}"
        text = invalid.text if len(invalid.text) <= 80 else invalid.text[:80] + "…"
        return FailureKind.DECODE, f'{label}: "{text}" is not {invalid.expected}'


class ColumnFinder:
    """A resolver of the requested columns: once without a header, else once for each header.

    `requested` is a list of columns, a selection of columns, or None for all. With
    `input_selection`, columns are counted and named among the columns of that selection.

    A column that the very first records lack is a ConfigError, because the request was wrong. After
    a first success the data differ, and the records fail.
    """

    def __init__(
        self,
        requested: Sequence[Column] | ColumnSelection | None,
        width: int | None,
        dialect: CsvDialect,
        *,
        input_selection: ColumnSelection | None = None,
    ) -> None:
        if width is not None and width < 1:
            raise ConfigError(f"width must be at least 1, not {width}")
        if isinstance(requested, ColumnSelection):
            if input_selection is not None:
                raise ConfigError(
                    f"two selections of columns, {input_selection.text} and {requested.text}: pass one"
                )
            requested, input_selection = None, requested
        self._requested = requested
        self._input_selection = input_selection
        self._width = width
        self._dialect = dialect
        self._last_bound: BoundColumns | None = None

    @property
    def count(self) -> int:
        """Return the number of requested columns, or 0 while it is unknown."""
        if self._requested is not None:
            return len(self._requested)
        if self._last_bound is not None:
            return len(self._last_bound.indices)
        return self._width or 0 if self._input_selection is None else 0

    def bind(self, names: tuple[str, ...] | None) -> BoundColumns:
        """Resolve the columns by this header.

        Raise ConfigError with the existing columns if one is missing.
        """
        bound = self._resolve(names)
        if isinstance(bound, str):
            raise ConfigError(bound)
        self._last_bound = bound
        return bound

    def find_in(self, block: Block) -> BoundColumns | str:
        """Return the columns in the records of this block, or the reason why they are missing."""
        names = block.column_names
        last_bound = self._last_bound
        if last_bound is not None and last_bound.names == names:
            return last_bound
        if self._width is None and names is None:
            # The width is kept: every later record without a header must match the first record.
            self._width = len(self._dialect.cells(block.record(0)))
        if last_bound is None:
            self.bind(names)
            assert self._last_bound is not None, "bind raises or sets it"
            return self._last_bound
        bound = self._resolve(names)
        if isinstance(bound, BoundColumns):
            self._last_bound = bound
        return bound

    def _resolve(self, names: tuple[str, ...] | None) -> BoundColumns | str:
        width = self._width
        if width is None:
            if names is None:
                return "the records have no header, so their number of columns is not known yet"
            width = len(names)
        if names is not None and len(names) != width:
            return f"the header has {len(names)} columns, {width} expected: {format_names(names)}"
        if self._input_selection is None:
            available = tuple(range(width))
        else:
            try:
                available = self._input_selection.indices(width, names)
            except ValueError as error:
                return str(error)
        if self._requested is None:
            return BoundColumns(available, width, names)
        available_names = None if names is None else tuple(names[index] for index in available)
        indices: list[int] = []
        for column in self._requested:
            index = _index(column, len(available), available_names)
            if isinstance(index, str):
                return index if self._input_selection is None else f"{self._input_selection.text}: {index}"
            indices.append(available[index])
        return BoundColumns(tuple(indices), width, names)


def _index(column: Column, width: int, names: tuple[str, ...] | None) -> int | str:
    if isinstance(column, int):
        if -width <= column < width:
            return column % width
        return f"there is no column {column}: records have {width} columns, counted from 0"
    if names is None:
        return (
            f'column "{column}" is selected by name, but no header was read: '
            "use column numbers or --header names"
        )
    match names.count(column):
        case 1:
            return names.index(column)
        case 0:
            return f'there is no column "{column}"; the columns are: {format_names(names)}'
        case _:
            return f'more than one column is named "{column}": use column numbers'
