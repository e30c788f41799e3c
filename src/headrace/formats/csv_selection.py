"""Which columns of a CSV record a JSONPath keeps: by index and slice, or by the names in a header."""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.formats.json_path_grammar import Every, Names, Places, Segment, Slice


@dataclass(frozen=True, slots=True)
class ColumnSelection:
    """Columns in the order that `text`, the path, has them; one may be there more than once.

    Either `names` or `places` is empty.
    """

    text: str
    places: tuple[int | Slice, ...] = ()
    names: tuple[str, ...] = ()

    @property
    def is_all(self) -> bool:
        """Whether it is every column as it stands, of records of any width."""
        return len(self.places) == 1 and self.places[0] in (Slice(None, None), Slice(0, None))

    def indices(self, width: int, names: Sequence[str] | None) -> tuple[int, ...]:
        """The columns' indices, from 0, in records of `width` columns that a header calls `names`.

        ValueError, with words, for a column that is not there, for names without a header, and when no column is
        left. Slices end where the record does.
        """
        found: list[int] = []
        for place in self.places:
            if isinstance(place, Slice):
                found += range(width)[place.start : place.stop]
            elif -width <= place < width:
                found.append(place % width)
            else:
                raise ValueError(
                    f"{self.text}: there is no column {place}: records have {width}, counted from 0"
                )
        if names is not None and self.names and len(names) != width:
            raise ValueError(f"{self.text}: records have {width} columns, and the header {len(names)}")
        found += [self._index(name, names) for name in self.names]
        if not found:
            raise ValueError(f"{self.text} keeps no column: records have {width}")
        return tuple(found)

    def _index(self, name: str, names: Sequence[str] | None) -> int:
        if names is None:
            raise ValueError(
                f'{self.text}: column "{name}" is wanted by name, but no header was read: use column numbers, '
                "or --header names"
            )
        count = names.count(name)
        if count == 1:
            return names.index(name)
        if count:
            raise ValueError(f'{self.text}: more than one column is called "{name}": use column numbers')
        raise ValueError(f'{self.text}: there is no column "{name}"; there are: {listed(names)}')

    def is_within_last(self, count: int) -> bool:
        """Whether it takes only of the last `count` columns, and the same of them alone, in records of any width."""
        return bool(self.places) and all(_is_within_last(place, count) for place in self.places)


def _is_within_last(place: int | Slice, count: int) -> bool:
    if isinstance(place, Slice):
        start, stop = place
        return start is not None and -count <= start < 0 and (stop is None or stop < 0)
    return -count <= place < 0


def selection_of(text: str, segments: Sequence[Segment]) -> ColumnSelection | None:
    """A path's columns; None where it is not one segment deep, as a record's cells are."""
    if len(segments) != 1:
        return None
    match segments[0]:
        case Names(names):
            return ColumnSelection(text, names=tuple(dict.fromkeys(names)))
        case Places(places):
            return ColumnSelection(text, places)
        case Every():
            return ColumnSelection(text, (Slice(None, None),))


_NAMES_SHOWN = 20
_NAME_CHARACTERS_MAX = 50


def listed(names: Sequence[str]) -> str:
    """Names for people: this is told of every record below a header that does not fit, so it is kept short."""
    shown = [
        n if len(n) <= _NAME_CHARACTERS_MAX else n[:_NAME_CHARACTERS_MAX] + "…" for n in names[:_NAMES_SHOWN]
    ]
    more = f", … ({len(names)} in all)" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(shown) + more
