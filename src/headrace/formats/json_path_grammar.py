"""The JSONPath that filters take: RFC 9535's grammar, as much of it as batch transform has.

``$``, ``.name``, ``.*``, ``[*]``, ``['a','b']``, ``[0,-1]``, ``[1:4]``, lists that mix indices and slices, and chains
of these, with a dot before a bracket or without. Descendants (``..``), filters, scripts and steps are refused.
"""

import json
import re
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from headrace.core.errors import ConfigError

SliceEnd = Literal["exclusive", "inclusive"]
"""Whether a slice's second number is the first element left out (RFC 9535), or the last one kept."""

PATH_CHARACTERS_MAX: Final = 63
_ALLOWED: Final = "allowed are $, .name, .*, [*], ['a','b'], [0,-1], [1:4] and chains of these"
_INTEGER_MAX: Final = 2**53 - 1
_BLANK: Final = re.compile(r"[ \t\n\r]*")
_NAME: Final = re.compile("[A-Za-z_\x80-\ud7ff\ue000-\U0010ffff][0-9A-Za-z_\x80-\ud7ff\ue000-\U0010ffff]*")
_INTEGER: Final = re.compile(r"-?[0-9]+")
_QUOTED: Final = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.DOTALL)
_REFUSED: Final = {
    "..": "descendants (..) are not supported",
    "?": "filter expressions (?) are not supported",
    "(": "script expressions are not supported",
    "@": "script expressions are not supported",
}


class Slice(NamedTuple):
    """Elements from `start` up to but without `stop`; either may be missing, and negative ones count from the end."""

    start: int | None
    stop: int | None


@dataclass(frozen=True, slots=True)
class Names:
    """Members by name; `where` is the path's text before."""

    names: tuple[str, ...]
    where: str


@dataclass(frozen=True, slots=True)
class Places:
    """Elements by indices and slices, in the order written."""

    places: tuple[int | Slice, ...]
    where: str


@dataclass(frozen=True, slots=True)
class Every:
    """All elements, or all members' values."""

    where: str


Segment = Names | Places | Every


def parse(text: str, slice_end: SliceEnd) -> tuple[Segment, ...]:
    """The segments of a path; ConfigError that points at the character where it is none of these."""
    if len(text) > PATH_CHARACTERS_MAX:
        raise ConfigError(
            f"JSONPath {text!r} has {len(text)} characters; at most {PATH_CHARACTERS_MAX} are allowed"
        )
    return _Parser(text, slice_end).segments()


