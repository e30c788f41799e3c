"""Compiled JSONPath for batch transform's filters, applied to parsed records or to record texts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

from typing_extensions import override

from headrace.core.errors import ConfigError
from headrace.formats.csv_columns import ColumnSelection, column_selection
from headrace.formats.json_path_grammar import (
    ElementSelector,
    MemberSelector,
    Segment,
    Slice,
    SliceEnd,
    WildcardSelector,
    parse_path,
)
from headrace.formats.json_text import BLANKS, elements, json_type_name, members

_NAMES_SHOWN = 20
_NAME_CHARACTERS_MAX = 50


@dataclass(frozen=True, slots=True)
class JsonPath:
    """A compiled path.

    A path of single names and indices gives the value at that place. A list of names at the end
    gives an object of these members in the given order. Any other path (slices, lists of indices,
    ``*``, lists of names further in) gives a flat array of all selected values, in the order of RFC
    9535.

    Every selected name and index must exist in every value it is applied to. Slices end where the
    array ends. If members share a name, the last one counts, as in parsers.
    """

    text: str
    segments: tuple[Segment, ...]

    @property
    def is_root(self) -> bool:
        """Return True if the path is ``$``, the whole value."""
        return not self.segments

    @property
    def columns(self) -> ColumnSelection | None:
        """Return the selected columns of a CSV record, or None for ``$`` and for deeper paths."""
        return column_selection(self.text, self.segments)

    def csv_columns(self, *, named: bool) -> ColumnSelection | None:
        """Return the selected columns of CSV records, or None for all columns.

        `named` is True if the columns have names. Raise ConfigError if the path does not select
        columns.
        """
        if self.is_root:
            return None
        columns = self.columns
        if columns is None:
            raise ConfigError(
                f"{self.text} does not select columns of CSV records: use $, indices and slices "
                "such as $[0,2:], or names such as $['id'] if there is a header"
            )
        if columns.names and not named:
            raise ConfigError(
                f"{self.text} selects columns by name, but the records have no header: "
                "use indices such as $[0], or --header names"
            )
        return columns

    def relative_to(self, name: str) -> "JsonPath | None":
        """Return the path below the member `name`, or None if it also reads other members."""
        match self.segments:
            case [MemberSelector((first,)), *rest] if first == name:
                return JsonPath(self.text, tuple(rest))
            case _:
                return None

    def value(self, parsed: Any) -> Any:
        """Select from a parsed JSON value.

        Raise ValueError, worded for one record, if a part is missing.
        """
        return _select(_PARSED_FORM, self.segments, parsed)

    def raw(self, record: bytes) -> bytes:
        """Select from a JSON text. Every number, string and key keeps its bytes.

        `record` must be JSON; it is not checked beyond the parts that the path reads.
        ``json.loads(path.raw(text))`` equals ``path.value(json.loads(text))``. Raise ValueError as
        `value` does, and for text found not to be JSON.
        """
        if not self.segments:
            return record
        return _select(_TEXT_FORM, self.segments, record.strip(BLANKS))


def compile_path(text: str, *, slice_end: SliceEnd = "exclusive") -> JsonPath:
    """Compile a path of up to 63 characters.

    `slice_end` "inclusive" keeps the element at the second number of a slice, as SageMaker's
    documentation describes; RFC 9535 does not. Raise ConfigError with the character at which the
    path is not supported.
    """
    if slice_end not in {"exclusive", "inclusive"}:
        raise ConfigError(f'slice_end must be "exclusive" or "inclusive", not {slice_end!r}')
    return JsonPath(text, parse_path(text, slice_end))


_T = TypeVar("_T")


class _JsonForm(Protocol[_T]):
    """Access to JSON values in one form: parsed objects or texts."""

    def type_name(self, value: _T) -> str: ...

    def object_members(self, value: _T) -> Mapping[str, _T] | None:
        """Return the members of an object, or None for other values."""
        ...

    def array_elements(self, value: _T) -> Sequence[_T] | None:
        """Return the elements of an array, or None for other values."""
        ...

    def select_members(self, value: _T, segment: MemberSelector) -> _T:
        """Return an object with the named members of an object."""
        ...

    def make_array(self, values: list[_T]) -> _T: ...


class _ParsedForm(_JsonForm[Any]):
    """Values from a JSON parser."""

    @override
    def type_name(self, value: Any) -> str:
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

    @override
    def object_members(self, value: Any) -> Mapping[str, Any] | None:
        return cast("dict[str, Any]", value) if isinstance(value, dict) else None

    @override
    def array_elements(self, value: Any) -> Sequence[Any] | None:
        return cast("list[Any]", value) if isinstance(value, list) else None

    @override
    def select_members(self, value: Any, segment: MemberSelector) -> Any:
        fields = self.object_members(value)
        return {name: _select_member(self, value, fields, name, segment.prefix) for name in segment.names}

    @override
    def make_array(self, values: list[Any]) -> Any:
        return values


class _TextForm(_JsonForm[bytes]):
    """Values as JSON texts."""

    @override
    def type_name(self, value: bytes) -> str:
        return json_type_name(value)

    @override
    def object_members(self, value: bytes) -> Mapping[str, bytes] | None:
        if not value.startswith(b"{"):
            return None
        return {member.name: value[member.start : member.end] for member in members(value)}

    @override
    def array_elements(self, value: bytes) -> Sequence[bytes] | None:
        return elements(value) if value.startswith(b"[") else None

    @override
    def select_members(self, value: bytes, segment: MemberSelector) -> bytes:
        # Members are copied with their keys, so that the keys keep their bytes too.
        fields = (
            {member.name: value[member.key : member.end] for member in members(value)}
            if value.startswith(b"{")
            else None
        )
        member_texts = (
            _select_member(self, value, fields, name, segment.prefix) for name in dict.fromkeys(segment.names)
        )
        return b"{" + b",".join(member_texts) + b"}"

    @override
    def make_array(self, values: list[bytes]) -> bytes:
        return b"[" + b",".join(values) + b"]"


_PARSED_FORM = _ParsedForm()
_TEXT_FORM = _TextForm()


def _select(form: _JsonForm[_T], segments: Sequence[Segment], value: _T) -> _T:
    for depth, segment in enumerate(segments):
        match segment:
            case MemberSelector((name,), prefix):
                value = _select_member(form, value, form.object_members(value), name, prefix)
            case ElementSelector((int() as index,), prefix):
                value = _select_element(form, value, form.array_elements(value), index, prefix)
            case MemberSelector() if depth == len(segments) - 1:
                return form.select_members(value, segment)
            case _:
                return form.make_array(_select_all(form, segments[depth:], value))
    return value


def _select_all(form: _JsonForm[_T], segments: Sequence[Segment], value: _T) -> list[_T]:
    """Return all values that the segments select."""
    current = [value]
    for depth, segment in enumerate(segments):
        if isinstance(segment, MemberSelector) and len(segment.names) > 1 and depth == len(segments) - 1:
            return [form.select_members(node, segment) for node in current]
        current = [child for node in current for child in _select_children(form, segment, node)]
    return current


def _select_children(form: _JsonForm[_T], segment: Segment, value: _T) -> Sequence[_T]:
    match segment:
        case MemberSelector(names, prefix):
            fields = form.object_members(value)
            return [_select_member(form, value, fields, name, prefix) for name in names]
        case ElementSelector(selectors, prefix):
            items = form.array_elements(value)
            selected: list[_T] = []
            for selector in selectors:
                if isinstance(selector, Slice):
                    selected += _require_array(form, value, items, "a slice", prefix)[
                        selector.start : selector.stop
                    ]
                else:
                    selected.append(_select_element(form, value, items, selector, prefix))
            return selected
        case WildcardSelector(prefix):
            fields = form.object_members(value)
            if fields is not None:
                return list(fields.values())
            return _require_array(
                form, value, form.array_elements(value), "[*]", prefix, expected="an array or object"
            )


def _select_member(
    form: _JsonForm[_T], value: _T, fields: Mapping[str, _T] | None, name: str, prefix: str
) -> _T:
    if fields is None:
        raise ValueError(
            f'"{_shorten(name)}" is missing: {_path_text(prefix)} is {form.type_name(value)}, not an object'
        )
    try:
        return fields[name]
    except KeyError:
        has = ", ".join(f'"{_shorten(other)}"' for other in list(fields)[:_NAMES_SHOWN])
        more = f", … ({len(fields)} in all)" if len(fields) > _NAMES_SHOWN else ""
        raise ValueError(
            f'"{_shorten(name)}" is missing; {_path_text(prefix)} has {has or "no members"}{more}'
        ) from None


def _select_element(
    form: _JsonForm[_T], value: _T, items: Sequence[_T] | None, index: int, prefix: str
) -> _T:
    items = _require_array(form, value, items, f"element {index}", prefix)
    try:
        return items[index]
    except IndexError:
        raise ValueError(
            f"there is no element {index}; {_path_text(prefix)} has {len(items)} elements, counted from 0"
        ) from None


def _require_array(
    form: _JsonForm[_T],
    value: _T,
    items: Sequence[_T] | None,
    selector_text: str,
    prefix: str,
    *,
    expected: str = "an array",
) -> Sequence[_T]:
    if items is None:
        raise ValueError(
            f"{selector_text} needs {expected}, but {_path_text(prefix)} is {form.type_name(value)}"
        )
    return items


def _path_text(prefix: str) -> str:
    return "the value" if prefix == "$" else prefix


def _shorten(name: str) -> str:
    return name if len(name) <= _NAME_CHARACTERS_MAX else name[:_NAME_CHARACTERS_MAX] + "…"
