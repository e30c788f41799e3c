"""The JSONPath syntax of filters: the part of RFC 9535 that batch transform supports.

Supported are ``$``, ``.name``, ``.*``, ``[*]``, ``['a','b']``, ``[0,-1]``, ``[1:4]``, lists that
mix indices and slices, and chains of these, with or without a dot before a bracket. Descendants
(``..``), filters, scripts and steps are rejected.
"""

import json
import re
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from headrace.core.errors import ConfigError

SliceEnd = Literal["exclusive", "inclusive"]
"""The meaning of a slice's second number: the first excluded element (RFC 9535) or the last included one."""

PATH_CHARACTERS_MAX: Final = 63
_ALLOWED: Final = "allowed are $, .name, .*, [*], ['a','b'], [0,-1], [1:4] and chains of these"
_INTEGER_MAX: Final = 2**53 - 1
_BLANK_PATTERN: Final = re.compile(r"[ \t\n\r]*")
_NAME_PATTERN: Final = re.compile(
    "[A-Za-z_\x80-\ud7ff\ue000-\U0010ffff][0-9A-Za-z_\x80-\ud7ff\ue000-\U0010ffff]*"
)
_INTEGER_PATTERN: Final = re.compile(r"-?[0-9]+")
_QUOTED_PATTERN: Final = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_ESCAPE_PATTERN: Final = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.DOTALL)
_UNSUPPORTED: Final = {
    "..": "descendants (..) are not supported",
    "?": "filter expressions (?) are not supported",
    "(": "script expressions are not supported",
    "@": "script expressions are not supported",
}


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


def parse_path(text: str, slice_end: SliceEnd) -> tuple[Segment, ...]:
    """Return the segments of a path.

    Raise ConfigError with the character at which the syntax is invalid.
    """
    if len(text) > PATH_CHARACTERS_MAX:
        raise ConfigError(f"JSONPath {text!r} has {len(text)} characters; the limit is {PATH_CHARACTERS_MAX}")
    return _Parser(text, slice_end).segments()


