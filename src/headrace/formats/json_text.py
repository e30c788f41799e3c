r"""The texts of the members of a JSON object and of the elements of a JSON array, without parsing.

The parts keep their bytes: ``1.10``, ``1e400`` and ``"\u00e9"`` stay as written. The input is the
text of one value known to be JSON. Only the requested level is read. Nested values of any depth are
skipped without recursion.
"""

import json
import re
from typing import Final, NamedTuple, TypeVar

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


_T = TypeVar("_T")


def _check_closing(results: list[_T], next_token: bytes, closing: bytes, offset: int) -> list[_T]:
    """Return the results. Raise ValueError if the closing bracket is not as expected."""
    if next_token != closing:
        raise _syntax_error(offset - 1)
    return results


def _syntax_error(offset: int) -> ValueError:
    return ValueError(f"not JSON at byte {offset} of the value")
