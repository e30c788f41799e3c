"""JSONPath as batch transform's filters have it: compiled once, applied to a parsed record or to a record's text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

from headrace.core.errors import ConfigError
from headrace.formats.csv_selection import ColumnSelection, selection_of
from headrace.formats.json_path_grammar import Every, Names, Places, Segment, Slice, SliceEnd, parse
from headrace.formats.json_text import BLANKS, elements, kind_of, members

_NAMES_SHOWN = 20
_NAME_CHARACTERS_MAX = 50


@dataclass(frozen=True, slots=True)
class JsonPath:
    """A compiled path.

    One of names and single indices gives the value that it leads to. A list of names at its end gives an object
    of these members, in the order asked for. Everything else (slices, lists of indices, ``*``, and lists of names
    further in) gives an array of all values that it leads to, flat, in RFC 9535's order.

    What a name or an index asks for must be there, in every value that it is asked of; slices end where the array
    does. Of members that share a name the last one counts, as parsers have it.
    """

    text: str
    segments: tuple[Segment, ...]

    @property
    def is_root(self) -> bool:
        """Whether it is ``$``: everything, as it stands."""
        return not self.segments

    @property
    def columns(self) -> ColumnSelection | None:
        """What it keeps of a CSV record; None for ``$``, and for paths deeper than a record of cells."""
        return selection_of(self.text, self.segments)

    def csv_columns(self, *, named: bool) -> ColumnSelection | None:
        """What it keeps of CSV records; None is all, as they stand.

        `named` says that the columns have names. ConfigError when it is no path to columns.
        """
        if self.is_root:
            return None
        columns = self.columns
        if columns is None:
            raise ConfigError(
                f"{self.text} leads into the cells of CSV records: only $, indices and slices such as $[0,2:] "
                "choose columns, and names such as $['id'] where there is a header"
            )
        if columns.names and not named:
            raise ConfigError(
                f"{self.text} chooses columns by name, but the records have no header: use indices such as $[0], "
                "or --header names"
            )
        return columns

    def within(self, name: str) -> "JsonPath | None":
        """What it selects of the member `name`, where that is all that it looks at; else None."""
        match self.segments:
            case [Names((first,)), *rest] if first == name:
                return JsonPath(self.text, tuple(rest))
            case _:
                return None

    def value(self, parsed: Any) -> Any:
        """The selection of a parsed JSON value. ValueError, worded for one record, when something is not there."""
        return _selected(_PARSED, self.segments, parsed)

    def raw(self, record: bytes) -> bytes:
        """The selection as JSON text: every number, string and key in the bytes that it came in.

        `record` is JSON, which is not checked further than the path looks. ``json.loads(path.raw(text))`` is
        ``path.value(json.loads(text))``. ValueError as from `value`, and for what is seen to be no JSON.
        """
        if not self.segments:
            return record
        return _selected(_TEXT, self.segments, record.strip(BLANKS))


def compile_path(text: str, *, slice_end: SliceEnd = "exclusive") -> JsonPath:
    """Compile a path of at most 63 characters.

    `slice_end` "inclusive" keeps the element that a slice's second number names, as the vendor's prose has it;
    RFC 9535 does not. ConfigError that points at the character where the path is not supported.
    """
    if slice_end not in {"exclusive", "inclusive"}:
        raise ConfigError(f'slice_end must be "exclusive" or "inclusive", not {slice_end!r}')
    return JsonPath(text, parse(text, slice_end))


_T = TypeVar("_T")


class _Form(Protocol[_T]):
    """How values of one form are taken apart and put together."""

    def kind(self, value: _T) -> str: ...

    def fields(self, value: _T) -> Mapping[str, _T] | None:
        """An object's members; None when it is none."""
        ...

    def items(self, value: _T) -> Sequence[_T] | None:
        """An array's elements; None when it is none."""
        ...

    def subset(self, value: _T, segment: Names) -> _T:
        """An object with some of an object's members."""
        ...

    def array(self, values: list[_T]) -> _T: ...


class _Parsed:
    """Values as a parser gives them."""

    def kind(self, value: Any) -> str:
        match value:
            case None:
                return "null"
            case bool():
                return "true" if value else "false"
            case str():
                return "a string"
            case dict():
                return "an object"
            case list():
                return "an array"
            case _:
                return "a number"

    def fields(self, value: Any) -> Mapping[str, Any] | None:
        return cast("dict[str, Any]", value) if isinstance(value, dict) else None

    def items(self, value: Any) -> Sequence[Any] | None:
        return cast("list[Any]", value) if isinstance(value, list) else None

    def subset(self, value: Any, segment: Names) -> Any:
        fields = self.fields(value)
        return {name: _field(self, value, fields, name, segment.where) for name in segment.names}

    def array(self, values: list[Any]) -> Any:
        return values


