"""Rows of numbers as matrices: the hot loop of every numeric text format.

A block of numeric CSV with commas for newlines is the content of one JSON array, and JSON parsers
are by far the fastest readers of numbers. JSON numbers are a strict subset of the numbers of cells:
ASCII text without underscores that `float` or `int` accept. So a JSON parser may reject a row, but
never returns a wrong number. Accepted rows have the values of ``float(cell)``. The other rows are
found by bisection and parsed one by one. The adapter module of simdjson (extra `fast`), which reads
them without Python objects.

A null word becomes a number that the text does not contain otherwise, and that number NaN.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import isnan, nan
from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import DTypeLike, NDArray

from headrace.core.errors import ConfigError, MissingExtraError
from headrace.formats.csv import TextRows
from headrace.formats.csv_dialect import CsvDialect, Decimal

try:
    import simdjson as _simdjson  # pyright: ignore[reportMissingImports]
except ImportError:
    _simdjson = None

simdjson: Any = _simdjson  # The library has no types.

Matrix = NDArray[Any]
FlatNumbers = Callable[[bytes, str], NDArray[Any] | None]
"""A parser of the text of a JSON array into numbers of a kind, such as `FlatNumberReader`."""
DelimitedNumbers = Callable[[bytes, int, int, CsvDialect], NDArray[np.float64] | None]
"""A parser of delimited text, such as `arrow.delimited_numbers`: text, rows, width, dialect."""

_PARTS_MAX: Final = 16
_ROWS_PARSED_SINGLY_MAX: Final = 8
_ROWS_FOR_DELIMITED_MIN: Final = 64
"""The minimum number of rows for the parser of delimited text.

Its start costs as much as a hundred rows parsed singly.
"""
_NEGATIVE_INTEGER_ZERO: Final = re.compile(rb"(?<![eE])-0(?![0-9.eE])")
_NUMBER_BYTES: Final = np.frombuffer(b"0123456789.eE", np.uint8)
_ZEROS_LOOKED_UP_MAX: Final = 256
"""The maximum number of zeros looked up in their rows; more are searched for in the whole text."""
_NULL_NUMBER: Final = b"-8765432109876543e-300"
"""The number that stands for null words in a text of numbers."""
_BOOLEANS: Final = {"0": False, "1": True, "false": False, "true": True}


def number_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """Return a dtype that text can become: boolean, integer or floating.

    Raise ConfigError for other dtypes.
    """
    number_type = np.dtype(dtype)
    if number_type.kind not in "biuf":
        raise ConfigError(
            f"cannot decode numbers to dtype {number_type}: use a boolean, integer or float dtype"
        )
    return number_type


def orjson_flat_numbers(text: bytes, kind: str) -> NDArray[Any] | None:
    """Parse numbers as `FlatNumberReader` does, without simdjson."""
    # numpy would also convert true, false and strings to numbers.
    if b"r" in text or b"l" in text or b'"' in text:
        return None
    try:
        values = orjson.loads(text)
        # orjson returns integers beyond 64 bits as floats: exact enough for "d", not for the
        # others.
        if kind != "d" and not set(map(type, values)) <= {int}:
            return None
        numbers = np.array(values, {"d": np.float64, "i": np.int64, "u": np.uint64}[kind])
    except (ValueError, TypeError, OverflowError):
        return None
    return numbers if numbers.ndim == 1 else None


_DTYPES = {"d": np.dtype(np.float64), "i": np.dtype(np.int64), "u": np.dtype(np.uint64)}


class FlatNumberReader:
    """A parser of flat JSON arrays of numbers. Safe to share between threads."""

    def __init__(self) -> None:
        # A parser keeps its memory for the next text, and serves one call at a time. Popping and
        # appending are atomic, so no two threads ever hold the same parser.
        self._idle_parsers: list[Any] = []

    def __call__(self, text: bytes, kind: str) -> NDArray[Any] | None:
        """Return the numbers of a text such as ``[1, 2.5]``.

        Return None if the text is not JSON or has other values. `kind` is "d" for any number as the
        nearest float64, "i" for integers in the range of int64, or "u" for integers in the range of
        uint64. Nested arrays are flattened silently: the caller must check for brackets.
        """
        parser: Any = self._idle_parsers.pop() if self._idle_parsers else simdjson.Parser()
        array: Any = None
        numbers: NDArray[Any] | None = None
        try:
            array = parser.parse(text)
            numbers = np.frombuffer(array.as_buffer(of_type=kind), _DTYPES[kind])
        except (ValueError, TypeError, RuntimeError):
            numbers = None
        # A parser with a live document would reject the next text.
        array = None
        self._idle_parsers.append(parser)
        return numbers


def load_flat_numbers() -> FlatNumbers:
    """Return the simdjson parser if the extra `fast` is installed, else orjson's.

    Both return the same numbers.
    """
    return orjson_flat_numbers if simdjson is None else FlatNumberReader()


def load_delimited_numbers() -> DelimitedNumbers | None:
    """Return Arrow's CSV reader if the extra `arrow` is installed, else None."""
    try:
        from headrace.formats.arrow import delimited_numbers  # noqa: PLC0415  optional, and slow to import
    except MissingExtraError:
        return None
    return delimited_numbers


