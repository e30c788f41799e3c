"""Text cut into records at line ends, for CSV, JSON Lines and text lines.

The records do not depend on the chunks. A `RecordEndScanner` finds the ends of the records (every
newline, or every newline outside quotes). This module does the rest. It holds the unfinished record
between chunks and bounds its length. It handles blank lines, comments, CRLF, byte order marks and
positions, and rejects input that is not text.

Every byte is scanned about once. A scan carries its state over the edge of a chunk, so a long
record in small chunks costs no more than the same record in one chunk.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from headrace.core.block import RAW_BYTES_KEPT_MAX, Block, Failure, FailureKind, Position
from headrace.core.errors import ConfigError, CorruptError
from headrace.formats.contract import Buffer

Offsets = NDArray[np.int64]

QUOTE_MAY_OPEN: Final = 0
"""Outside quotes where a quote may open: at the start of a field, or just after a closing quote."""
UNQUOTED_TEXT: Final = 1
"""Outside quotes within the text of a field: a quote is an ordinary character."""
INSIDE_QUOTES: Final = 2
"""Inside quotes: newlines are data."""

RECORDS_MAX: Final = 1 << 16
"""The maximum number of records in a block."""

PROBE_BYTES: Final = 4096
"""The number of first bytes that decide if a member is text; fixed, so chunk edges have no effect."""

_BOM_UTF8: Final = b"\xef\xbb\xbf"
_BOMS: Final = {
    b"\xff\xfe\0\0": "utf-32",
    b"\0\0\xfe\xff": "utf-32",
    b"\xff\xfe": "utf-16",
    b"\xfe\xff": "utf-16",
}
"""Encodings by their byte order mark; a longer mark precedes its own beginning."""
_NEWLINE: Final = 0x0A
_CARRIAGE_RETURN: Final = 0x0D
_WINDOW_BYTES_MIN: Final = 4096


@dataclass(slots=True)
class RangeStop:
    """The byte before which records must begin to be cut; None cuts all records.

    When the cutting ends, `next_position` is set to the start of the next record, or to the end of
    the text.
    """

    byte: int | None = None
    next_position: Position | None = None


class RecordEndScanner(Protocol):
    """A scanner that finds the newlines that end a record."""

    def scan(self, text: bytes, state: int) -> tuple[Offsets, int]:
        """Return the offsets of the newlines in `text` that end a record, and the state after it.

        `state` is the state before the first byte: QUOTE_MAY_OPEN at the start of a record, else
        the result of the previous scan. `text` is never empty.
        """
        ...

    def may_hold_newlines(self, text: bytes) -> bool:
        """Return True if a record in `text` may hold a newline as data."""
        ...

    def likely_state(self, window: bytes) -> int:
        """Return the most likely state before `window`, which begins anywhere in a text."""
        ...

    def unfinished_reason(self, text: bytes, state: int) -> str:
        """Return why the record `text`, with `state` after it, is unfinished at the end of the input.

        An empty string means that the end of the input may end the record.
        """
        ...


class NewlineScanner(RecordEndScanner):
    """A scanner for which every newline ends a record."""

    @override
    def scan(self, text: bytes, state: int) -> tuple[Offsets, int]:
        return newline_offsets(text), state

    @override
    def may_hold_newlines(self, text: bytes) -> bool:
        return False

    @override
    def likely_state(self, window: bytes) -> int:
        return QUOTE_MAY_OPEN

    @override
    def unfinished_reason(self, text: bytes, state: int) -> str:
        return ""


def newline_offsets(text: bytes) -> Offsets:
    """Return the offsets of all newlines, ascending."""
    return np.flatnonzero(np.frombuffer(text, np.uint8) == _NEWLINE)


class RecordCutter:
    """A cutter of the text of one member into blocks. Feed it chunks, then call `finish`.

    It holds no more than `record_bytes_max` bytes of an unfinished record, and one block.
    `next_position` is the start of the unfinished record, or of the next one; after `finish`, the end
    of the text. `done` is true once a record begins at `stop_byte` or beyond.

    The first `skip_lines` lines are dropped. A record that begins with `comment` is dropped, but
    counts as a line; empty means no comments. With `cuts_first_record`, the first record is cut even
    if it begins beyond `stop_byte`.
    """

    def __init__(
        self,
        scanner: RecordEndScanner,
        first: Position,
        *,
        record_bytes_max: int,
        block_bytes_max: int,
        stop_byte: int | None = None,
        comment: bytes = b"",
        skip_lines: int = 0,
        cuts_first_record: bool = False,
    ) -> None:
        if record_bytes_max < 1 or block_bytes_max < 1:
            raise ConfigError(
                "record_bytes_max and block_bytes_max must be at least 1, "
                f"not {record_bytes_max} and {block_bytes_max}"
            )
        self._scanner = scanner
        self._record_bytes_max = record_bytes_max
        self._block_bytes_max = block_bytes_max
        self._window_bytes = block_bytes_max
        self.next_position = first
        self._held_parts: list[bytes] = []
        self._held_bytes = 0
        self._state = QUOTE_MAY_OPEN
        self._comment = comment
        self._lines_to_skip = skip_lines
        self._needs_record = cuts_first_record
        self._stop_byte = stop_byte
        self.done = False
        self._update_done()

    def feed(self, chunk: Buffer) -> Iterator[Block]:
        """Yield blocks of the records that end in this chunk, and of the records that are too long."""
        view = memoryview(chunk)
        at = 0
        while at < len(view) and not self.done:
            stop = at + self._window(len(view) - at)
            is_whole = at == 0 and stop >= len(view) and isinstance(chunk, bytes)
            part = chunk if is_whole and isinstance(chunk, bytes) else bytes(view[at:stop])
            consumed, block = self._skip_lines(part) if self._lines_to_skip else self._cut_records(part)
            at += consumed
            if block is not None:
                yield block

    def finish(self) -> Iterator[Block]:
        """Yield the last record if the end of the input ends it instead of a newline."""
        if not self._held_parts or self.done:
            return
        text = b"".join(self._held_parts)
        reason = self._scanner.unfinished_reason(text, self._state)
        if reason:
            yield self._fail_record(text, reason)
            return
        # A newline is appended, so that the end of the input and a line end share one code path.
        block = self._make_block(text + b"\n", np.array([len(text)], np.int64))
        self.next_position = replace(self.next_position, byte=self.next_position.byte - 1)
        if block is not None:
            yield replace(block, data=block.data[:-1])

    def _update_done(self) -> None:
        self.done = (
            self._stop_byte is not None
            and not self._lines_to_skip
            and not self._needs_record
            and self.next_position.byte >= self._stop_byte
        )

    def _window(self, remaining: int) -> int:
        """Return the number of the `remaining` bytes to scan next.

        The held bytes and the scanned part together are one block at the most.
        """
        space = self._block_bytes_max - self._held_bytes
        space = min(self._window_bytes, space) if space > 0 else self._window_bytes
        # Parts of even size: otherwise a chunk a little larger than a block would leave a block of
        # a record or two.
        parts = -(-remaining // space)
        return -(-remaining // parts)

    def _skip_lines(self, part: bytes) -> tuple[int, Block | None]:
        """Skip first lines, or the rest of a record that was too long."""
        consumed = lines = 0
        while lines < self._lines_to_skip and (newline := part.find(b"\n", consumed)) >= 0:
            consumed = newline + 1
            lines += 1
        self._lines_to_skip -= lines
        if self._lines_to_skip:
            consumed = len(part)
        position = self.next_position
        self.next_position = replace(position, byte=position.byte + consumed, line=position.line + lines)
        self._update_done()
        return consumed, None

    def _cut_records(self, part: bytes) -> tuple[int, Block | None]:
        """Cut the records that end in this part. Return the number of consumed bytes and the block."""
        held = self._held_bytes
        ends, state = self._scanner.scan(part, self._state)
        if not len(ends):
            if held + len(part) > self._record_bytes_max:
                return self._drop_long_record(part)
            self._hold_part(part, state)
            return len(part), None
        scanned = len(ends)
        # If all records fail, each becomes an object of its own.
        ends = ends[:RECORDS_MAX]
        if held + len(part) > self._block_bytes_max:
            # A record longer than a block has a block of its own.
            fitting = int(np.searchsorted(ends, self._block_bytes_max - held, "right"))
            ends = ends[: max(fitting, 1)]
        if held + len(part) > self._record_bytes_max:
            ends = ends[: self._first_too_long(ends)]
            if not len(ends):
                return self._drop_long_record(part)
        if self._stop_byte is not None:
            ends = ends[: self._count_before_stop(ends, self._stop_byte)]
        self._window_bytes = min(self._window_bytes * 2, self._block_bytes_max)
        consumed = int(ends[-1]) + 1
        text = b"".join((*self._held_parts, memoryview(part)[:consumed])) if held else part
        block = self._make_block(text, ends + held if held else ends)
        self._needs_record = self._needs_record and block is None
        self._update_done()
        if len(ends) == scanned and len(part) - consumed <= self._record_bytes_max and not self.done:
            # The rest was scanned already and ends no record.
            self._hold_part(part[consumed:], state)
            consumed = len(part)
        return consumed, block

    def _count_before_stop(self, ends: Offsets, stop_byte: int) -> int:
        """Return the number of records that begin before the stop, but at least one."""
        begin = self.next_position.byte + self._held_bytes
        return int(np.searchsorted(ends, stop_byte - begin - 1)) + 1

    def _hold_part(self, part: bytes, state: int) -> None:
        """Hold a part of the unfinished record; `state` is the state of the scanner after the part."""
        if part:
            self._held_parts.append(part)
            self._held_bytes += len(part)
        self._state = state

    def _first_too_long(self, ends: Offsets) -> int:
        """Return the number of records before the first record that is too long."""
        lengths = np.diff(ends, prepend=-1) - 1
        lengths[0] += self._held_bytes
        too_long = np.flatnonzero(lengths > self._record_bytes_max)
        return int(too_long[0]) if len(too_long) else len(ends)

    def _drop_long_record(self, part: bytes) -> tuple[int, Block | None]:
        """Drop the unfinished record: skip from its `record_bytes_max`-th byte on."""
        consumed = self._record_bytes_max - self._held_bytes
        text = b"".join((*self._held_parts, part[:consumed]))
        self._lines_to_skip = 1
        # The text after this record is scanned again, with the quotes counted anew. The window
        # stays small until records end again, so that many long records do not take quadratic time.
        self._window_bytes = min(_WINDOW_BYTES_MIN, self._block_bytes_max)
        if self._comment and text.startswith(self._comment):
            self._advance(len(text), 0, 0)
            return consumed, None
        self._needs_record = False
        return consumed, self._fail_record(text, f"longer than record_bytes_max={self._record_bytes_max}")

    def _fail_record(self, text: bytes, why: str) -> Block:
        """Return a block with the unfinished record as a failure; `text` is its text so far."""
        first = self.next_position
        self._advance(len(text), text.count(b"\n"), 1)
        return Block(first, failures=(Failure(first, FailureKind.FORMAT, why, text[:RAW_BYTES_KEPT_MAX]),))

    def _make_block(self, text: bytes, ends: Offsets) -> Block | None:
        """Return a block of the records of `text` that end at `ends`, or None if it has no records."""
        starts = np.empty_like(ends)
        starts[0] = 0
        starts[1:] = ends[:-1] + 1
        stops = ends
        # The byte before the end of a blank line belongs to another line. The line stays blank for
        # any value of that byte.
        ends_with_return = np.frombuffer(text, np.uint8)[ends - 1] == _CARRIAGE_RETURN
        has_returns = bool(ends_with_return.any())
        if has_returns:
            stops = ends - ends_with_return
        if self._comment:
            text, stops = blank_comments(text, starts, stops, self._comment)
        consumed = int(ends[-1]) + 1
        not_blank = stops > starts
        has_blanks = not not_blank.all()
        if has_blanks:
            starts, stops = starts[not_blank], stops[not_blank]
        lines = text.count(b"\n", 0, consumed) if self._scanner.may_hold_newlines(text) else len(ends)
        line_end = b""
        if not has_blanks and lines == len(ends):
            only_returns = has_returns and bool((stops < ends).all())
            line_end = b"\r\n" if only_returns else b"" if has_returns else b"\n"
        first = self.next_position
        self._advance(consumed, lines, len(starts))
        if not len(starts):
            return None
        blank = int(starts[0])
        if blank:
            first = replace(first, byte=first.byte + blank, line=first.line + text.count(b"\n", 0, blank))
        return Block(first, text, starts, stops, line_end=line_end)

    def _advance(self, consumed: int, lines: int, records: int) -> None:
        position = self.next_position
        self.next_position = replace(
            position,
            byte=position.byte + consumed,
            line=position.line + lines,
            record=position.record + records,
        )
        self._held_parts = []
        self._held_bytes = 0
        self._state = QUOTE_MAY_OPEN


def blank_comments(text: bytes, starts: Offsets, stops: Offsets, comment: bytes) -> tuple[bytes, Offsets]:
    """Return the text with NULs for the rows that begin with `comment`, and stops that make them empty.

    NULs are neither delimiters nor quotes, so decoders need not know that a comment was there.
    """
    candidates = np.flatnonzero((np.frombuffer(text, np.uint8)[starts] == comment[0]) & (stops > starts))
    rows = [row for row in candidates.tolist() if text.startswith(comment, int(starts[row]))]
    if not rows:
        return text, stops
    blanked = bytearray(text)
    for start, stop in zip(starts[rows].tolist(), stops[rows].tolist(), strict=True):
        blanked[start:stop] = bytes(stop - start)
    stops = stops.copy()
    stops[rows] = starts[rows]
    return bytes(blanked), stops


def cut_text(
    chunks: Iterable[Buffer],
    first: Position,
    scanner: RecordEndScanner,
    format_name: str,
    *,
    record_bytes_max: int,
    block_bytes_max: int,
    range_stop: RangeStop | None = None,
    comment: bytes = b"",
    skip_lines: int = 0,
    cuts_first_record: bool = False,
) -> Iterator[Block]:
    """Yield blocks of the records of one member, or of those that begin before `range_stop`.

    `format_name` names the format in messages. The first PROBE_BYTES bytes decide whether the
    member is text. A member that is not text is one failure of kind OBJECT, and the rest of it is
    read and discarded. A UTF-8 byte order mark is dropped, but offsets count it. If the chunks end
    with a `CorruptError`, the whole records before it are yielded first. `comment`, `skip_lines` and
    `cuts_first_record` are those of `RecordCutter`.
    """
    source = iter(chunks)
    probe_chunks, error = _read_probe(source)
    probe = b"".join(bytes(memoryview(part)[:PROBE_BYTES]) for part in probe_chunks)[:PROBE_BYTES]
    reason = _non_text_reason(probe)
    if reason:
        why = f"not {format_name} text: {reason}"
        yield Block(first, failures=(Failure(first, FailureKind.OBJECT, why, probe),))
        if error is not None:
            raise error
        if range_stop is None or range_stop.byte is None:
            _drain(source)
        return
    if probe.startswith(_BOM_UTF8):
        probe_chunks = [memoryview(b"".join(probe_chunks))[len(_BOM_UTF8) :]]
        first = replace(first, byte=first.byte + len(_BOM_UTF8))
    range_stop = range_stop or RangeStop()
    cutter = RecordCutter(
        scanner,
        first,
        record_bytes_max=record_bytes_max,
        block_bytes_max=block_bytes_max,
        stop_byte=range_stop.byte,
        comment=comment,
        skip_lines=skip_lines,
        cuts_first_record=cuts_first_record,
    )
    for part in probe_chunks:
        yield from cutter.feed(part)
    if error is not None:
        raise error
    yield from cut_remaining(cutter, source, range_stop)


def cut_remaining(cutter: RecordCutter, chunks: Iterable[Buffer], range_stop: RangeStop) -> Iterator[Block]:
    """Yield blocks of all remaining chunks, reading no further than the cutter needs."""
    if not cutter.done:
        for chunk in chunks:
            yield from cutter.feed(chunk)
            if cutter.done:
                break
    yield from cutter.finish()
    range_stop.next_position = cutter.next_position


def _read_probe(source: Iterator[Buffer]) -> tuple[list[Buffer], CorruptError | None]:
    """Return the first chunks, and the error that ended them early, if any.

    The chunks have at least PROBE_BYTES bytes in total if the input does. Only the last chunk may
    be a memoryview: it stays valid because no chunk is requested after it.
    """
    probe_chunks: list[Buffer] = []
    size = 0
    try:
        for chunk in source:
            size += len(chunk)
            if size >= PROBE_BYTES:
                probe_chunks.append(chunk)
                break
            probe_chunks.append(bytes(chunk))
    except CorruptError as error:
        return probe_chunks, error
    return probe_chunks, None


def _drain(source: Iterator[Buffer]) -> None:
    """Read and discard the rest: the next archive member begins where this member ends."""
    for _ in source:
        pass


def _non_text_reason(probe: bytes) -> str:
    """Return why the first bytes of a member are not text, or an empty string if they may be text."""
    encoding = next((name for mark, name in _BOMS.items() if probe.startswith(mark)), "")
    if encoding:
        return f"it starts with the byte order mark of {encoding.upper()}; read it with --encoding {encoding}"
    nul = probe.find(b"\0")
    if nul < 0:
        return ""
    return f"NUL byte at offset {nul}; use --members to select the archive members that are text"