class _Text:
    """Values as their texts."""

    def kind(self, value: bytes) -> str:
        return kind_of(value)

    def fields(self, value: bytes) -> Mapping[str, bytes] | None:
        if not value.startswith(b"{"):
            return None
        return {member.name: value[member.start : member.end] for member in members(value)}

    def items(self, value: bytes) -> Sequence[bytes] | None:
        return elements(value) if value.startswith(b"[") else None

    def subset(self, value: bytes, segment: Names) -> bytes:
        # With their keys: these too keep the bytes that they came in.
        fields = (
            {member.name: value[member.key : member.end] for member in members(value)}
            if value.startswith(b"{")
            else None
        )
        chosen = (_field(self, value, fields, name, segment.where) for name in dict.fromkeys(segment.names))
        return b"{" + b",".join(chosen) + b"}"

    def array(self, values: list[bytes]) -> bytes:
        return b"[" + b",".join(values) + b"]"


_PARSED = _Parsed()
_TEXT = _Text()


def _selected(form: _Form[_T], segments: Sequence[Segment], value: _T) -> _T:
    for at, segment in enumerate(segments):
        match segment:
            case Names((name,), where):
                value = _field(form, value, form.fields(value), name, where)
            case Places((int() as index,), where):
                value = _item(form, value, form.items(value), index, where)
            case Names() if at == len(segments) - 1:
                return form.subset(value, segment)
            case _:
                return form.array(_spread(form, segments[at:], value))
    return value


def _spread(form: _Form[_T], segments: Sequence[Segment], value: _T) -> list[_T]:
    """All values that the segments lead to."""
    nodes = [value]
    for at, segment in enumerate(segments):
        if isinstance(segment, Names) and len(segment.names) > 1 and at == len(segments) - 1:
            return [form.subset(node, segment) for node in nodes]
        nodes = [inner for node in nodes for inner in _inner(form, segment, node)]
    return nodes


def _inner(form: _Form[_T], segment: Segment, value: _T) -> Sequence[_T]:
    match segment:
        case Names(names, where):
            fields = form.fields(value)
            return [_field(form, value, fields, name, where) for name in names]
        case Places(places, where):
            items = form.items(value)
            found: list[_T] = []
            for place in places:
                if isinstance(place, Slice):
                    found += _array(form, value, items, "a slice", where)[place.start : place.stop]
                else:
                    found.append(_item(form, value, items, place, where))
            return found
        case Every(where):
            fields = form.fields(value)
            if fields is not None:
                return list(fields.values())
            return _array(form, value, form.items(value), "[*]", where, of="an array or object")


def _field(form: _Form[_T], value: _T, fields: Mapping[str, _T] | None, name: str, where: str) -> _T:
    if fields is None:
        raise ValueError(
            f'"{_short(name)}" is not there: {_place(where)} is {form.kind(value)}, not an object'
        )
    try:
        return fields[name]
    except KeyError:
        has = ", ".join(f'"{_short(other)}"' for other in list(fields)[:_NAMES_SHOWN])
        more = f", … ({len(fields)} in all)" if len(fields) > _NAMES_SHOWN else ""
        raise ValueError(
            f'"{_short(name)}" is not there; {_place(where)} has {has or "nothing"}{more}'
        ) from None


def _item(form: _Form[_T], value: _T, items: Sequence[_T] | None, index: int, where: str) -> _T:
    items = _array(form, value, items, f"element {index}", where)
    try:
        return items[index]
    except IndexError:
        raise ValueError(
            f"there is no element {index}; {_place(where)} has {len(items)}, counted from 0"
        ) from None


def _array(
    form: _Form[_T], value: _T, items: Sequence[_T] | None, what: str, where: str, *, of: str = "an array"
) -> Sequence[_T]:
    if items is None:
        raise ValueError(f"{what} is of {of}, but {_place(where)} is {form.kind(value)}")
    return items


def _place(where: str) -> str:
    return "it" if where == "$" else where


def _short(name: str) -> str:
    return name if len(name) <= _NAME_CHARACTERS_MAX else name[:_NAME_CHARACTERS_MAX] + "…"
