"""Scanners for the ends of CSV records: with quotes alone, and with escapes or comments."""

import re
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from headrace.formats.csv_dialect import CsvDialect
from headrace.formats.lines import (
    INSIDE_QUOTES,
    QUOTE_MAY_OPEN,
    UNQUOTED_TEXT,
    NewlineScanner,
    Offsets,
    RecordEndScanner,
    newline_offsets,
)

_FIELD_START: Final = 3
"""At the start of a field, but not of a record."""
_AFTER_QUOTE: Final = 4
"""After a quote that closes a field, or is the first of a doubled quote."""
_ESCAPED: Final = 5
"""After an escape outside quotes."""
_ESCAPED_RETURN: Final = 6
"""After an escaped carriage return outside quotes: a newline belongs to the same line end."""
_ESCAPED_INSIDE: Final = 7
"""After an escape inside quotes."""
_COMMENT: Final = 8
"""In a comment, after its prefix."""
_PREFIX: Final = 9
"""The state after the first characters of a record is this plus their number, if they begin a comment."""


@lru_cache(maxsize=16)
def record_scanner(dialect: CsvDialect, comment: bytes = b"") -> RecordEndScanner:
    """Return the scanner of a dialect. Scanners are stateless, so all texts of a dialect share one."""
    if dialect.escape or (dialect.quote and comment):
        return StateScanner(dialect, comment)
    return QuoteScanner(dialect) if dialect.quote else NewlineScanner()


class QuoteScanner(RecordEndScanner):
    """A scanner for which every newline outside quotes ends a record.

    The fast path counts quotes: a newline with an even number of quotes before it is outside. The
    count is right as long as every opening quote stands where a quote may open, and the scanner
    checks this. Other text is walked field by field. Both paths agree wherever the first one
    applies, so the choice of path never changes the result.
    """

    def __init__(self, dialect: CsvDialect) -> None:
        self.quote = dialect.quote
        self.delimiter = dialect.delimiter
        self._quote = dialect.quote[0]
        self._delimiter = dialect.delimiter[0]
        quote, delimiter = re.escape(dialect.quote), re.escape(dialect.delimiter)
        # All quantifiers are possessive: nothing backtracks, so the time is linear in the text.
        self._section = re.compile(b"[^%b]*+(?:%b%b[^%b]*+)*+(%b?)" % (quote, quote, quote, quote, quote))
        self._token = re.compile(b"(?<=[%b\n])%b%b|\n" % (delimiter, quote, self._section.pattern))

    @override
    def scan(self, text: bytes, state: int) -> tuple[Offsets, int]:
        if self.quote not in text:
            if state == INSIDE_QUOTES:
                return np.empty(0, np.int64), INSIDE_QUOTES
            return newline_offsets(text), self._state_outside(text)
        values = np.frombuffer(text, np.uint8)
        quotes = np.flatnonzero(values == self._quote)
        if not self._can_count(values, quotes, state):
            ends, next_state, _ = self._walk_fields(text, state)
            return np.array(ends, np.int64), next_state
        starts_inside = int(state == INSIDE_QUOTES)
        newlines = newline_offsets(text)
        ends = newlines[(np.searchsorted(quotes, newlines) + starts_inside) & 1 == 0]
        if (len(quotes) + starts_inside) & 1:
            return ends, INSIDE_QUOTES
        return ends, QUOTE_MAY_OPEN if int(quotes[-1]) == len(text) - 1 else self._state_outside(text)

    @override
    def may_hold_newlines(self, text: bytes) -> bool:
        return self.quote in text

    @override
    def likely_state(self, window: bytes) -> int:
        return QUOTE_MAY_OPEN if begins_outside_quotes(window, self.quote, self.delimiter) else INSIDE_QUOTES

    @override
    def unfinished_reason(self, text: bytes, state: int) -> str:
        if state != INSIDE_QUOTES:
            return ""
        return _unclosed_reason(text, self._walk_fields(text, QUOTE_MAY_OPEN)[2])

    def _state_outside(self, text: bytes) -> int:
        """Return the state after text that ends outside quotes and not with a closing quote."""
        return QUOTE_MAY_OPEN if text[-1] in (self._delimiter, 0x0A) else UNQUOTED_TEXT

    def _can_count(self, values: NDArray[np.uint8], quotes: Offsets, state: int) -> bool:
        """Return True if every opening quote, by its number, stands where a quote may open.

        The proof is by induction. Assume that the count was right up to this quote. If the
        preceding byte is a delimiter or a newline, it ends a field. If it is a quote, that quote
        has just closed a field, and the two are a doubled quote.
        """
        openings = quotes[int(state == INSIDE_QUOTES) :: 2]
        if not len(openings):
            return True
        preceding = values[openings - 1]
        valid = (preceding == self._delimiter) | (preceding == 0x0A) | (preceding == self._quote)
        if openings[0] == 0:
            valid[0] = state == QUOTE_MAY_OPEN
        return bool(valid.all())

    def _walk_fields(self, text: bytes, state: int) -> tuple[list[int], int, int]:
        """Walk the fields.

        Return the ends, the next state, and the offset of the last opening quote.
        """
        ends: list[int] = []
        offset, last_opened = 0, -1
        if state == INSIDE_QUOTES or (state == QUOTE_MAY_OPEN and text.startswith(self.quote)):
            last_opened = 0
            section = self._section.match(text, int(state != INSIDE_QUOTES))
            assert section is not None, "a section may be empty, so it always matches"
            offset, state = section.end(), QUOTE_MAY_OPEN if section[1] else INSIDE_QUOTES
        for token in self._token.finditer(text, offset):
            start, offset = token.span()
            if token[1] is None:
                ends.append(start)
                state = QUOTE_MAY_OPEN
            else:
                last_opened = start
                state = QUOTE_MAY_OPEN if token[1] else INSIDE_QUOTES
        # `state` is the state after the last token; the text after that token may change it.
        if state != INSIDE_QUOTES and offset < len(text):
            state = self._state_outside(text)
        return ends, state, last_opened


