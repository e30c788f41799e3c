"""JSONPath for batch transform's filters: the part of RFC 9535 that it supports, compiled.

Supported are ``$``, ``.name``, ``.*``, ``[*]``, ``['a','b']``, ``[0,-1]``, ``[1:4]``, lists that
mix indices and slices, and chains of these, with or without a dot before a bracket. Descendants
(``..``), filters, scripts and steps are rejected. A path selects parts of JSON records (see
`json_select`), or columns of CSV records.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal

from headrace.core.errors import ConfigError
from headrace.formats.json_select import (
    NAMES_SHOWN,
    ElementSelector,
    MemberSelector,
    Segment,
    Slice,
    WildcardSelector,
    select_parsed,
    select_text,
    shorten,
)

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
        if names is not None and self.names and len(names) != width:
            raise ValueError(f"{self.text}: records have {width} columns, but the header has {len(names)}")
        for selector in (*self.selectors, *self.names):
            if isinstance(selector, Slice):
                indices += range(width)[selector.start : selector.stop]
                continue
            try:
                indices.append(column_index(selector, width, names))
            except ValueError as error:
                raise ValueError(f"{self.text}: {error}") from None
        if not indices:
            raise ValueError(f"{self.text} selects no column: records have {width} columns")
        return tuple(indices)

    def is_within_last(self, count: int) -> bool:
        """Return True if only the last `count` columns are selected, for records of any width."""
        return bool(self.selectors) and all(_is_within_last(selector, count) for selector in self.selectors)


def _is_within_last(selector: int | Slice, count: int) -> bool:
    if isinstance(selector, Slice):
        start, stop = selector
        return start is not None and -count <= start < 0 and (stop is None or stop < 0)
    return -count <= selector < 0


def column_index(column: str | int, width: int, names: Sequence[str] | None) -> int:
    """Return the index of a column by its header name, or by its number (negative: from the end).

    Raise ValueError if there is no such column in records of `width` columns with the header `names`.
    """
    if isinstance(column, int):
        if -width <= column < width:
            return column % width
        raise ValueError(f"there is no column {column}: records have {width} columns, counted from 0")
    if names is None:
        raise ValueError(
            f'column "{column}" is selected by name, but no header was read: '
            "use column numbers or --header names"
        )
    match names.count(column):
        case 1:
            return names.index(column)
        case 0:
            raise ValueError(f'there is no column "{column}"; the columns are: {format_names(names)}')
        case _:
            raise ValueError(f'more than one column is named "{column}": use column numbers')


def format_names(names: Sequence[str]) -> str:
    """Return a short list of names for messages.

    The list is repeated for every record below a header that does not match, so it is bounded.
    """
    shortened = [shorten(name) for name in names[:NAMES_SHOWN]]
    more = f", … ({len(names)} in all)" if len(names) > NAMES_SHOWN else ""
    return ", ".join(shortened) + more


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
        match self.segments:
            case [MemberSelector(names)]:
                return ColumnSelection(self.text, names=tuple(dict.fromkeys(names)))
            case [ElementSelector(selectors)]:
                return ColumnSelection(self.text, selectors)
            case [WildcardSelector()]:
                return ColumnSelection(self.text, (Slice(None, None),))
            case _:
                return None

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
        return select_parsed(self.segments, parsed)

    def raw(self, record: bytes) -> bytes:
        """Select from a JSON text. Every number, string and key keeps its bytes.

        `record` must be JSON; it is not checked beyond the parts that the path reads.
        ``json.loads(path.raw(text))`` equals ``path.value(json.loads(text))``. Raise ValueError as
        `value` does, and for text found not to be JSON.
        """
        return select_text(self.segments, record) if self.segments else record


@lru_cache(maxsize=64)
def compile_path(text: str, *, slice_end: SliceEnd = "exclusive") -> JsonPath:
    """Compile a path of up to 63 characters.

    `slice_end` "inclusive" keeps the element at the second number of a slice, as SageMaker's
    documentation describes; RFC 9535 does not. Raise ConfigError with the character at which the
    path is not supported.
    """
    if slice_end not in {"exclusive", "inclusive"}:
        raise ConfigError(f'slice_end must be "exclusive" or "inclusive", not {slice_end!r}')
    if len(text) > PATH_CHARACTERS_MAX:
        raise ConfigError(f"JSONPath {text!r} has {len(text)} characters; the limit is {PATH_CHARACTERS_MAX}")
    return JsonPath(text, _Parser(text, slice_end).segments())


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
        if self._accept("."):
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
        if self._at_quote():
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
        if self._text.startswith(":", self._position):
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
            if self._text.startswith(token, self._position):
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
        return self._text[self._position : self._position + 1] in {"'", '"'}

    def _accept(self, token: str) -> bool:
        if not self._text.startswith(token, self._position):
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
