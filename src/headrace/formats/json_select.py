r"""The parts of JSON values that the segments of a path select, from parsed values or from texts.

Parts of a text keep their bytes: ``1.10``, ``1e400`` and ``"\u00e9"`` stay as written. A text is that
of one value known to be JSON. Only the levels that the path needs are read. Nested values of any
depth are skipped without recursion.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, TypeVar, cast

from typing_extensions import override

BLANKS: Final = b" \t\n\r"
"""The white space between JSON tokens."""

_BLANK = rb"[ \t\n\r]*+"
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_SCALAR = rb'[^ \t\n\r\[\]{}",:]++'
_FLAT = rb'[\[{][^\[\]{}"]*+(?:%b[^\[\]{}"]*+)*+[\]}]' % _STRING
_NESTED = rb'[\[{][^\[\]{}"]*+(?:(?:%b|%b)[^\[\]{}"]*+)*+[\]}]' % (_STRING, _FLAT)
_VALUE = rb"(?:(%b|%b|%b|%b)%b([,\]}])|[\[{])" % (_SCALAR, _STRING, _FLAT, _NESTED, _BLANK)
"""A value and the next token, or only an opening bracket if the containers nest deeper than once."""

_MEMBER = re.compile(rb"%b(%b)%b:%b%b" % (_BLANK, _STRING, _BLANK, _BLANK, _VALUE), re.DOTALL)
_ELEMENT = re.compile(rb"%b%b" % (_BLANK, _VALUE), re.DOTALL)
_BRACKET = re.compile(rb'[^\[\]{}"]*+(?:%b[^\[\]{}"]*+)*+([\[\]{}])' % _STRING, re.DOTALL)
_NEXT_TOKEN = re.compile(rb"%b([,\]}])" % _BLANK)
_EMPTY_CONTAINER = re.compile(rb"[\[{]%b[\]}]" % _BLANK)
_TYPE_NAMES: Final = {
    0x7B: "an object",
    0x5B: "an array",
    0x22: "a string",
    0x74: "true",
    0x66: "false",
    0x6E: "null",
}
NAMES_SHOWN: Final = 20
"""The number of names that a message lists."""
_NAME_CHARACTERS_MAX: Final = 50

_T = TypeVar("_T")


class Slice(NamedTuple):
    """The elements from `start` up to and excluding `stop`.

    Either may be None, and negative numbers count from the end.
    """

    start: int | None
    stop: int | None


@dataclass(frozen=True, slots=True)
class MemberSelector:
    """A selector of members by name. `prefix` is the text of the path before it."""

    names: tuple[str, ...]
    prefix: str


@dataclass(frozen=True, slots=True)
class ElementSelector:
    """A selector of elements by indices and slices, in the written order."""

    selectors: tuple[int | Slice, ...]
    prefix: str


@dataclass(frozen=True, slots=True)
class WildcardSelector:
    """A selector of all elements of an array, or of the values of all members of an object."""

    prefix: str


Segment = MemberSelector | ElementSelector | WildcardSelector


def select_parsed(segments: Sequence[Segment], value: Any) -> Any:
    """Select from a parsed value. Raise ValueError, worded for one record, if a part is missing."""
    return _select(_PARSED_FORM, segments, value)


def select_text(segments: Sequence[Segment], text: bytes) -> bytes:
    """Select from the text of a value.

    Raise ValueError as `select_parsed` does, and for text found not to be JSON.
    """
    return _select(_TEXT_FORM, segments, text.strip(BLANKS))


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


_PARSED_FORM: Final = _ParsedForm()
_TEXT_FORM: Final = _TextForm()


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
            f'"{shorten(name)}" is missing: {_path_text(prefix)} is {form.type_name(value)}, not an object'
        )
    try:
        return fields[name]
    except KeyError:
        has = ", ".join(f'"{shorten(other)}"' for other in list(fields)[:NAMES_SHOWN])
        more = f", … ({len(fields)} in all)" if len(fields) > NAMES_SHOWN else ""
        raise ValueError(
            f'"{shorten(name)}" is missing; {_path_text(prefix)} has {has or "no members"}{more}'
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


def shorten(name: str) -> str:
    """Return a name for a message, cut to a few words."""
    return name if len(name) <= _NAME_CHARACTERS_MAX else name[:_NAME_CHARACTERS_MAX] + "…"


class JsonMember(NamedTuple):
    """One member of an object: ``text[key:end]``, with its value ``text[start:end]``."""

    name: str
    key: int
    start: int
    end: int


def json_type_name(text: bytes) -> str:
    """Return the type of a value for messages, from the first byte of its text."""
    return _TYPE_NAMES.get(text[0], "a number") if text else "nothing"


def members(text: bytes) -> list[JsonMember]:
    """Return the members of an object in order, including repeated names; the names are decoded.

    `text` starts with the brace of the object. Raise ValueError if it is not an object, or not JSON
    at this level.
    """
    if not text.startswith(b"{"):
        raise ValueError(f"not an object, but {json_type_name(text)}")
    results: list[JsonMember] = []
    if _EMPTY_CONTAINER.match(text):
        return results
    offset, escaped = 1, b"\\" in text
    for member in _MEMBER.finditer(text, 1):
        (member_start, member_end), (key, key_end), (start, end), _ = member.regs
        if member_start != offset or start < 0:
            break
        name = text[key + 1 : key_end - 1].decode()
        results.append(JsonMember(_unescape(name) if escaped else name, key, start, end))
        offset = member_end
    else:
        return _check_closing(results, text[offset - 1 : offset], b"}", offset)
    # A deeply nested value follows: the rest is read bracket by bracket.
    next_token = b","
    while next_token == b",":
        member = _MEMBER.match(text, offset)
        if member is None:
            raise _syntax_error(offset)
        (start, end), next_token, offset = member.span(2), member[3], member.end()
        if start < 0:
            start = offset - 1
            end, next_token, offset = _skip_container(text, start)
        results.append(JsonMember(_unescape(member[1][1:-1].decode()), member.start(1), start, end))
    return _check_closing(results, next_token, b"}", offset)


def _unescape(name: str) -> str:
    return json.loads(f'"{name}"') if "\\" in name else name


def elements(text: bytes) -> list[bytes]:
    """Return the texts of the elements of an array in order.

    `text` is the text of the array including its brackets. Raise ValueError if it is not an array,
    or not JSON at this level.
    """
    if not text.startswith(b"["):
        raise ValueError(f"not an array, but {json_type_name(text)}")
    if b'"' not in text and b"{" not in text and text.find(b"[", 1) < 0:
        # Arrays of numbers and literals, such as feature vectors, contain commas only as
        # separators.
        return _split_plain_elements(text)
    results: list[bytes] = []
    offset, next_token = 1, b","
    while next_token == b",":
        element = _ELEMENT.match(text, offset)
        if element is None:
            raise _syntax_error(offset)
        (start, end), next_token, offset = element.span(1), element[2], element.end()
        if start < 0:
            start = offset - 1
            end, next_token, offset = _skip_container(text, start)
        results.append(text[start:end])
    return _check_closing(results, next_token, b"]", offset)


def _split_plain_elements(text: bytes) -> list[bytes]:
    content = text[1:-1]
    results = content.split(b",")
    if any(blank in content for blank in (b" ", b"\n", b"\t", b"\r")):
        results = [element.strip(BLANKS) for element in results]
    if results == [b""] and text.endswith(b"]"):
        return []
    if b"" in results or not text.endswith(b"]"):
        raise _syntax_error(len(text) - 1)
    return results


def _skip_container(text: bytes, start: int) -> tuple[int, bytes, int]:
    """Return the end of the container at `start`, the next token, and the offset after that token."""
    depth, offset = 1, start + 1
    while depth:
        bracket = _BRACKET.match(text, offset)
        if bracket is None:
            raise ValueError(f"not JSON: what opens at byte {start} never closes")
        depth += 1 if bracket[1] in b"[{" else -1
        offset = bracket.end()
    next_token = _NEXT_TOKEN.match(text, offset)
    if next_token is None:
        raise _syntax_error(offset)
    return offset, next_token[1], next_token.end()


def _check_closing(results: list[_T], next_token: bytes, closing: bytes, offset: int) -> list[_T]:
    """Return the results. Raise ValueError if the closing bracket is not as expected."""
    if next_token != closing:
        raise _syntax_error(offset - 1)
    return results


def _syntax_error(offset: int) -> ValueError:
    return ValueError(f"not JSON at byte {offset} of the value")