class StateScanner(RecordEndScanner):
    """A scanner of texts with escapes or comments.

    A comment is a record that begins with the prefix `comment`; its newline ends it. Text without
    escapes and comments is scanned as without this class. Elsewhere one pattern matches whole
    records, and the parts of records at the edges of a chunk are walked state by state.
    """

    def __init__(self, dialect: CsvDialect, comment: bytes) -> None:
        self._dialect = dialect
        self._quote = dialect.quote
        self._delimiter = dialect.delimiter
        self._escape = dialect.escape
        self._comment = comment
        self._line_comment = b"\n" + comment
        self._plain = QuoteScanner(dialect) if dialect.quote else NewlineScanner()
        d, q, e = re.escape(self._delimiter), re.escape(self._quote), re.escape(self._escape)
        self._outside = re.compile(b"[%b%b\n]" % (d, e))
        self._inside = re.compile(b"[%b%b]" % (q, e)) if self._quote else re.compile(b"(?!)")
        text = b"(?:[^%b%b\n]++%b)*+" % (d, e, b"|%b(?:\r\n|.)" % e if e else b"")
        field = text
        if self._quote:
            escapes = (b"|%b." % e, b"%b?+" % e) if e else (b"", b"")
            quoted = b"%b(?:[^%b%b]++|%b%b%b)*+%b%b" % (q, q, e, q, q, escapes[0], q, escapes[1])
            field = b"(?:%b|(?!%b))%b" % (quoted, q, text)
        commented = b"%b[^\n]*+|" % re.escape(comment) if comment else b""
        self._record = re.compile(b"(?:%b%b(?:%b%b)*+)\n" % (commented, field, d, field), re.DOTALL)

    @override
    def scan(self, text: bytes, state: int) -> tuple[Offsets, int]:
        if self._is_plain(text, state):
            before = state if state in (INSIDE_QUOTES, UNQUOTED_TEXT) else QUOTE_MAY_OPEN
            ends, after = self._plain.scan(text, before)
            return ends, self._refine(text, after)
        ends_found, after, _ = self._walk(text, state)
        return np.array(ends_found, np.int64), after

    @override
    def may_hold_newlines(self, text: bytes) -> bool:
        return not self._dialect.is_split_by_delimiters(text)

    @override
    def likely_state(self, window: bytes) -> int:
        outside = not self._quote or begins_outside_quotes(window, self._quote, self._delimiter)
        return _FIELD_START if outside else INSIDE_QUOTES

    @override
    def unfinished_reason(self, text: bytes, state: int) -> str:
        if state in (INSIDE_QUOTES, _ESCAPED_INSIDE):
            return _unclosed_reason(text, self._walk(text, QUOTE_MAY_OPEN)[2])
        return "ends with an escape that escapes no character" if state in (_ESCAPED, _ESCAPED_RETURN) else ""

    def _is_plain(self, text: bytes, state: int) -> bool:
        """Return True if the text has no escape and no comment, and no character before it matters."""
        if state > _AFTER_QUOTE or (self._escape and self._escape in text):
            return False
        if not self._comment:
            return True
        if state == QUOTE_MAY_OPEN and (
            text.startswith(self._comment) or self._comment.startswith(text[: len(self._comment)])
        ):
            return False
        # A prefix of several characters may be split at the end of the text.
        last_line = text[-len(self._comment) :].rpartition(b"\n")
        may_begin = bool(last_line[1] and last_line[2]) and self._comment.startswith(last_line[2])
        return not may_begin and self._line_comment not in text

    def _refine(self, text: bytes, after: int) -> int:
        """Return the state after text that the plain scanner scanned."""
        if after == INSIDE_QUOTES:
            return INSIDE_QUOTES
        last = text[-1:]
        if last == self._quote:
            return _AFTER_QUOTE if after == QUOTE_MAY_OPEN else UNQUOTED_TEXT
        return QUOTE_MAY_OPEN if last == b"\n" else _FIELD_START if last == self._delimiter else UNQUOTED_TEXT

    def _walk(self, text: bytes, state: int) -> tuple[list[int], int, int]:
        """Return the ends, the next state, and the offset of the last opening quote."""
        ends: list[int] = []
        at, opened = 0, 0
        while at < len(text):
            if state == QUOTE_MAY_OPEN:
                while (record := self._record.match(text, at)) is not None:
                    at = record.end()
                    ends.append(at - 1)
                if at == len(text):
                    break
            before = state
            state, at = self._step(text, at, state)
            if state == INSIDE_QUOTES and before == _FIELD_START:
                opened = at - 1
            elif state == QUOTE_MAY_OPEN:
                ends.append(at - 1)
        return ends, state, opened

    def _step(self, text: bytes, at: int, state: int) -> tuple[int, int]:
        """Return the next state and the offset from which it applies."""
        if state == UNQUOTED_TEXT:
            found = self._outside.search(text, at)
            if found is None:
                return state, len(text)
            states = {b"\n": QUOTE_MAY_OPEN, self._delimiter: _FIELD_START}
            return states.get(found[0], _ESCAPED), found.end()
        if state == INSIDE_QUOTES:
            found = self._inside.search(text, at)
            if found is None:
                return state, len(text)
            return _AFTER_QUOTE if found[0] == self._quote else _ESCAPED_INSIDE, found.end()
        if state == _COMMENT:
            newline = text.find(b"\n", at)
            return (state, len(text)) if newline < 0 else (QUOTE_MAY_OPEN, newline + 1)
        if state == QUOTE_MAY_OPEN:
            return self._begin_record(text, at, 0) if self._comment else (_FIELD_START, at)
        if state >= _PREFIX:
            return self._begin_record(text, at, state - _PREFIX)
        state, consumed = self._step_byte(text[at : at + 1], state)
        return state, at + consumed

    def _step_byte(self, byte: bytes, state: int) -> tuple[int, int]:
        """Return the state that follows one that a single byte ends, and the number of consumed bytes."""
        if state == _FIELD_START:
            return (INSIDE_QUOTES, 1) if byte == self._quote else (UNQUOTED_TEXT, 0)
        if state == _AFTER_QUOTE:
            return (INSIDE_QUOTES, 1) if byte == self._quote else (UNQUOTED_TEXT, int(byte == self._escape))
        if state == _ESCAPED_INSIDE:
            return INSIDE_QUOTES, 1
        if state == _ESCAPED_RETURN:
            return UNQUOTED_TEXT, int(byte == b"\n")
        return (_ESCAPED_RETURN if byte == b"\r" else UNQUOTED_TEXT), 1

    def _begin_record(self, text: bytes, at: int, matched: int) -> tuple[int, int]:
        """Return the next step of a record of which `matched` characters begin a comment."""
        expected = self._comment[matched:]
        found = text[at : at + len(expected)]
        if found == expected:
            return _COMMENT, at + len(found)
        if expected.startswith(found):
            return _PREFIX + matched + len(found), len(text)
        return (UNQUOTED_TEXT if matched else _FIELD_START), at


