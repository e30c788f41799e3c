"""Delimited numbers to matrices: the hot loop of every numeric text format.

A block of numeric CSV with its newlines made commas is the inside of one JSON array, and a JSON parser is by far
the fastest reader of numbers there is. JSON's numbers are a strict subset of what `float` and `int` take, so a
parser that refuses says "not this way", never a wrong number: the rows that it takes have the values that
`float(cell)` gives, and the others are found by halving and read one by one.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import DTypeLike, NDArray

from headrace.core.errors import ConfigError, MissingExtraError
from headrace.formats.csv_cells import Dialect, Rows

Matrix = NDArray[Any]
FlatNumbers = Callable[[bytes, str], NDArray[Any] | None]
"""Text of a JSON array and the kind of numbers wanted, to these numbers; see `simd.FlatNumberReader`."""
DelimitedNumbers = Callable[[bytes, int, int, bytes, bytes], NDArray[np.float64] | None]
"""Delimited text, rows, width, delimiter and quote to numbers; see `arrow.delimited_numbers`."""

_PARTS: Final = 16
_ROWS_ONE_BY_ONE: Final = 8
_ROWS_FOR_THE_OTHER: Final = 64
"""The other engine takes as long to begin as a hundred rows take one by one."""
_INTEGER_ZERO_NEGATIVE: Final = re.compile(rb"(?<![eE])-0(?![0-9.eE])")
_GOES_ON: Final = np.frombuffer(b"0123456789.eE", np.uint8)
_ZEROS_ONE_BY_ONE: Final = 256
"""So many zeros are looked up in their rows; more are searched for in the whole text."""
_BOOLEANS: Final = {"0": False, "1": True, "false": False, "true": True}


def number_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """A dtype that text can become: boolean, integer or floating; ConfigError for others."""
    made = np.dtype(dtype)
    if made.kind not in "biuf":
        raise ConfigError(f"cannot decode numbers to dtype {made}: use a boolean, integer or float dtype")
    return made


def plain_flat_numbers(text: bytes, kind: str) -> NDArray[Any] | None:
    """What `simd.flat_numbers` does, without simdjson."""
    # What numpy would take for numbers too: true and false, and strings.
    if b"r" in text or b"l" in text or b'"' in text:
        return None
    try:
        values = orjson.loads(text)
        # Integers beyond 64 bits come as floats: the nearest one for "d", not exact for the others.
        if kind != "d" and not set(map(type, values)) <= {int}:
            return None
        numbers = np.array(values, {"d": np.float64, "i": np.int64, "u": np.uint64}[kind])
    except (ValueError, TypeError, OverflowError):
        return None
    return numbers if numbers.ndim == 1 else None


def fastest_flat_numbers() -> FlatNumbers:
    """The reader of simdjson where the extra `fast` is installed, else of orjson: the same numbers."""
    try:
        from headrace.formats.simd import FlatNumberReader  # noqa: PLC0415  optional: imported when it is there
    except MissingExtraError:
        return plain_flat_numbers
    return FlatNumberReader()


def arrow_delimited_numbers() -> DelimitedNumbers | None:
    """Arrow's CSV reader where the extra `arrow` is installed, else None."""
    try:
        from headrace.formats.arrow import delimited_numbers  # noqa: PLC0415  optional, and slow to import
    except MissingExtraError:
        return None
    return delimited_numbers


@dataclass(frozen=True, slots=True)
class BadCell:
    """Why one row has no numbers: its cell in `column` says `text` (None: not UTF-8) and should be `wanted`."""

    column: int
    text: str | None
    wanted: str


@dataclass(frozen=True, slots=True)
class Parsed:
    """Numbers of the rows that have them, in order, and why the others do not.

    `bad` is by row index: the offending cell, or how many cells a ragged row has.
    """

    matrix: Matrix
    bad: dict[int, BadCell | int] = field(default_factory=dict[int, BadCell | int])


