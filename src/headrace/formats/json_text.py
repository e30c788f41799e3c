r"""A JSON text taken apart without parsing it: the texts of an object's members and of an array's elements.

What is cut out keeps its bytes: ``1.10``, ``1e400`` and ``"\u00e9"`` stay as they were written. Arrives: the text
of one value that is known to be JSON. Only the level that is asked for is looked at; what is nested is stepped over,
however deep, without recursion.
"""

import json
import re
from typing import Final, NamedTuple, TypeVar

BLANKS: Final = b" \t\n\r"
"""What JSON has between tokens."""

_BLANK = rb"[ \t\n\r]*+"
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_SCALAR = rb'[^ \t\n\r\[\]{}",:]++'
_FLAT = rb'[\[{][^\[\]{}"]*+(?:%b[^\[\]{}"]*+)*+[\]}]' % _STRING
_NESTED = rb'[\[{][^\[\]{}"]*+(?:(?:%b|%b)[^\[\]{}"]*+)*+[\]}]' % (_STRING, _FLAT)
_VALUE = rb"(?:(%b|%b|%b|%b)%b([,\]}])|[\[{])" % (_SCALAR, _STRING, _FLAT, _NESTED, _BLANK)
"""A value and what follows it; or, where containers are nested deeper than once, an opening bracket alone."""

_MEMBER = re.compile(rb"%b(%b)%b:%b%b" % (_BLANK, _STRING, _BLANK, _BLANK, _VALUE), re.DOTALL)
_ELEMENT = re.compile(rb"%b%b" % (_BLANK, _VALUE), re.DOTALL)
_BRACKET = re.compile(rb'[^\[\]{}"]*+(?:%b[^\[\]{}"]*+)*+([\[\]{}])' % _STRING, re.DOTALL)
_AFTER = re.compile(rb"%b([,\]}])" % _BLANK)
_NOTHING = re.compile(rb"[\[{]%b[\]}]" % _BLANK)
_KINDS: Final = {
    0x7B: "an object",
    0x5B: "an array",
    0x22: "a string",
    0x74: "true",
    0x66: "false",
    0x6E: "null",
}


class Member(NamedTuple):
    """One member of an object: its text is ``text[key:end]``, that of its value ``text[start:end]``."""

    name: str
    key: int
    start: int
    end: int


def kind_of(text: bytes) -> str:
    """What a value is, in words, by how its text begins."""
    return _KINDS.get(text[0], "a number") if text else "nothing"


def members(text: bytes) -> list[Member]:
    """The members of an object, in order, doubled names and all; their names are decoded.

    `text` starts with the object's brace. ValueError where it is no object, or not JSON at this level.
    """
    if not text.startswith(b"{"):
        raise ValueError(f"not an object, but {kind_of(text)}")
    found: list[Member] = []
    if _NOTHING.match(text):
        return found
    at, escaped = 1, b"\\" in text
    for member in _MEMBER.finditer(text, 1):
        (begin, stop), (key, key_end), (start, end), _ = member.regs
        if begin != at or start < 0:
            break
        name = text[key + 1 : key_end - 1].decode()
        found.append(Member(_unescaped(name) if escaped else name, key, start, end))
        at = stop
    else:
        return _closed(found, text[at - 1 : at], b"}", at)
    # Something is nested deeply: from here on bracket by bracket.
    after = b","
    while after == b",":
        member = _MEMBER.match(text, at)
        if member is None:
            raise _not_json(at)
        (start, end), after, at = member.span(2), member[3], member.end()
        if start < 0:
            start = at - 1
            end, after, at = _stepped_over(text, start)
        found.append(Member(_unescaped(member[1][1:-1].decode()), member.start(1), start, end))
    return _closed(found, after, b"}", at)


def _unescaped(name: str) -> str:
    return json.loads(f'"{name}"') if "\\" in name else name


def elements(text: bytes) -> list[bytes]:
    """The texts of an array's elements, in order.

    `text` is that of the array, from its bracket to its bracket. ValueError where it is no array, or not JSON at
    this level.
    """
    if not text.startswith(b"["):
        raise ValueError(f"not an array, but {kind_of(text)}")
    if b'"' not in text and b"{" not in text and text.find(b"[", 1) < 0:
        # Numbers and words alone, as arrays of features are: no comma is anything but a comma.
        return _plain_elements(text)
    found: list[bytes] = []
    at, after = 1, b","
    while after == b",":
        element = _ELEMENT.match(text, at)
        if element is None:
            raise _not_json(at)
        (start, end), after, at = element.span(1), element[2], element.end()
        if start < 0:
            start = at - 1
            end, after, at = _stepped_over(text, start)
        found.append(text[start:end])
    return _closed(found, after, b"]", at)


def _plain_elements(text: bytes) -> list[bytes]:
    inside = text[1:-1]
    found = inside.split(b",")
    if any(blank in inside for blank in (b" ", b"\n", b"\t", b"\r")):
        found = [element.strip(BLANKS) for element in found]
    if found == [b""] and text.endswith(b"]"):
        return []
    if b"" in found or not text.endswith(b"]"):
        raise _not_json(len(text) - 1)
    return found


def _stepped_over(text: bytes, start: int) -> tuple[int, bytes, int]:
    """Where the container that opens at `start` ends, what follows it, and the offset after that."""
    depth, at = 1, start + 1
    while depth:
        bracket = _BRACKET.match(text, at)
        if bracket is None:
            raise ValueError(f"not JSON: what opens at byte {start} never closes")
        depth += 1 if bracket[1] in b"[{" else -1
        at = bracket.end()
    after = _AFTER.match(text, at)
    if after is None:
        raise _not_json(at)
    return at, after[1], after.end()


_T = TypeVar("_T")


def _closed(found: list[_T], after: bytes, closing: bytes, at: int) -> list[_T]:
    """What was found, if it ends as it should."""
    if after != closing:
        raise _not_json(at - 1)
    return found


def _not_json(at: int) -> ValueError:
    return ValueError(f"not JSON at byte {at} of the value")
