"""Read a JSON array as a sequence of records, its elements, without holding it in memory.

Commas that are neither inside strings nor inside nested values separate the elements. The decoder checks
that an element is JSON. Every byte is scanned once.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from headrace.core.block import RAW_BYTES_KEPT_MAX, Block, Failure, FailureKind, Position
from headrace.core.errors import TruncatedError
from headrace.formats.contract import BLOCK_BYTES_MAX, RECORD_BYTES_MAX, Buffer, Format
from headrace.formats.line import JsonFormat
from headrace.formats.lines import RECORDS_MAX

_BOM_UTF8: Final = b"\xef\xbb\xbf"
_SPACE: Final = b" \t\r\n"
_PROBE_BYTES_MAX: Final = 64 << 10
"""The limit of white space before the first significant bytes, by which a document is told from elements."""
_WINDOW_BYTES_MIN: Final = 4096
"""The number of bytes to scan next within an element that is longer than a block."""
_QUOTE: Final = ord('"')
_COMMA: Final = ord(",")
_BACKSLASH: Final = ord("\\")
_STEPS: Final = np.zeros(256, np.int8)
"""The change of the nesting depth by each byte."""
_STEPS[list(b"[{")] = 1
_STEPS[list(b"]}")] = -1
_MARKS: Final = bytes(byte in b'[]{},"' for byte in range(256))
"""The table of `bytes.translate` that marks brackets, commas and quotes with 1, all other bytes with 0."""
_IS_SPACE: Final = np.zeros(256, bool)
_IS_SPACE[list(_SPACE)] = True

Offsets = NDArray[np.int64]


class _ElementScanner:
    """A scanner for the ends of elements, from the opening bracket of the array on."""

    def __init__(self) -> None:
        self._in_string = False
        self._escapes_next = False
        self._depth = 0

    def scan(self, text: bytes) -> tuple[Offsets, bool]:
        """Return the offsets of the separators in the next part, ascending.

        If the result is True, the last of them is the bracket that closes the array.
        """
        values = np.frombuffer(text, np.uint8)
        # Far quicker than numpy's comparisons and look-ups.
        is_mark = np.frombuffer(bytearray(text).translate(_MARKS), bool)
        if self._escapes_next or b"\\" in text:
            is_mark[self._escaped(values)] = False
        marks = np.flatnonzero(is_mark)
        if not len(marks):
            return marks, False
        found = values[marks]
        is_quote = found == _QUOTE
        # Sums may wrap at 256: only their parity counts.
        inside = (np.cumsum(is_quote, dtype=np.uint8) + self._in_string) & 1 == 1
        self._in_string = bool(inside[-1])
        outside = ~(inside | is_quote)
        marks, found = marks[outside], found[outside]
        depths = np.cumsum(_STEPS[found], dtype=np.int64) + self._depth
        separators = (found == _COMMA) & (depths == 0)
        closers = np.flatnonzero(depths < 0)[:1]
        if len(closers):
            close = int(closers[0])
            return np.append(marks[:close][separators[:close]], marks[close]), True
        if len(depths):
            self._depth = int(depths[-1])
        return marks[separators], False

    def _escaped(self, values: NDArray[np.uint8]) -> Offsets:
        """Return the offsets of bytes after a backslash that is not escaped itself."""
        slashes = np.flatnonzero(values == _BACKSLASH)
        first = np.zeros(int(self._escapes_next), np.int64)
        if self._escapes_next and len(slashes) and slashes[0] == 0:
            slashes = slashes[1:]
        begins = np.flatnonzero(np.diff(slashes, prepend=-2) != 1)
        lengths = np.diff(begins, append=len(slashes))
        after = (slashes[begins] + lengths)[lengths % 2 == 1]
        self._escapes_next = bool(len(after)) and int(after[-1]) == len(values)
        return np.append(first, after[: len(after) - self._escapes_next])


class _ElementCutter:
    """A cutter of the text after the opening bracket into blocks.

    It holds no more than `record_bytes_max` bytes of an unfinished element, and one block.
    """

    def __init__(self, first: Position, record_bytes_max: int, block_bytes_max: int) -> None:
        self._scanner = _ElementScanner()
        self._record_bytes_max = record_bytes_max
        self._block_bytes_max = block_bytes_max
        self._window_bytes_min = min(_WINDOW_BYTES_MIN, block_bytes_max)
        self.position = first
        """The start of the unfinished element, with the white space before it."""
        self.closed = False
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._drops = False
        """True within an element that was too long."""
        self._has_failed_end = False

    def feed(self, chunk: Buffer) -> Iterator[Block]:
        """Yield blocks of the elements that end in this chunk, and of those that are too long."""
        view = memoryview(chunk)
        at = 0
        while at < len(view) and not self.closed:
            size = max(self._block_bytes_max - self._held_bytes, self._window_bytes_min)
            part = bytes(view[at : at + size])
            at += len(part)
            yield from self._cut(part)
        if self.closed:
            yield from self._check_end(bytes(view[at:]))

    def _cut(self, part: bytes) -> Iterator[Block]:
        ends, self.closed = self._scanner.scan(part)
        at = 0
        if self._drops:
            at = int(ends[0]) + 1 if len(ends) else len(part)
            self._advance(part[:at], 0)
            self._drops = not len(ends)
            ends = ends[1:] - at
            part = part[at:]
        if len(ends):
            held, consumed = self._held_bytes, int(ends[-1]) + 1
            text = b"".join((*self._held, part[:consumed]))
            self._held, self._held_bytes = [], 0
            yield from self._blocks(text, ends + held)
            part = part[consumed:]
        if self.closed:
            yield from self._check_end(part)
        elif part:
            self._held.append(part)
            self._held_bytes += len(part)
        if self._held_bytes > self._record_bytes_max:
            yield self._drop_long_element()

    def _blocks(self, text: bytes, ends: Offsets) -> Iterator[Block]:
        """Yield blocks of the elements of `text` that end at `ends`."""
        starts = np.append(np.zeros(1, np.int64), ends[:-1] + 1)
        trimmed, stops = _trim(text, starts, ends)
        is_last_empty = self.closed and bool(stops[-1] <= trimmed[-1])
        if is_last_empty and len(ends) == 1 and not self.position.record:
            self._advance(text, 0)
            return
        at = 0
        bad = np.flatnonzero((stops <= trimmed) | (ends - starts > self._record_bytes_max))
        for row in (*bad.tolist(), len(ends)):
            for start in range(at, row, RECORDS_MAX):
                rows = slice(start, min(start + RECORDS_MAX, row))
                yield self._block(text, int(starts[start]), trimmed[rows], stops[rows], ends[rows])
            if row < len(ends):
                yield self._failure(text[int(starts[row]) : int(ends[row]) + 1])
            at = row + 1

    def _block(self, text: bytes, begin: int, starts: Offsets, stops: Offsets, ends: Offsets) -> Block:
        self._advance(text[begin : int(starts[0])], 0)
        first = self.position
        self._advance(text[int(starts[0]) : int(ends[-1]) + 1], len(starts))
        return Block(first, text, starts, stops)

    def _failure(self, text: bytes) -> Block:
        """Return a block with an element that is empty or too long as a failure. `text` ends with its end."""
        element = text[:-1].lstrip(_SPACE)
        why = f"longer than record_bytes_max={self._record_bytes_max}" if element else "there is no value"
        self._advance(text[: len(text) - 1 - len(element)], 0)
        block = self._failed_block(element, why)
        self._advance(element + text[-1:], 1)
        return block

    def _failed_block(self, element: bytes, why: str) -> Block:
        raw = element[: min(self._record_bytes_max, RAW_BYTES_KEPT_MAX)]
        failure = Failure(self.position, FailureKind.FORMAT, why, raw)
        return Block(self.position, failures=(failure,))

    def _drop_long_element(self) -> Block:
        """Fail the unfinished element, and drop the rest of it."""
        text = b"".join(self._held)
        self._held, self._held_bytes = [], 0
        self._drops = True
        element = text.lstrip(_SPACE)
        self._advance(text[: len(text) - len(element)], 0)
        block = self._failed_block(element, f"longer than record_bytes_max={self._record_bytes_max}")
        self._advance(element, 1)
        return block

    def _check_end(self, rest: bytes) -> Iterator[Block]:
        """Yield a failure if more than white space follows the array."""
        more = rest.lstrip(_SPACE)
        self._advance(rest[: len(rest) - len(more)], 0)
        if more and not self._has_failed_end:
            self._has_failed_end = True
            why = "the array has ended, but more text follows; the rest is not read"
            yield Block(self.position, failures=(Failure(self.position, FailureKind.OBJECT, why),))

    def _advance(self, text: bytes, records: int) -> None:
        at = self.position
        lines = text.count(b"\n")
        self.position = replace(
            at, byte=at.byte + len(text), line=at.line + lines, record=at.record + records
        )


def _trim(text: bytes, starts: Offsets, ends: Offsets) -> tuple[Offsets, Offsets]:
    """Return the starts and the ends of elements without the white space around them."""
    values = np.frombuffer(text, np.uint8)
    # Most writers put no white space or one space before an element.
    starts, stops = starts + (_IS_SPACE[values[starts]] & (starts < ends)), ends.copy()
    for row in np.flatnonzero(_IS_SPACE[values[starts]] | _IS_SPACE[values[ends - 1]]).tolist():
        begin, end = int(starts[row]), int(ends[row])
        element = text[begin:end].lstrip(_SPACE)
        starts[row] = end - len(element)
        stops[row] = starts[row] + len(element.rstrip(_SPACE))
    return starts, stops


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonArrayFormat(Format):
    """A format of one JSON array whose elements are the records, as they stand in the text.

    White space around elements, and a UTF-8 byte order mark, are dropped. An element of more than
    `record_bytes_max` bytes is a failure (kind FORMAT), and so is an empty place between two commas.
    A text that is no array is one failure of kind OBJECT, and so is text after the array.

    An array that does not end costs the rest from the last comma on, as a TruncatedError.
    """

    record_bytes_max: int = RECORD_BYTES_MAX
    block_bytes_max: int = BLOCK_BYTES_MAX

    @override
    def blocks(self, chunks: Iterable[Buffer], first: Position) -> Iterator[Block]:
        source = iter(chunks)
        begin = _read_begin(source, 1)
        at = _skip_space(begin)
        opening = replace(first, byte=first.byte + at, line=first.line + begin.count(b"\n", 0, at))
        if at == len(begin):
            raise TruncatedError("a JSON array is missing: the text is empty", byte=opening.byte)
        if begin[at] != ord("["):
            why = f"not a JSON array: it begins with {chr(begin[at])!r}, not with a bracket"
            yield Block(opening, failures=(Failure(opening, FailureKind.OBJECT, why),))
            for _ in source:
                pass
            return
        cutter = _ElementCutter(
            replace(opening, byte=opening.byte + 1), self.record_bytes_max, self.block_bytes_max
        )
        for chunk in chain((begin[at + 1 :],), source):
            yield from cutter.feed(chunk)
        if not cutter.closed:
            raise TruncatedError(
                f"the JSON array does not end; its last element begins at byte {cutter.position.byte}",
                byte=cutter.position.byte,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonOrArrayFormat(Format):
    """A format of a JSON document, which is read as its elements if it is an array of objects.

    An array whose first element is an object, and an empty array, are read as by `JsonArrayFormat`. Any
    other document is one record, as by `JsonFormat`.
    """

    record_bytes_max: int = RECORD_BYTES_MAX

    @override
    def blocks(self, chunks: Iterable[Buffer], first: Position) -> Iterator[Block]:
        source = iter(chunks)
        begin = _read_begin(source, 2)
        at = _skip_space(begin)
        is_array = begin[at : at + 1] == b"[" and begin[at + 1 :].lstrip(_SPACE)[:1] in (b"{", b"]")
        chosen = JsonArrayFormat if is_array else JsonFormat
        yield from chosen(record_bytes_max=self.record_bytes_max).blocks(chain((begin,), source), first)


def _read_begin(source: Iterator[Buffer], count: int) -> bytes:
    """Return the first chunks: those up to the first `count` significant bytes."""
    begin = b""
    for chunk in source:
        begin += bytes(chunk)
        text = begin[_skip_space(begin) :]
        significant = len(text[:1]) + len(text[1:].lstrip(_SPACE)[:1])
        is_complete = significant >= count and len(begin) >= len(_BOM_UTF8)
        if is_complete or len(begin) > _PROBE_BYTES_MAX:
            break
    return begin


def _skip_space(text: bytes) -> int:
    """Return the offset of the first significant byte, after a byte order mark and white space."""
    bom = len(_BOM_UTF8) if text.startswith(_BOM_UTF8) else 0
    return len(text) - len(text[bom:].lstrip(_SPACE))
