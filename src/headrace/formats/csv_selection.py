"""The columns of a CSV record that a JSONPath selects: by index and slice, or by header name."""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.formats.json_path_grammar import (
    ElementSelector,
    MemberSelector,
    Segment,
    Slice,
    WildcardSelector,
)


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


_NAMES_SHOWN = 20
_NAME_CHARACTERS_MAX = 50


def format_names(names: Sequence[str]) -> str:
    """Return a short list of names for messages.

    The list is repeated for every record below a header that does not match, so it is bounded.
    """
    shortened = [
        n if len(n) <= _NAME_CHARACTERS_MAX else n[:_NAME_CHARACTERS_MAX] + "…" for n in names[:_NAMES_SHOWN]
    ]
    more = f", … ({len(names)} in all)" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(shortened) + more