class _Parser:
    """Reads from left to right; `_at` is the next character."""

    def __init__(self, text: str, slice_end: SliceEnd) -> None:
        self._text = text
        self._inclusive = slice_end == "inclusive"
        self._at = 0

    def segments(self) -> tuple[Segment, ...]:
        if not self._took("$"):
            raise self._wrong("a path starts with $")
        found: list[Segment] = []
        while True:
            after = self._at
            self._blanks()
            if self._at == len(self._text):
                if self._at != after:
                    raise self._wrong("blanks at the end", at=after)
                return tuple(found)
            found.append(self._segment(self._text[:after]))

    def _segment(self, where: str) -> Segment:
        if self._took("["):
            return self._bracket(where)
        dot = self._at
        if not self._took("."):
            raise self._wrong("a segment starts with . or [")
        if self._sees("."):
            raise self._wrong(_REFUSED[".."], at=dot)
        if self._took("["):
            return self._bracket(where)
        if self._took("*"):
            return Every(where)
        name = _NAME.match(self._text, self._at)
        if name is None:
            raise self._wrong("a name was expected; one that is no plain word is written ['...']")
        self._at = name.end()
        return Names((name[0],), where)

    def _bracket(self, where: str) -> Segment:
        self._blanks()
        if self._took("*"):
            self._close("[*] stands alone")
            return Every(where)
        if self._sees("'") or self._sees('"'):
            return Names(self._listed_names(), where)
        places = [self._place()]
        while self._comma():
            places.append(self._place())
        self._close("a comma or ] was expected")
        return Places(tuple(places), where)

    def _listed_names(self) -> tuple[str, ...]:
        starts = [self._at]
        names = [self._quoted()]
        while self._comma():
            starts.append(self._at)
            names.append(self._quoted())
        self._close("a comma or ] was expected")
        if len(names) > 1:
            for start, name in zip(starts, names, strict=True):
                # A dot that was escaped is meant.
                if "." in name and "." in self._text[start : start + len(name) + 2]:
                    raise self._wrong(
                        "a path inside a list of names is not supported; a name with a dot is written \\u002e",
                        at=start,
                    )
        return tuple(names)

    def _quoted(self) -> str:
        quoted = _QUOTED.match(self._text, self._at)
        if quoted is None:
            what = (
                "this quote never closes"
                if self._at_quote()
                else "a quoted name was expected: a list is of names or of indices"
            )
            raise self._wrong(what)
        start, text = self._at + 1, quoted[0][1:-1]
        self._at = quoted.end()
        name = _ESCAPE.sub(lambda escape: self._unescaped(escape, quoted[0][0], start), text)
        # Pairs of surrogates stand for one character; one alone stands for none.
        name = name.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        if any("\ud800" <= character <= "\udfff" for character in name):
            raise self._wrong("half a surrogate pair is no character", at=start)
        if any(character < " " for character in text):
            raise self._wrong("control characters are written with a backslash", at=start)
        return name

    def _unescaped(self, escape: re.Match[str], quote: str, start: int) -> str:
        code = escape[1]
        if code == quote:
            return quote
        if len(code) == 1 and code not in "\\/bfnrt":
            raise self._wrong(f"\\{code} is no escape", at=start + escape.start())
        value: str = json.loads(f'"\\{code}"')
        return value

    def _place(self) -> int | Slice:
        start = self._integer()
        self._blanks()
        if not self._took(":"):
            if start is None:
                raise self._wrong(self._no_place())
            return start
        self._blanks()
        stop = self._integer()
        self._blanks()
        if self._sees(":"):
            raise self._wrong("slices with a step are not supported")
        if stop is not None and self._inclusive:
            # The element after the last one is the end.
            stop = stop + 1 if stop != -1 else None
        return Slice(start, stop)

    def _integer(self) -> int | None:
        number = _INTEGER.match(self._text, self._at)
        if number is None:
            return None
        text = number[0]
        if text != str(int(text)):
            raise self._wrong(f"{text} is written {int(text)}")
        if abs(int(text)) > _INTEGER_MAX:
            raise self._wrong(f"{text} is too large")
        self._at = number.end()
        return int(text)

    def _no_place(self) -> str:
        if self._at_quote():
            return "a list is of names or of indices, not of both"
        for sign, why in _REFUSED.items():
            if self._sees(sign):
                return why
        return "an index, a slice, a quoted name or * was expected"

    def _comma(self) -> bool:
        self._blanks()
        if not self._took(","):
            return False
        self._blanks()
        return True

    def _close(self, why: str) -> None:
        self._blanks()
        if not self._took("]"):
            raise self._wrong(why)

    def _at_quote(self) -> bool:
        return self._sees("'") or self._sees('"')

    def _sees(self, sign: str) -> bool:
        return self._text.startswith(sign, self._at)

    def _took(self, sign: str) -> bool:
        if not self._sees(sign):
            return False
        self._at += len(sign)
        return True

    def _blanks(self) -> None:
        blank = _BLANK.match(self._text, self._at)
        assert blank is not None, "it may be empty"
        self._at = blank.end()

    def _wrong(self, why: str, *, at: int | None = None) -> ConfigError:
        """Words that show what was read, and where it went wrong."""
        place = self._at if at is None else at
        found = f'"{self._text[place]}"' if place < len(self._text) else "the end"
        return ConfigError(f"JSONPath {self._text!r}, character {place + 1} ({found}): {why}; {_ALLOWED}")