class _Parser:
    """A parser that reads from left to right; `_position` is the offset of the next character."""

    def __init__(self, text: str, slice_end: SliceEnd) -> None:
        self._text = text
        self._inclusive = slice_end == "inclusive"
        self._position = 0

    def segments(self) -> tuple[Segment, ...]:
        if not self._accept("$"):
            raise self._error("a path starts with $")
        found: list[Segment] = []
        while True:
            prefix_end = self._position
            self._skip_blanks()
            if self._position == len(self._text):
                if self._position != prefix_end:
                    raise self._error("trailing white space is not allowed", at=prefix_end)
                return tuple(found)
            found.append(self._segment(self._text[:prefix_end]))

    def _segment(self, prefix: str) -> Segment:
        if self._accept("["):
            return self._bracket_segment(prefix)
        dot_position = self._position
        if not self._accept("."):
            raise self._error("a segment starts with . or [")
        if self._next_is("."):
            raise self._error(_UNSUPPORTED[".."], at=dot_position)
        if self._accept("["):
            return self._bracket_segment(prefix)
        if self._accept("*"):
            return WildcardSelector(prefix)
        name = _NAME_PATTERN.match(self._text, self._position)
        if name is None:
            raise self._error("expected a name; names with other characters are written ['...']")
        self._position = name.end()
        return MemberSelector((name[0],), prefix)

    def _bracket_segment(self, prefix: str) -> Segment:
        self._skip_blanks()
        if self._accept("*"):
            self._expect_closing("[*] cannot be combined with other selectors")
            return WildcardSelector(prefix)
        if self._next_is("'") or self._next_is('"'):
            return MemberSelector(self._quoted_names(), prefix)
        selectors = [self._element_selector()]
        while self._accept_comma():
            selectors.append(self._element_selector())
        self._expect_closing("expected a comma or ]")
        return ElementSelector(tuple(selectors), prefix)

    def _quoted_names(self) -> tuple[str, ...]:
        starts = [self._position]
        names = [self._quoted_name()]
        while self._accept_comma():
            starts.append(self._position)
            names.append(self._quoted_name())
        self._expect_closing("expected a comma or ]")
        if len(names) > 1:
            for start, name in zip(starts, names, strict=True):
                # An escaped dot is intended as part of the name.
                if "." in name and "." in self._text[start : start + len(name) + 2]:
                    raise self._error(
                        "a path inside a list of names is not supported; write a dot in a name as \\u002e",
                        at=start,
                    )
        return tuple(names)

    def _quoted_name(self) -> str:
        quoted = _QUOTED_PATTERN.match(self._text, self._position)
        if quoted is None:
            problem = (
                "unclosed quote"
                if self._at_quote()
                else "expected a quoted name: a list holds either names or indices"
            )
            raise self._error(problem)
        start, text = self._position + 1, quoted[0][1:-1]
        self._position = quoted.end()
        name = _ESCAPE_PATTERN.sub(lambda escape: self._unescaped(escape, quoted[0][0], start), text)
        # A pair of surrogates is one character; a single surrogate is none.
        name = name.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        if any("\ud800" <= character <= "\udfff" for character in name):
            raise self._error("an unpaired surrogate is not a character", at=start)
        if any(character < " " for character in text):
            raise self._error("control characters must be escaped with a backslash", at=start)
        return name

    def _unescaped(self, escape: re.Match[str], quote: str, start: int) -> str:
        code = escape[1]
        if code == quote:
            return quote
        if len(code) == 1 and code not in "\\/bfnrt":
            raise self._error(f"\\{code} is not an escape sequence", at=start + escape.start())
        value: str = json.loads(f'"\\{code}"')
        return value

    def _element_selector(self) -> int | Slice:
        start = self._read_integer()
        self._skip_blanks()
        if not self._accept(":"):
            if start is None:
                raise self._error(self._unsupported_reason())
            return start
        self._skip_blanks()
        stop = self._read_integer()
        self._skip_blanks()
        if self._next_is(":"):
            raise self._error("slices with a step are not supported")
        if stop is not None and self._inclusive:
            # -1 is the last element, so an inclusive slice to it has no end.
            stop = stop + 1 if stop != -1 else None
        return Slice(start, stop)

    def _read_integer(self) -> int | None:
        number = _INTEGER_PATTERN.match(self._text, self._position)
        if number is None:
            return None
        text = number[0]
        if text != str(int(text)):
            raise self._error(f"write {text} as {int(text)}")
        if abs(int(text)) > _INTEGER_MAX:
            raise self._error(f"{text} is too large")
        self._position = number.end()
        return int(text)

    def _unsupported_reason(self) -> str:
        if self._at_quote():
            return "a list holds either names or indices"
        for token, reason in _UNSUPPORTED.items():
            if self._next_is(token):
                return reason
        return "expected an index, a slice, a quoted name or *"

    def _accept_comma(self) -> bool:
        self._skip_blanks()
        if not self._accept(","):
            return False
        self._skip_blanks()
        return True

    def _expect_closing(self, reason: str) -> None:
        self._skip_blanks()
        if not self._accept("]"):
            raise self._error(reason)

    def _at_quote(self) -> bool:
        return self._next_is("'") or self._next_is('"')

    def _next_is(self, token: str) -> bool:
        return self._text.startswith(token, self._position)

    def _accept(self, token: str) -> bool:
        if not self._next_is(token):
            return False
        self._position += len(token)
        return True

    def _skip_blanks(self) -> None:
        blank = _BLANK_PATTERN.match(self._text, self._position)
        assert blank is not None, "it may be empty"
        self._position = blank.end()

    def _error(self, reason: str, *, at: int | None = None) -> ConfigError:
        """Return an error with the character that was read and its position."""
        position = self._position if at is None else at
        found = f'"{self._text[position]}"' if position < len(self._text) else "the end"
        return ConfigError(
            f"JSONPath {self._text!r}, character {position + 1} ({found}): {reason}; {_ALLOWED}"
        )
