"""CSV as RFC 4180 has it: text in, blocks of records out, their bytes untouched.

Where the file breaks the RFC (`5" disk` unquoted, text after a closing quote) the meaning is that of Python's
`csv.reader`: a quote opens only at the start of a field, and elsewhere stands for itself. Unlike there, a lone
carriage return is data, and a quote that never closes is a failure.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from headrace.core.block import Block, Failure, FailureKind, Position
from headrace.core.errors import ConfigError
from headrace.formats.contract import BLOCK_BYTES_MAX, RECORD_BYTES_MAX, Buffer
from headrace.formats.csv_cells import Dialect
from headrace.formats.lines import (
    INSIDE,
    LITERAL,
    OPENABLE,
    NewlineScanner,
    Offsets,
    Scanner,
    Until,
    cut_text,
    newline_offsets,
)

Header = Literal["none", "drop", "names"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvFormat:
    """Records of delimiter-separated fields, ended by LF, CRLF or the end of the input.

    Quoted fields may hold delimiters, doubled quotes and newlines; with `quote` empty nothing is quoted. Blank
    lines are no records, though they count as lines. A UTF-8 byte order mark is dropped. `header`: the first
    record is data ("none"), is dropped ("drop"), or is dropped and names the columns of every block ("names");
    records are counted from the one after it.

    Failures (kind FORMAT): a record that has not ended within `record_bytes_max` bytes (the next one starts after
    the first newline from there on), and the rest of the input from a record whose quote never closes. A member
    with a NUL in its first 4096 bytes, in UTF-16, or with a header that is no record, is one failure of kind OBJECT.

    `block_bytes_max` bounds a block, unless one record is longer. Raises ConfigError for a delimiter or quote that
    is not one ASCII character.
    """

    delimiter: str = ","
    quote: str = '"'
    header: Header = "none"
    record_bytes_max: int = RECORD_BYTES_MAX
    block_bytes_max: int = BLOCK_BYTES_MAX

    def __post_init__(self) -> None:
        Dialect.of(self.delimiter, self.quote)
        if self.header not in {"none", "drop", "names"}:
            raise ConfigError(f'header must be "none", "drop" or "names", not {self.header!r}')

    def blocks(
        self, chunks: Iterable[Buffer], first: Position, until: Until | None = None
    ) -> Iterator[Block]:
        """Blocks of the records that each chunk completes; with `until`, of those that begin before it."""
        blocks = cut_text(
            chunks,
            first,
            self.scanner(),
            "CSV",
            record_bytes_max=self.record_bytes_max,
            block_bytes_max=self.block_bytes_max,
            until=until,
        )
        return blocks if self.header == "none" else self._below_header(blocks, self._dialect, until)

    @property
    def _dialect(self) -> Dialect:
        return Dialect.of(self.delimiter, self.quote)

    def scanner(self) -> Scanner:
        """What tells where a record ends."""
        return _scanner(self._dialect)

    def _below_header(
        self, blocks: Iterator[Block], dialect: Dialect, until: Until | None
    ) -> Iterator[Block]:
        head = next(blocks, None)
        if head is None:
            return
        names: tuple[str, ...] | None = None
        why = head.failures[0].why if head.failures else ""
        if self.header == "names" and not why:
            try:
                names = dialect.names(head.record(0))
            except ValueError as error:
                why = str(error)
        if why:
            yield _unreadable(head, why)
            for _ in blocks:
                pass
            return
        if len(head) > 1:
            below = replace(head.position(1), record=head.first.record)
            yield replace(head, first=below, starts=head.starts[1:], ends=head.ends[1:], column_names=names)
        for block in blocks:
            yield _renumbered(block, names)
        if until is not None and until.reached is not None:
            until.reached = replace(until.reached, record=until.reached.record - 1)


@lru_cache(maxsize=16)
def _scanner(dialect: Dialect) -> Scanner:
    """One for all texts of a dialect: it keeps nothing from one to the next."""
    return QuoteScanner(dialect) if dialect.quote else NewlineScanner()


def _unreadable(head: Block, why: str) -> Block:
    """A block that says that the header cannot be read, and so nothing below it."""
    if head.failures and head.failures[0].kind is FailureKind.OBJECT:
        return head
    raw = head.failures[0].raw if head.failures else head.failure(0, FailureKind.OBJECT, why).raw
    failure = Failure(head.first, FailureKind.OBJECT, f"header: {why}", raw)
    return Block(head.first, failures=(failure,))


def _renumbered(block: Block, names: tuple[str, ...] | None) -> Block:
    """The same records, one number less each since the header is none, and with the columns' names."""
    first = replace(block.first, record=block.first.record - 1)
    failures = tuple(
        replace(f, position=replace(f.position, record=f.position.record - 1)) for f in block.failures
    )
    return replace(block, first=first, failures=failures, column_names=names)