class NumberParser:
    """Reads rows of delimited numbers as matrices of one dtype. Safe to share between threads.

    `flat_numbers` reads most; `delimited_numbers` is fetched when many rows are not JSON's numbers.
    """

    def __init__(
        self,
        dtype: DTypeLike,
        dialect: Dialect,
        *,
        flat_numbers: FlatNumbers | None = None,
        delimited_numbers: Callable[[], DelimitedNumbers | None] = arrow_delimited_numbers,
    ) -> None:
        self.dtype = number_dtype(dtype)
        self._dialect = dialect
        self._flat_numbers = flat_numbers or fastest_flat_numbers()
        self._fetch_delimited_numbers = delimited_numbers
        self._kind = {"f": "d", "b": "u"}.get(self.dtype.kind, "u" if self.dtype == np.uint64 else "i")
        self._wanted = {"f": "a number", "b": "true, false, 1 or 0"}.get(
            self.dtype.kind, f"an integer that {self.dtype} holds"
        )

    def parse(self, rows: Rows, width: int) -> Parsed:
        """Every row's `width` numbers, or why not."""
        if not len(rows):
            return Parsed(np.empty((0, width), self.dtype))
        matrix = self.block(rows, width)
        if matrix is not None:
            return Parsed(matrix)
        if not self._dialect.quote or self._dialect.quote not in rows.data:
            cells = _delimiter_counts(rows, self._dialect.delimiter, np.int64) + 1
            right = cells == width
            if not right.all():
                return self._without_ragged(rows, width, cells, right)
        if not _adjacent(rows):
            rows = Rows.joined(rows.texts(np.arange(len(rows))))
        return self._in_parts(rows, width)

    def block(self, rows: Rows, width: int, *, negative_zero: bool = True) -> Matrix | None:
        """All rows (at least one) at once; None when any of them is ragged or needs a closer look.

        Without `negative_zero` -0 is the integer 0, as JSON has it; -0.0 keeps its sign either way.
        """
        if not _adjacent(rows):
            return None
        text = self._as_json(rows)
        if text is None:
            return None
        numbers = self._flat_numbers(text, self._kind)
        if numbers is None or len(numbers) != len(rows) * width:
            return None
        # Sums may wrap at 256: since there are rows * width numbers in all, and no row's sum is less than its
        # remainder, all are exact if all remainders are right.
        sums = np.uint8 if width <= 256 else np.int64
        if (_delimiter_counts(rows, self._dialect.delimiter, sums) != width - 1).any():
            return None
        if negative_zero and self._kind == "d":
            numbers = self._with_negative_zeros(numbers, text, rows, width)
        matrix = self._cast(numbers)
        return None if matrix is None else matrix.reshape(len(rows), width)

    def _with_negative_zeros(
        self, numbers: NDArray[Any], text: bytes, rows: Rows, width: int
    ) -> NDArray[Any]:
        """JSON readers take -0 for the integer 0, which has lost its sign: give it back."""
        if numbers.all():
            return numbers
        zeros = np.flatnonzero(numbers == 0)
        if len(zeros) > _ZEROS_ONE_BY_ONE:
            if not _may_have_negative_zeros(text):
                return numbers
            again = self._flat_numbers(_INTEGER_ZERO_NEGATIVE.sub(b"-0.0", text), self._kind)
            assert again is not None, "the same numbers as before"
            return again
        delimiter = self._dialect.delimiter
        lost = [
            i for i in zeros.tolist() if rows.row(i // width).split(delimiter)[i % width].strip() == b"-0"
        ]
        if lost:
            numbers = numbers.copy()
            numbers[lost] = -0.0
        return numbers

    def _as_json(self, rows: Rows) -> bytes | None:
        """The rows as the inside of one array; None when something there would change its meaning."""
        text, start, stop = rows.data, int(rows.starts[0]), int(rows.ends[-1])
        if text.find(b"[", start, stop) >= 0:
            return None
        if start or len(text) - stop > 1:
            text, stop = text[start:stop], stop - start
        if self._dialect.delimiter != b",":  # replacing commas by commas is not free
            # A comma where it is no delimiter makes one number more than there should be.
            text = text.replace(self._dialect.delimiter, b",")
        # What is behind the last row is a newline at most, and is left out: that is a copy less than to cut it off before.
        return b"".join((b"[", memoryview(text.replace(b"\n", b","))[:stop], b"]"))

    def _cast(self, numbers: NDArray[Any]) -> NDArray[Any] | None:
        """To the dtype asked for; None when an integer does not fit it."""
        if self.dtype.kind == "f":
            # Too large for float32 is infinite, as `np.float32(float(text))` has it.
            with np.errstate(over="ignore"):
                return numbers.astype(self.dtype)
        low, high = (0, 1) if self.dtype.kind == "b" else _bounds(self.dtype)
        if numbers.min() < low or numbers.max() > high:
            return None
        return numbers.astype(self.dtype)

    def _without_ragged(
        self, rows: Rows, width: int, cells: NDArray[np.integer[Any]], right: NDArray[np.bool_]
    ) -> Parsed:
        """The rows with as many cells as there should be; none has quotes."""
        wrong = np.flatnonzero(~right)
        bad: dict[int, BadCell | int] = dict(zip(wrong.tolist(), cells[wrong].tolist(), strict=True))
        kept = np.flatnonzero(right)
        if not len(kept):
            return Parsed(np.empty((0, width), self.dtype), bad)
        parsed = self.parse(Rows.joined(rows.texts(kept)), width)
        bad |= {int(kept[row]): why for row, why in parsed.bad.items()}
        return Parsed(parsed.matrix, bad)

    def _in_parts(self, rows: Rows, width: int) -> Parsed:
        """Halve until the guilty rows are alone. Where most parts have some, ask the other engine first."""
        found: list[Parsed | None] = []
        edges = np.linspace(0, len(rows), min(_PARTS, len(rows)) + 1).astype(int).tolist()
        parts = [rows.slice(start, stop) for start, stop in pairwise(edges)]
        for part in parts:
            matrix = self.block(part, width)
            found.append(None if matrix is None else Parsed(matrix))
        many = found.count(None) * 2 > len(parts)
        other = self._fetch_delimited_numbers() if many and self.dtype.kind == "f" else None
        results = [
            self._closer(part, width, other) if result is None else result
            for part, result in zip(parts, found, strict=True)
        ]
        return _concatenated(results, edges)

    def _closer(self, rows: Rows, width: int, other: DelimitedNumbers | None) -> Parsed:
        """Rows of which at least one is known to be guilty."""
        if other is not None and len(rows) >= _ROWS_FOR_THE_OTHER:
            text = rows.data[int(rows.starts[0]) : int(rows.ends[-1])]
            numbers = other(text, len(rows), width, self._dialect.delimiter, self._dialect.quote)
            matrix = None if numbers is None else self._cast(numbers)
            if matrix is not None:
                return Parsed(matrix.reshape(len(rows), width))
        if len(rows) <= _ROWS_ONE_BY_ONE:
            return self._one_by_one(rows, width)
        middle = len(rows) // 2
        results: list[Parsed] = []
        for half in (rows.slice(0, middle), rows.slice(middle, len(rows))):
            matrix = self.block(half, width)
            results.append(self._closer(half, width, other) if matrix is None else Parsed(matrix))
        return _concatenated(results, [0, middle])

    def _one_by_one(self, rows: Rows, width: int) -> Parsed:
        good: list[list[Any]] = []
        bad: dict[int, BadCell | int] = {}
        for index in range(len(rows)):
            cells = self._dialect.cells(rows.row(index))
            numbers = self._row(cells) if len(cells) == width else len(cells)
            if isinstance(numbers, list):
                good.append(numbers)
            else:
                bad[index] = numbers
        with np.errstate(over="ignore"):
            return Parsed(np.array(good, self.dtype).reshape(len(good), width), bad)

    def _row(self, cells: Sequence[bytes]) -> list[Any] | BadCell:
        convert = self._convert
        numbers: list[Any] = []
        for column, cell in enumerate(cells):
            try:
                text = cell.decode()
            except UnicodeDecodeError:
                return BadCell(column, None, self._wanted)
            try:
                numbers.append(convert(text))
            except ValueError:
                return BadCell(column, text, self._wanted)
        return numbers

    def _convert(self, text: str) -> float | int | bool:
        if self.dtype.kind == "f":
            return float(text)
        if self.dtype.kind == "b":
            try:
                return _BOOLEANS[text.strip().lower()]
            except KeyError:
                raise ValueError(text) from None
        number = int(text)
        low, high = _bounds(self.dtype)
        if not low <= number <= high:
            raise ValueError(text)
        return number


def _bounds(dtype: np.dtype[Any]) -> tuple[int, int]:
    bounds = np.iinfo(dtype)
    return int(bounds.min), int(bounds.max)


def _may_have_negative_zeros(text: bytes) -> bool:
    """Whether a JSON text has ``-0`` with neither digit, point nor exponent after it; the pattern itself is slow."""
    if b"-" not in text:
        return False
    values = np.frombuffer(text, np.uint8)
    at = np.flatnonzero(values[:-2] == ord("-"))
    at = at[values[at + 1] == ord("0")]
    return not bool(np.isin(values[at + 2], _GOES_ON).all())


def _adjacent(rows: Rows) -> bool:
    """Whether one line end, LF or CRLF, is all that stands between any two rows."""
    return len(rows) < 2 or int((rows.starts[1:] - rows.ends[:-1]).max()) <= 2


def _delimiter_counts(rows: Rows, delimiter: bytes, sums: type[np.integer[Any]]) -> NDArray[np.integer[Any]]:
    """How many delimiters each row has, quoted or not; in a dtype that may wrap."""
    origin, stop = int(rows.starts[0]), int(rows.ends[-1])
    # One more than the text, for a last row that is empty.
    found = np.empty(stop - origin + 1, np.bool_)
    found[-1] = False
    np.equal(np.frombuffer(rows.data, np.uint8, stop - origin, origin), delimiter[0], out=found[:-1])
    # Each sum runs up to the next row's start: line ends in between add nothing.
    return np.add.reduceat(found.view(np.uint8), rows.starts - origin, dtype=sums)


def _concatenated(results: Sequence[Parsed], offsets: Sequence[int]) -> Parsed:
    bad: dict[int, BadCell | int] = {}
    for offset, result in zip(offsets, results, strict=False):
        bad |= {offset + row: why for row, why in result.bad.items()}
    return Parsed(np.concatenate([r.matrix for r in results]), bad)
