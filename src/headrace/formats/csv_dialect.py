"""The dialect of a CSV text: its delimiter, quote and escape, and the meaning of its cells.

Input that violates RFC 4180 (`5" disk` unquoted, text after a closing quote) has the meaning that
Python's `csv.reader` gives it: a quote opens only at the start of a field, and is an ordinary
character elsewhere. An escape makes the next character data, except directly after a closing quote,
where it is data itself. There are four differences from `csv.reader`. A lone carriage return is
data. An escaped CRLF is one escaped line end. An unclosed quote, and an escape at the end of the
input, are failures.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Literal

from headrace.core.errors import ConfigError, DataError

Decimal = Literal[".", ","]
"""The mark between the integer part and the fraction of a number."""


@dataclass(frozen=True, slots=True)
class CsvDialect:
    """The way in which a text is CSV. Characters are single ASCII bytes.

    - `delimiter`: between the fields of a record.
    - `quote`: around fields that hold delimiters, quotes or line ends; empty disables quoting.
    - `escape`: makes the next character data; empty for none.
    - `null_words`: texts of cells, without surrounding space, that mean a missing number.
    - `decimal`: the decimal mark of numbers.
    - `encoding`: the encoding of the source, for messages. Records are UTF-8 in any case.

    Raises ConfigError for other values, and for characters with two meanings.
    """

    delimiter: bytes = b","
    quote: bytes = b'"'
    escape: bytes = b""
    null_words: tuple[str, ...] = ()
    decimal: Decimal = "."
    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        characters = {"delimiter": self.delimiter, "quote": self.quote, "escape": self.escape}
        for name, value in characters.items():
            if (value or name == "delimiter") and (
                len(value) != 1 or not value.isascii() or value in b"\r\n\0"
            ):
                text = value.decode("utf-8", "replace")
                raise ConfigError(f"{name} must be one ASCII character other than a line end, not {text!r}")
        if self.decimal not in (".", ","):
            raise ConfigError(f'decimal must be "." or ",", not {self.decimal!r}')
        if self.decimal == ",":
            characters["decimal"] = b","
        for (name, value), (other_name, other) in combinations(characters.items(), 2):
            if value and value == other:
                text = value.decode()
                reason = (
                    "a doubled quote needs no escape" if other_name == "escape" and name == "quote" else ""
                )
                raise ConfigError(
                    f"{name} and {other_name} are both {text!r}: {reason or 'choose different characters'}"
                )

    @staticmethod
    def from_strings(
        delimiter: str = ",",
        quote: str = '"',
        *,
        escape: str | None = None,
        null_words: Sequence[str] = (),
        decimal: Decimal = ".",
        encoding: str = "utf-8",
    ) -> "CsvDialect":
        """Return the dialect of these characters. Raise ConfigError as the class does."""
        delimiter_byte, quote_byte, escape_byte = (
            text.encode("utf-8", "surrogatepass") for text in (delimiter, quote, escape or "")
        )
        words = tuple(dict.fromkeys(word.strip() for word in null_words))
        return CsvDialect(delimiter_byte, quote_byte, escape_byte, words, decimal, encoding)

    def is_split_by_delimiters(self, text: bytes) -> bool:
        """Return True if every delimiter in a text of records stands between two cells."""
        return not (self.quote and self.quote in text) and not (self.escape and self.escape in text)

    def cells(self, record: bytes, *, strict: bool = False) -> list[bytes]:
        """Return the fields of one record without quotes and escapes, as `csv.reader` does.

        With `strict`, raise ValueError for text after a closing quote.
        """
        if self.is_split_by_delimiters(record):
            return record.split(self.delimiter)
        cells: list[bytes] = []
        for cell in self._matches(record):
            quoted, literal, text, _ = cell.groups()
            if strict and quoted is not None and (literal or text):
                raise ValueError(f"text after the closing quote of column {len(cells)}")
            if self.escape:
                text = _unescape(text, self.escape, b"")
            if quoted is not None:
                text = _unescape(quoted, self.escape, self.quote) + literal + text
            cells.append(text)
        return cells

    def raw_cells(self, record: bytes) -> list[bytes]:
        """Return the fields of one record with their quotes and escapes, unchanged."""
        if self.is_split_by_delimiters(record):
            return record.split(self.delimiter)
        return [record[cell.start() : cell.start(4)] for cell in self._matches(record)]

    def delimiter_offsets(self, record: bytes) -> list[int]:
        """Return the offsets of the delimiters between the cells of one record."""
        return [cell.start(4) for cell in self._matches(record)][:-1]

    def _matches(self, record: bytes) -> Iterator[re.Match[bytes]]:
        """Yield the matches of the cell pattern, one for each cell."""
        match = _compile_cell_pattern(self.delimiter, self.quote, self.escape).match
        at = 0
        while True:
            cell = match(record, at)
            assert cell is not None, "every part of the pattern may be empty"
            yield cell
            if not cell[4]:
                return
            at = cell.end()

    def header_names(self, record: bytes) -> tuple[str, ...]:
        """Return the cells of a header as text. Raise ValueError if not strict CSV or not UTF-8."""
        return tuple(cell.decode() for cell in self.cells(record, strict=True))

    @property
    def empty_cell(self) -> bytes:
        """The text of a record of one empty cell, as an empty line is no record."""
        return self.quote * 2

    def needs_quotes(self, text: bytes) -> bool:
        """Return True if a cell with this text must be quoted or escaped."""
        return _compile_special(self.delimiter, self.quote, self.escape).search(text) is not None

    def encode_record(self, cells: Sequence[bytes]) -> bytes:
        """Return a record of these cells, quoted where necessary, or escaped without a quote.

        Raise DataError for a cell that needs a quote or an escape if the dialect has neither, and for a
        final carriage return that no quote separates from the line end.
        """
        if not self.quote and cells and cells[-1].endswith(b"\r"):
            raise DataError(
                "a text ends with a carriage return, but cells have no quote: choose the output format jsonl"
            )
        special = _compile_special(self.delimiter, self.quote, self.escape)
        return self.delimiter.join(
            self._encode_cell(cell, special) if special.search(cell) else cell for cell in cells
        )

    def _encode_cell(self, cell: bytes, special: re.Pattern[bytes]) -> bytes:
        if self.quote:
            quote, escape = self.quote, self.escape
            text = cell.replace(escape, escape * 2) if escape else cell
            return quote + text.replace(quote, quote * 2) + quote
        if self.escape:
            return special.sub(lambda found: self.escape + found[0], cell)
        text = cell.decode("utf-8", "replace")
        raise DataError(
            f"the text {text[:40]!r} contains a delimiter or a line end, but cells have neither a quote nor "
            "an escape: choose the output format jsonl, or a quote"
        )


@lru_cache(maxsize=16)
def _compile_cell_pattern(delimiter: bytes, quote: bytes, escape: bytes) -> re.Pattern[bytes]:
    """Return the pattern of one cell.

    The groups are a quoted part or None, an escape that is data after it, the unquoted text, and the
    delimiter, which may be empty. All quantifiers are possessive, so nothing backtracks.
    """
    d, q, e = re.escape(delimiter), re.escape(quote), re.escape(escape)
    escaped = b"|%b.?" % e if escape else b""
    literal = b"(%b?+)" % e if escape else b"()"
    quoted = (
        b"%b((?:[^%b%b]++|%b%b%b)*+)%b?+%b" % (q, q, e, q, q, escaped, q, literal) if quote else b"(?!)()()"
    )
    return re.compile(b"(?:%b)?+((?:[^%b%b]++%b)*+)(%b?)" % (quoted, d, e, escaped, d), re.DOTALL)


@lru_cache(maxsize=16)
def _compile_special(delimiter: bytes, quote: bytes, escape: bytes) -> re.Pattern[bytes]:
    """Return the pattern of the characters that need a quote or an escape."""
    return re.compile(b"[%b\r\n]" % re.escape(delimiter + quote + escape))


def _unescape(text: bytes, escape: bytes, quote: bytes) -> bytes:
    """Return a text without its escapes, and with its doubled quotes as single ones."""
    if not escape or escape not in text:
        return text.replace(quote * 2, quote) if quote else text
    return _compile_escaped(escape, quote).sub(lambda found: found[2] or found[1] or b"\n", text)


@lru_cache(maxsize=16)
def _compile_escaped(escape: bytes, quote: bytes) -> re.Pattern[bytes]:
    """Return the pattern of an escape with the character that it makes data, or of a doubled quote."""
    doubled = b"%b(%b)" % (re.escape(quote), re.escape(quote)) if quote else b"(?!)()"
    return re.compile(b"%b(.?)|%b" % (re.escape(escape), doubled), re.DOTALL)