class QuoteScanner:
    """Every newline outside quotes ends a record.

    The quick way counts quotes: a newline with an even number of them before it is outside. That is right as long
    as every quote that would open does stand where one can, which is checked; where not, the text is walked field
    by field. Both ways agree wherever the first applies, so which one is taken never shows.
    """

    def __init__(self, dialect: Dialect) -> None:
        self.quote = dialect.quote
        self.delimiter = dialect.delimiter
        self._quote = dialect.quote[0]
        self._delimiter = dialect.delimiter[0]
        quote, delimiter = re.escape(dialect.quote), re.escape(dialect.delimiter)
        # Possessive throughout: nothing here ever goes back, so time is linear in the text.
        self._section = re.compile(b"[^%b]*+(?:%b%b[^%b]*+)*+(%b?)" % (quote, quote, quote, quote, quote))
        self._token = re.compile(b"(?<=[%b\n])%b%b|\n" % (delimiter, quote, self._section.pattern))

    def scan(self, text: bytes, state: int) -> tuple[Offsets, int]:
        """Offsets of the newlines that end a record, and the state after the text."""
        if self.quote not in text:
            if state == INSIDE:
                return np.empty(0, np.int64), INSIDE
            return newline_offsets(text), self._outside(text)
        values = np.frombuffer(text, np.uint8)
        quotes = np.flatnonzero(values == self._quote)
        if not self._countable(values, quotes, state):
            ends, after, _ = self._walk(text, state)
            return np.array(ends, np.int64), after
        inside = int(state == INSIDE)
        newlines = newline_offsets(text)
        ends = newlines[(np.searchsorted(quotes, newlines) + inside) & 1 == 0]
        if (len(quotes) + inside) & 1:
            return ends, INSIDE
        return ends, OPENABLE if int(quotes[-1]) == len(text) - 1 else self._outside(text)

    def opening(self, text: bytes) -> int:
        """Offset of the quote that is still open at the end of `text`, which starts with a record."""
        return self._walk(text, OPENABLE)[2]

    def _outside(self, text: bytes) -> int:
        """The state after text that ends outside quotes and not with a closing quote."""
        return OPENABLE if text[-1] in (self._delimiter, 0x0A) else LITERAL

    def _countable(self, values: NDArray[np.uint8], quotes: Offsets, state: int) -> bool:
        """Whether every quote that opens, by their number, stands where one can.

        By induction: up to here counting was right; so what stands before is a field's start when it is a
        delimiter or newline, and when it is a quote that one has just closed, and the two are a doubled quote.
        """
        openings = quotes[int(state == INSIDE) :: 2]
        if not len(openings):
            return True
        before = values[openings - 1]
        right = (before == self._delimiter) | (before == 0x0A) | (before == self._quote)
        if openings[0] == 0:
            right[0] = state == OPENABLE
        return bool(right.all())

    def _walk(self, text: bytes, state: int) -> tuple[list[int], int, int]:
        """Field by field: the ends, the state after, and the offset of the last quote that opened."""
        ends: list[int] = []
        at, opened = 0, -1
        if state == INSIDE or (state == OPENABLE and text.startswith(self.quote)):
            opened = 0
            section = self._section.match(text, int(state != INSIDE))
            assert section is not None, "a section may be empty, so it always matches"
            at, state = section.end(), OPENABLE if section[1] else INSIDE
        for token in self._token.finditer(text, at):
            start, at = token.span()
            if token[1] is None:
                ends.append(start)
                state = OPENABLE
            else:
                opened = start
                state = OPENABLE if token[1] else INSIDE
        # `state` is that at the end of the last token; text after it leads elsewhere.
        if state != INSIDE and at < len(text):
            state = self._outside(text)
        return ends, state, opened