@dataclass(frozen=True, slots=True)
class InvalidCell:
    """The cell for which a row has no numbers.

    It stands in `column`, contains `text` (None if not UTF-8), and should contain `expected`.
    `is_null` is true for a null word.
    """

    column: int
    text: str | None
    expected: str
    is_null: bool = False


@dataclass(frozen=True, slots=True)
class ParsedRows:
    """The numbers of the valid rows in order, and the reasons of the invalid rows.

    `invalid` maps the index of a row to its invalid cell, or to the number of cells of a ragged
    row.
    """

    matrix: Matrix
    invalid: dict[int, InvalidCell | int] = field(default_factory=dict[int, InvalidCell | int])


class NumberParser:
    """A parser of rows of delimited numbers into matrices of one dtype.

    It is safe to share between threads. `flat_numbers` parses most rows. `delimited_numbers` is
    loaded if many rows are not JSON numbers.
    """

    def __init__(
        self,
        dtype: DTypeLike,
        dialect: CsvDialect,
        *,
        flat_numbers: FlatNumbers | None = None,
        delimited_numbers: Callable[[], DelimitedNumbers | None] = load_delimited_numbers,
    ) -> None:
        self.dtype = number_dtype(dtype)
        self._dialect = dialect
        self._flat_numbers = flat_numbers or load_flat_numbers()
        self._load_delimited_numbers = delimited_numbers
        self._number_kind = {"f": "d", "b": "u"}.get(self.dtype.kind, "u" if self.dtype == np.uint64 else "i")
        self._expected = {"f": "a number", "b": "true, false, 1 or 0"}.get(
            self.dtype.kind, f"an integer that {self.dtype} holds"
        )
        self._null_words = frozenset(dialect.null_words)
        self._null_numbers = [word.encode() for word in dialect.null_words if _is_number(word)]
        self._null_cell = _compile_null_cell(dialect)
        self._null_cells = [
            b"".join((dialect.delimiter, space, word.encode(), dialect.delimiter))
            for word in dialect.null_words
            for space in (b"", b" ")
            if not dialect.needs_quotes(word.encode()) and space != dialect.delimiter
        ]

    def parse(self, rows: TextRows, width: int) -> ParsedRows:
        """Parse the `width` numbers of every row, and find the invalid rows."""
        if not len(rows):
            return ParsedRows(np.empty((0, width), self.dtype))
        matrix = self.parse_block(rows, width)
        if matrix is not None:
            return ParsedRows(matrix)
        if self._dialect.is_split_by_delimiters(rows.data):
            cells = _delimiter_counts(rows, self._dialect.delimiter, np.int64) + 1
            matching = cells == width
            if not matching.all():
                return self._parse_without_ragged(rows, width, cells, matching)
        if not _are_adjacent(rows):
            rows = TextRows.from_texts(rows.texts(np.arange(len(rows))))
        return self._parse_in_parts(rows, width)

    def parse_block(self, rows: TextRows, width: int, *, negative_zero: bool = True) -> Matrix | None:
        """Parse all rows (at least one) at once; return None if any row may be ragged or invalid.

        Without `negative_zero`, -0 is the integer 0 as in JSON. -0.0 keeps its sign in either case.
        """
        if not _are_adjacent(rows):
            return None
        numbers: NDArray[Any] | None = None
        if not any(word in rows.data for word in self._null_numbers):
            text = self._to_json_array(rows.data, int(rows.starts[0]), int(rows.ends[-1]))
            numbers = self._parse_numbers(text, rows, width, negative_zero=negative_zero)
        if numbers is None and self._null_cell is not None:
            numbers = self._parse_with_nulls(rows, width)
        matrix = None if numbers is None else self._cast_numbers(numbers)
        return None if matrix is None else matrix.reshape(len(rows), width)

    def _parse_numbers(
        self, text: bytes | None, rows: TextRows, width: int, *, negative_zero: bool
    ) -> NDArray[Any] | None:
        """Parse the JSON array `text` of the rows; return None if any row may be ragged or invalid."""
        if text is None:
            return None
        numbers = self._flat_numbers(text, self._number_kind)
        if numbers is None or len(numbers) != len(rows) * width:
            return None
        # Sums may wrap at 256. There are rows * width numbers in all, and no sum of a row is less
        # than its remainder. So all sums are exact if all remainders are right.
        sums = np.uint8 if width <= 256 else np.int64
        if (_delimiter_counts(rows, self._dialect.delimiter, sums) != width - 1).any():
            return None
        if negative_zero and self._number_kind == "d":
            return self._restore_negative_zeros(numbers, text, rows, width)
        return numbers

    def _parse_with_nulls(self, rows: TextRows, width: int) -> NDArray[Any] | None:
        """Parse all rows as `_parse_numbers` does, with NaN for null words."""
        text, nulls = self._replace_nulls(rows.data[int(rows.starts[0]) : int(rows.ends[-1])])
        # Integer parsers refuse the number that stands for a null word.
        numbers = self._parse_numbers(
            self._to_json_array(text, 0, len(text)), rows, width, negative_zero=True
        )
        if numbers is None or not nulls:
            return numbers
        is_null = numbers == float(_NULL_NUMBER)
        return np.where(is_null, np.nan, numbers) if np.count_nonzero(is_null) == nulls else None

    def _replace_nulls(self, text: bytes) -> tuple[bytes, int]:
        """Return rows with numbers for null words, and how many. Quoted null words may be left."""
        assert self._null_cell is not None, "the caller checks it"
        # Every cell has a delimiter on both sides then.
        delimiter = self._dialect.delimiter
        text = b"".join((b"\n", text, b"\n")).replace(b"\r\n", b"\n").replace(b"\n", delimiter)
        nulls = 0
        if self._null_numbers:
            # No null word may be left, because the JSON parser would read it as a number.
            text, nulls = self._null_cell.subn(delimiter + _NULL_NUMBER, text)
            return text[1:-1], nulls
        new = delimiter + _NULL_NUMBER + delimiter
        for cell in self._null_cells:
            # A match takes the delimiter that the next cell needs, so neighbours need a second pass.
            while found := text.count(cell):
                text, nulls = text.replace(cell, new), nulls + found
        return text[1:-1], nulls

    def _restore_negative_zeros(
        self, numbers: NDArray[Any], text: bytes, rows: TextRows, width: int
    ) -> NDArray[Any]:
        """Restore the sign of -0, which JSON parsers read as the integer 0."""
        if numbers.all():
            return numbers
        zeros = np.flatnonzero(numbers == 0)
        if len(zeros) > _ZEROS_LOOKED_UP_MAX:
            if not _may_contain_negative_zero(text):
                return numbers
            restored = self._flat_numbers(_NEGATIVE_INTEGER_ZERO.sub(b"-0.0", text), self._number_kind)
            assert restored is not None, "the same numbers as before"
            return restored
        delimiter = self._dialect.delimiter
        negative = [
            i for i in zeros.tolist() if rows.row(i // width).split(delimiter)[i % width].strip() == b"-0"
        ]
        if negative:
            numbers = numbers.copy()
            numbers[negative] = -0.0
        return numbers

    def _to_json_array(self, text: bytes, start: int, stop: int) -> bytes | None:
        """Return rows as one array text, or None if a character would change its meaning."""
        dialect = self._dialect
        if text.find(b"[", start, stop) >= 0:
            return None
        if dialect.escape and text.find(dialect.escape, start, stop) >= 0:
            return None
        if start or len(text) - stop > 1:
            text, stop = text[start:stop], stop - start
        if dialect.decimal == ",":
            if b"." in text:
                return None
            text = text.replace(b",", b".")
        if dialect.delimiter != b",":  # Replacing commas by commas is not free.
            # A comma that is not a delimiter adds a number, and the count of numbers detects it.
            text = text.replace(dialect.delimiter, b",")
        # Only a newline may follow the last row. The slice drops it and saves the copy of an
        # earlier cut.
        return b"".join((b"[", memoryview(text.replace(b"\n", b","))[:stop], b"]"))

    def _cast_numbers(self, numbers: NDArray[Any]) -> NDArray[Any] | None:
        """Cast to the requested dtype; return None if an integer is out of range."""
        if self.dtype.kind == "f":
            # Numbers too large for float32 become infinite, as with `np.float32(float(text))`.
            with np.errstate(over="ignore"):
                return numbers.astype(self.dtype)
        low, high = (0, 1) if self.dtype.kind == "b" else _bounds(self.dtype)
        if numbers.min() < low or numbers.max() > high:
            return None
        return numbers.astype(self.dtype)

    def _parse_without_ragged(
        self, rows: TextRows, width: int, cells: NDArray[np.integer[Any]], matching: NDArray[np.bool_]
    ) -> ParsedRows:
        """Parse the rows with the expected number of cells; no row has quotes."""
        mismatched = np.flatnonzero(~matching)
        invalid: dict[int, InvalidCell | int] = dict(
            zip(mismatched.tolist(), cells[mismatched].tolist(), strict=True)
        )
        kept = np.flatnonzero(matching)
        if not len(kept):
            return ParsedRows(np.empty((0, width), self.dtype), invalid)
        parsed = self.parse(TextRows.from_texts(rows.texts(kept)), width)
        invalid |= {int(kept[row]): error for row, error in parsed.invalid.items()}
        return ParsedRows(parsed.matrix, invalid)

    def _parse_in_parts(self, rows: TextRows, width: int) -> ParsedRows:
        """Bisect until invalid rows are isolated.

        If most parts have invalid rows, the other parser is tried first.
        """
        part_results: list[ParsedRows | None] = []
        edges = np.linspace(0, len(rows), min(_PARTS_MAX, len(rows)) + 1).astype(int).tolist()
        parts = [rows.slice(start, stop) for start, stop in pairwise(edges)]
        for part in parts:
            matrix = self.parse_block(part, width)
            part_results.append(None if matrix is None else ParsedRows(matrix))
        many_failed = part_results.count(None) * 2 > len(parts)
        # The other parser would read a null word with space around it as a number.
        may_delegate = self.dtype.kind == "f" and not self._null_numbers
        delimited_numbers = self._load_delimited_numbers() if many_failed and may_delegate else None
        results = [
            self._parse_failed_part(part, width, delimited_numbers) if result is None else result
            for part, result in zip(parts, part_results, strict=True)
        ]
        return _concatenate(results, edges)

    def _parse_failed_part(
        self, rows: TextRows, width: int, delimited_numbers: DelimitedNumbers | None
    ) -> ParsedRows:
        """Parse rows of which at least one is invalid."""
        if delimited_numbers is not None and len(rows) >= _ROWS_FOR_DELIMITED_MIN:
            text = rows.data[int(rows.starts[0]) : int(rows.ends[-1])]
            numbers = delimited_numbers(text, len(rows), width, self._dialect)
            matrix = None if numbers is None else self._cast_numbers(numbers)
            if matrix is not None:
                return ParsedRows(matrix.reshape(len(rows), width))
        if len(rows) <= _ROWS_PARSED_SINGLY_MAX:
            return self._parse_each_row(rows, width)
        middle = len(rows) // 2
        results: list[ParsedRows] = []
        for half in (rows.slice(0, middle), rows.slice(middle, len(rows))):
            matrix = self.parse_block(half, width)
            results.append(
                self._parse_failed_part(half, width, delimited_numbers)
                if matrix is None
                else ParsedRows(matrix)
            )
        return _concatenate(results, [0, middle])

    def _parse_each_row(self, rows: TextRows, width: int) -> ParsedRows:
        converted: list[list[Any]] = []
        invalid: dict[int, InvalidCell | int] = {}
        for index in range(len(rows)):
            cells = self._dialect.cells(rows.row(index))
            numbers = self._convert_row(cells) if len(cells) == width else len(cells)
            if isinstance(numbers, list):
                converted.append(numbers)
            else:
                invalid[index] = numbers
        with np.errstate(over="ignore"):
            return ParsedRows(np.array(converted, self.dtype).reshape(len(converted), width), invalid)

    def _convert_row(self, cells: Sequence[bytes]) -> list[Any] | InvalidCell:
        convert_cell = self._convert_cell
        numbers: list[Any] = []
        for column, cell in enumerate(cells):
            try:
                text = cell.decode()
            except UnicodeDecodeError:
                return InvalidCell(column, None, self._expected)
            is_null = bool(self._null_words) and text.strip() in self._null_words
            if is_null and self.dtype.kind == "f":
                numbers.append(nan)
                continue
            try:
                numbers.append(convert_cell("" if is_null else text))
            except ValueError:
                return InvalidCell(column, text, self._expected, is_null)
        return numbers

    def _convert_cell(self, text: str) -> float | int | bool:
        if self.dtype.kind == "f":
            return parse_number(text, self._dialect.decimal)
        if self.dtype.kind == "b":
            try:
                return _BOOLEANS[_checked_digits(text).strip().lower()]
            except KeyError:
                raise ValueError(text) from None
        number = int(_checked_digits(text))
        low, high = _bounds(self.dtype)
        if not low <= number <= high:
            raise ValueError(text)
        return number


def parse_number(text: str, decimal: Decimal = ".") -> float:
    """Return the number of a cell with this decimal mark. Raise ValueError for other text."""
    _checked_digits(text)
    if decimal == ".":
        return float(text)
    if "." in text:
        raise ValueError(text)
    return float(text.replace(",", "."))


def _checked_digits(text: str) -> str:
    """Return the text. Raise ValueError for digits that Python accepts and other readers of CSV do not."""
    if not text.isascii() or "_" in text:
        raise ValueError(text)
    return text


def _is_number(word: str) -> bool:
    """Return True if a parser could read a null word as a number that is not NaN."""
    try:
        return not isnan(float(word.replace(",", ".")))
    except ValueError:
        return False


def _compile_null_cell(dialect: CsvDialect) -> re.Pattern[bytes] | None:
    """Return the pattern of a plain cell that is a null word, from the delimiter before it.

    Return None if only quoted or escaped cells can be null words, or if the number that stands for them
    is not one cell.
    """
    if dialect.delimiter in _NULL_NUMBER:
        return None
    words = [word.encode() for word in sorted(dialect.null_words, key=len, reverse=True)]
    plain = [re.escape(word) for word in words if not dialect.needs_quotes(word)]
    if not plain:
        return None
    delimiter = re.escape(dialect.delimiter)
    space = b"[%b]*+" % b" \t\r".replace(dialect.delimiter, b"")
    return re.compile(b"%b%b(?:%b)%b(?=%b)" % (delimiter, space, b"|".join(plain), space, delimiter))


def _bounds(dtype: np.dtype[Any]) -> tuple[int, int]:
    bounds = np.iinfo(dtype)
    return int(bounds.min), int(bounds.max)


def _may_contain_negative_zero(text: bytes) -> bool:
    """Return True if a JSON text has ``-0`` without a digit, point or exponent after it.

    The regular expression alone would be slow.
    """
    if b"-" not in text:
        return False
    values = np.frombuffer(text, np.uint8)
    minus_offsets = np.flatnonzero(values[:-2] == ord("-"))
    minus_offsets = minus_offsets[values[minus_offsets + 1] == ord("0")]
    return not bool(np.isin(values[minus_offsets + 2], _NUMBER_BYTES).all())


def _are_adjacent(rows: TextRows) -> bool:
    """Return True if only one line end, LF or CRLF, stands between any two rows."""
    return len(rows) < 2 or int((rows.starts[1:] - rows.ends[:-1]).max()) <= 2


def _delimiter_counts(
    rows: TextRows, delimiter: bytes, sums: type[np.integer[Any]]
) -> NDArray[np.integer[Any]]:
    """Return the number of delimiters of each row, quoted or not, in a dtype that may wrap."""
    origin, stop = int(rows.starts[0]), int(rows.ends[-1])
    # One byte more than the text, for an empty last row.
    part_results = np.empty(stop - origin + 1, np.bool_)
    part_results[-1] = False
    np.equal(np.frombuffer(rows.data, np.uint8, stop - origin, origin), delimiter[0], out=part_results[:-1])
    # Each sum runs up to the start of the next row: line ends in between add nothing.
    return np.add.reduceat(part_results.view(np.uint8), rows.starts - origin, dtype=sums)


def _concatenate(results: Sequence[ParsedRows], offsets: Sequence[int]) -> ParsedRows:
    invalid: dict[int, InvalidCell | int] = {}
    for offset, result in zip(offsets, results, strict=False):
        invalid |= {offset + row: error for row, error in result.invalid.items()}
    return ParsedRows(np.concatenate([r.matrix for r in results]), invalid)