def _unclosed_reason(text: bytes, opened: int) -> str:
    # The line is counted from the start of the record: a range of a text does not know its line
    # number in the object.
    line = 1 + text.count(b"\n", 0, opened)
    return f"quote opened on line {line} of the record is not closed"


def begins_outside_quotes(window: bytes, quote: bytes, delimiter: bytes) -> bool:
    """Return True if the window of a text most likely begins outside quotes.

    The likelier reading has fewer quotes in places where no quote should stand.
    """
    if quote not in window:
        return True
    values = np.frombuffer(window, np.uint8)
    quotes = np.flatnonzero(values == quote[0])
    # Any byte may precede or follow the edges of the window.
    preceding = np.concatenate(([delimiter[0]], values))[quotes]
    following = np.concatenate((values, [delimiter[0]]))[quotes + 1]
    opens = (preceding == delimiter[0]) | (preceding == 0x0A) | (preceding == quote[0])
    closes = (following == delimiter[0]) | (following == 0x0A) | (following == 0x0D) | (following == quote[0])
    wrong_outside = np.count_nonzero(~opens[0::2]) + np.count_nonzero(~closes[1::2])
    wrong_inside = np.count_nonzero(~closes[0::2]) + np.count_nonzero(~opens[1::2])
    return bool(wrong_outside <= wrong_inside)
