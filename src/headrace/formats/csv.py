"""CSV according to RFC 4180: text becomes blocks of records with unchanged bytes.

Input that violates the RFC (`5" disk` unquoted, text after a closing quote) has the meaning that
Python's `csv.reader` gives it: a quote opens only at the start of a field, and is an ordinary
character elsewhere. There are two differences from `csv.reader`. A lone carriage return is data,
and an unclosed quote is a failure.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from headrace.core.block import Block, Failure, FailureKind, Position
from headrace.core.errors import ConfigError
from headrace.formats.contract import BLOCK_BYTES_MAX, RECORD_BYTES_MAX, Buffer, Format
from headrace.formats.csv_cells import CsvDialect
from headrace.formats.lines import (
    INSIDE_QUOTES,
    QUOTE_MAY_OPEN,
    UNQUOTED_TEXT,
    NewlineScanner,
    Offsets,
    RangeStop,
    RecordEndScanner,
    cut_text,
    newline_offsets,
)

Header = Literal["none", "drop", "names"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvFormat(Format):
    """Records of delimiter-separated fields, ended by LF, CRLF or the end of the input.

    Quoted fields may hold delimiters, doubled quotes and newlines. An empty `quote` disables
    quoting. Blank lines are not records, but count as lines. A UTF-8 byte order mark is dropped.

    `header` says how the first record is used: "none" (it is data), "drop" (it is dropped), or
    "names" (it is dropped and names the columns of every block). Record numbers start after the
    header.

    Failures of kind FORMAT are a record that has not ended within `record_bytes_max` bytes, and the
    rest of the input from a record with an unclosed quote. After a record that is too long, the
    next record starts after the first newline beyond the limit. A member is one failure of kind
    OBJECT if its first 4096 bytes contain a NUL, if it is UTF-16, or if its header is not a valid
    record.

    `block_bytes_max` bounds the size of a block; a single longer record has a block of its own.
    Raises ConfigError if the delimiter or the quote is not one ASCII character.
    """

    delimiter: str = ","
    quote: str = '"'
    header: Header = "none"
    record_bytes_max: int = RECORD_BYTES_MAX
    block_bytes_max: int = BLOCK_BYTES_MAX

    def __post_init__(self) -> None:
        CsvDialect.from_strings(self.delimiter, self.quote)
        if self.header not in {"none", "drop", "names"}:
            raise ConfigError(f'header must be "none", "drop" or "names", not {self.header!r}')

    @override
    def blocks(
        self, chunks: Iterable[Buffer], first: Position, range_stop: RangeStop | None = None
    ) -> Iterator[Block]:
        """With `range_stop`, yield only the records that begin before its byte."""
        blocks = cut_text(
            chunks,
            first,
            self.scanner(),
            "CSV",
            record_bytes_max=self.record_bytes_max,
            block_bytes_max=self.block_bytes_max,
            range_stop=range_stop,
        )
        return blocks if self.header == "none" else self._skip_header(blocks, self._dialect, range_stop)

    @property
    def _dialect(self) -> CsvDialect:
        return CsvDialect.from_strings(self.delimiter, self.quote)

    def scanner(self) -> RecordEndScanner:
        """Return the scanner that finds the ends of the records."""
        return _scanner(self._dialect)

    def _skip_header(
        self, blocks: Iterator[Block], dialect: CsvDialect, range_stop: RangeStop | None
    ) -> Iterator[Block]:
        header_block = next(blocks, None)
        if header_block is None:
            return
        names: tuple[str, ...] | None = None
        reason = header_block.failures[0].why if header_block.failures else ""
        if self.header == "names" and not reason:
            try:
                names = dialect.header_names(header_block.record(0))
            except ValueError as error:
                reason = str(error)
        if reason:
            yield _unreadable_header(header_block, reason)
            for _ in blocks:
                pass
            return
        if len(header_block) > 1:
            first_data = replace(header_block.position(1), record=header_block.first.record)
            yield replace(
                header_block,
                first=first_data,
                starts=header_block.starts[1:],
                ends=header_block.ends[1:],
                column_names=names,
            )
        for block in blocks:
            yield _renumber(block, names)
        if range_stop is not None and range_stop.next_position is not None:
            range_stop.next_position = replace(
                range_stop.next_position, record=range_stop.next_position.record - 1
            )


@lru_cache(maxsize=16)
def _scanner(dialect: CsvDialect) -> RecordEndScanner:
    """Return the scanner of a dialect. Scanners are stateless, so all texts of a dialect share one."""
    return QuoteScanner(dialect) if dialect.quote else NewlineScanner()


def _unreadable_header(header_block: Block, reason: str) -> Block:
    """Return a block that reports the unreadable header, and with it all records below."""
    if header_block.failures and header_block.failures[0].kind is FailureKind.OBJECT:
        return header_block
    raw = (
        header_block.failures[0].raw
        if header_block.failures
        else header_block.failure(0, FailureKind.OBJECT, reason).raw
    )
    failure = Failure(header_block.first, FailureKind.OBJECT, f"header: {reason}", raw)
    return Block(header_block.first, failures=(failure,))


def _renumber(block: Block, names: tuple[str, ...] | None) -> Block:
    """Return the block with record numbers that do not count the header, and with the column names."""
    first = replace(block.first, record=block.first.record - 1)
    failures = tuple(
        replace(f, position=replace(f.position, record=f.position.record - 1)) for f in block.failures
    )
    return replace(block, first=first, failures=failures, column_names=names)


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
    def open_quote_offset(self, text: bytes) -> int:
        return self._walk_fields(text, QUOTE_MAY_OPEN)[2]

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
