"""Text cut into records at line ends, whatever the chunks: what CSV, JSON Lines and text lines share.

Chunks arrive, blocks leave. What ends a record is a `Scanner`'s business (every newline; or every newline outside
quotes); everything else is here, once: the unfinished record between chunks, the bound on its length, blank lines,
CRLF, byte order marks, positions, and the refusal of what is not text.

Every byte is scanned about once: a scan carries its state over a chunk's edge, so a long record that comes in
small chunks costs no more than one that comes at once.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.core.block import RAW_BYTES_KEPT_MAX, Block, Failure, FailureKind, Position
from headrace.core.errors import ConfigError, CorruptError
from headrace.formats.contract import Buffer

Offsets = NDArray[np.int64]

OPENABLE: Final = 0
"""Outside quotes, where a quote opens: at the start of a field, or just after a closing quote (a doubled one)."""
LITERAL: Final = 1
"""Outside quotes, inside a field's text: a quote is a character like any other."""
INSIDE: Final = 2
"""Inside quotes: newlines are data."""

RECORDS_MAX: Final = 1 << 16
"""In one block."""

PROBE_BYTES: Final = 4096
"""How much of a member's start decides whether it is text; a fixed number, so chunk edges cannot matter."""

_BOM_UTF8: Final = b"\xef\xbb\xbf"
_BOMS_UTF16: Final = (b"\xff\xfe", b"\xfe\xff")
_NEWLINE: Final = 0x0A
_RETURN: Final = 0x0D
_WINDOW_BYTES_MIN: Final = 4096


@dataclass(slots=True)
class Until:
    """Where cutting ends before the text does: only records that begin before `byte` are taken (None: all of them).

    `reached` is told when the last of them was: where the next record, or the end of the text, begins.
    """

    byte: int | None = None
    reached: Position | None = None


class Scanner(Protocol):
    """Says which newlines end a record."""

    @property
    def quote(self) -> bytes:
        """The byte between which newlines are data; empty when nothing quotes."""
        ...

    def scan(self, text: bytes, state: int) -> tuple[Offsets, int]:
        """Offsets of the newlines in `text` that end a record, and the state after its last byte.

        `state` is the one before its first byte: OPENABLE at the start of a record, else what the last scan gave.
        `text` is never empty.
        """
        ...

    def opening(self, text: bytes) -> int:
        """Offset of the quote that is still open at the end of `text`, which starts with a record."""
        ...


class NewlineScanner:
    """Every newline ends a record."""

    quote = b""

    def scan(self, text: bytes, state: int) -> tuple[Offsets, int]:
        """All newlines; the state never changes."""
        return newline_offsets(text), state

    def opening(self, text: bytes) -> int:
        """Nothing ever opens."""
        raise NotImplementedError(text)


def newline_offsets(text: bytes) -> Offsets:
    """Offsets of all newlines, ascending."""
    return np.flatnonzero(np.frombuffer(text, np.uint8) == _NEWLINE)


class RecordCutter:
    """Cuts one member's text into blocks. Push it chunks, then `finish`.

    Holds at most `record_bytes_max` of an unfinished record, beside one block.
    """

    def __init__(
        self,
        scanner: Scanner,
        first: Position,
        *,
        record_bytes_max: int,
        block_bytes_max: int,
        stop_byte: int | None = None,
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
        # Where the unfinished record starts, or where the next one will.
        self._next = first
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._state = OPENABLE
        self._skipping = False
        self._stop_byte = stop_byte
        self.done = stop_byte is not None and first.byte >= stop_byte

    @property
    def next(self) -> Position:
        """Where the unfinished record begins, or the next one; after `finish` the end of the text."""
        return self._next

    def feed(self, chunk: Buffer) -> Iterator[Block]:
        """Blocks of the records that end in this chunk, and of those found to be too long."""
        view = memoryview(chunk)
        at = 0
        while at < len(view) and not self.done:
            stop = at + self._window(len(view) - at)
            whole = at == 0 and stop >= len(view) and isinstance(chunk, bytes)
            piece = chunk if whole and isinstance(chunk, bytes) else bytes(view[at:stop])
            used, block = self._skip(piece) if self._skipping else self._cut(piece)
            at += used
            if block is not None:
                yield block

    def finish(self) -> Iterator[Block]:
        """The last record, when no newline ended it: the end of the input does."""
        if not self._held or self.done:
            return
        text = b"".join(self._held)
        if self._state == INSIDE:
            # Counted from the record's own line: a range of a text does not know how many stand before it.
            line = 1 + text.count(b"\n", 0, self._scanner.opening(text))
            yield self._fail(text, f"quote opened on line {line} of the record never closed")
            return
        # A newline of our own, so that the end of the input and a line end take one path.
        block = self._take(text + b"\n", np.array([len(text)], np.int64))
        self._next = replace(self._next, byte=self._next.byte - 1)
        if block is not None:
            yield replace(block, data=text)

    def _window(self, left: int) -> int:
        """How much of the `left` bytes to look at, so that what is held and the piece are one block at most."""
        room = self._block_bytes_max - self._held_bytes
        room = min(self._window_bytes, room) if room > 0 else self._window_bytes
        # In even parts: a chunk a little larger than a block would else leave a block of a record or two.
        parts = -(-left // room)
        return -(-left // parts)

    def _skip(self, piece: bytes) -> tuple[int, Block | None]:
        """Go to the line end after a record that was too long."""
        newline = piece.find(b"\n")
        self._skipping = newline < 0
        used = newline + 1 or len(piece)
        self._next = replace(self._next, byte=self._next.byte + used, line=self._next.line + (newline >= 0))
        self.done = not self._skipping and self._stop_byte is not None and self._next.byte >= self._stop_byte
        return used, None

    def _cut(self, piece: bytes) -> tuple[int, Block | None]:
        """Take the records that end in this piece: how many of its bytes that used up, and their block."""
        held = self._held_bytes
        ends, state = self._scanner.scan(piece, self._state)
        if not len(ends):
            if held + len(piece) > self._record_bytes_max:
                return self._drop(piece)
            self._hold(piece, state)
            return len(piece), None
        found = len(ends)
        # Should all of them fail, each becomes an object of its own.
        ends = ends[:RECORDS_MAX]
        if held + len(piece) > self._block_bytes_max:
            # A record longer than a block is a block of its own.
            fits = int(np.searchsorted(ends, self._block_bytes_max - held, "right"))
            ends = ends[: max(fits, 1)]
        if held + len(piece) > self._record_bytes_max:
            ends = ends[: self._first_too_long(ends)]
            if not len(ends):
                return self._drop(piece)
        if self._stop_byte is not None:
            ends = self._ends_before_stop(ends, self._stop_byte)
        self._window_bytes = min(self._window_bytes * 2, self._block_bytes_max)
        used = int(ends[-1]) + 1
        text = b"".join((*self._held, memoryview(piece)[:used])) if held else piece
        block = self._take(text, ends + held if held else ends)
        if len(ends) == found and len(piece) - used <= self._record_bytes_max and not self.done:
            # The rest has been scanned already: it ends no record.
            self._hold(piece[used:], state)
            used = len(piece)
        return used, block

    def _ends_before_stop(self, ends: Offsets, stop_byte: int) -> Offsets:
        """The ends up to and with that of the last record that begins before the stop."""
        last = int(np.searchsorted(ends, stop_byte - self._next.byte - self._held_bytes - 1))
        self.done = last < len(ends)
        return ends[: last + 1]

    def _hold(self, piece: bytes, state: int) -> None:
        """Keep a piece of the unfinished record; `state` is the scanner's after it."""
        if piece:
            self._held.append(piece)
            self._held_bytes += len(piece)
        self._state = state

    def _first_too_long(self, ends: Offsets) -> int:
        """How many records come before the first that is longer than may be."""
        lengths = np.diff(ends, prepend=-1) - 1
        lengths[0] += self._held_bytes
        long = np.flatnonzero(lengths > self._record_bytes_max)
        return int(long[0]) if len(long) else len(ends)

    def _drop(self, piece: bytes) -> tuple[int, Block]:
        """Give up on the record that starts with what is held: skip from its `record_bytes_max`-th byte on."""
        used = self._record_bytes_max - self._held_bytes
        text = b"".join((*self._held, piece[:used]))
        self._skipping = True
        # What was scanned past this record is scanned again, with the quotes counted anew; look at little at a
        # time until records end again, so that many long records do not make this quadratic.
        self._window_bytes = min(_WINDOW_BYTES_MIN, self._block_bytes_max)
        return used, self._fail(text, f"longer than record_bytes_max={self._record_bytes_max}")

    def _fail(self, text: bytes, why: str) -> Block:
        """The unfinished record, whose text so far this is, as a failure in a block of its own."""
        first = self._next
        self._advance(len(text), text.count(b"\n"), 1)
        return Block(first, failures=(Failure(first, FailureKind.FORMAT, why, text[:RAW_BYTES_KEPT_MAX]),))

    def _take(self, text: bytes, ends: Offsets) -> Block | None:
        """A block of the records of `text` that end at these newlines; None when all are blank lines."""
        starts = np.empty_like(ends)
        starts[0] = 0
        starts[1:] = ends[:-1] + 1
        stops = ends
        # Before the end of a blank line stands another line's byte; whatever it is, the line stays blank.
        before = np.frombuffer(text, np.uint8)[ends - 1] == _RETURN
        returns = bool(before.any())
        if returns:
            stops = ends - before
        used = int(ends[-1]) + 1
        filled = stops > starts
        blanks = not filled.all()
        if blanks:
            starts, stops = starts[filled], stops[filled]
        quote = self._scanner.quote
        lines = text.count(b"\n", 0, used) if quote and quote in text else len(ends)
        line_end = b""
        if not blanks and lines == len(ends):
            all_returns = returns and bool((stops < ends).all())
            line_end = b"\r\n" if all_returns else b"" if returns else b"\n"
        first = self._next
        self._advance(used, lines, len(starts))
        if not len(starts):
            return None
        blank = int(starts[0])
        if blank:
            first = replace(first, byte=first.byte + blank, line=first.line + text.count(b"\n", 0, blank))
        return Block(first, text, starts, stops, line_end=line_end)

    def _advance(self, used: int, lines: int, records: int) -> None:
        at = self._next
        self._next = replace(at, byte=at.byte + used, line=at.line + lines, record=at.record + records)
        self._held = []
        self._held_bytes = 0
        self._state = OPENABLE


def cut_text(
    chunks: Iterable[Buffer],
    first: Position,
    scanner: Scanner,
    what: str,
    *,
    record_bytes_max: int,
    block_bytes_max: int,
    until: Until | None = None,
) -> Iterator[Block]:
    """Blocks of one member's records, or of those that begin before `until`; `what` is the format's name, for people.

    Whether it is text at all its first PROBE_BYTES decide; what is not is one failure of kind OBJECT, and the rest
    of it is read and thrown away. A UTF-8 byte order mark is dropped, though offsets count it. When the chunks end
    with a `CorruptError`, the whole records before are given first.
    """
    source = iter(chunks)
    head, error = _head(source)
    probe = b"".join(bytes(memoryview(part)[:PROBE_BYTES]) for part in head)[:PROBE_BYTES]
    problem = _not_text(probe)
    if problem:
        why = f"not {what} text: {problem}"
        yield Block(first, failures=(Failure(first, FailureKind.OBJECT, why, probe),))
        if error is not None:
            raise error
        if until is None:
            _drain(source)
        return
    if probe.startswith(_BOM_UTF8):
        head = [memoryview(b"".join(head))[len(_BOM_UTF8) :]]
        first = replace(first, byte=first.byte + len(_BOM_UTF8))
    until = until or Until()
    cutter = RecordCutter(
        scanner,
        first,
        record_bytes_max=record_bytes_max,
        block_bytes_max=block_bytes_max,
        stop_byte=until.byte,
    )
    for part in head:
        yield from cutter.feed(part)
    if error is not None:
        raise error
    yield from cut_rest(cutter, source, until)


def cut_rest(cutter: RecordCutter, chunks: Iterable[Buffer], until: Until) -> Iterator[Block]:
    """Blocks of all chunks that are still to come, read no further than the cutter needs."""
    if not cutter.done:
        for chunk in chunks:
            yield from cutter.feed(chunk)
            if cutter.done:
                break
    yield from cutter.finish()
    until.reached = cutter.next


def _head(source: Iterator[Buffer]) -> tuple[list[Buffer], CorruptError | None]:
    """The first chunks, PROBE_BYTES together or all there are, and the error that ended them early.

    Only the last of them may be a memoryview, which stays valid since no chunk is asked for after it.
    """
    head: list[Buffer] = []
    size = 0
    try:
        for chunk in source:
            size += len(chunk)
            if size >= PROBE_BYTES:
                head.append(chunk)
                break
            head.append(bytes(chunk))
    except CorruptError as error:
        return head, error
    return head, None


def _drain(source: Iterator[Buffer]) -> None:
    """Read on without looking: the next archive member begins where this one ends."""
    for _ in source:
        pass


def _not_text(probe: bytes) -> str:
    """What is wrong with a member's first bytes; empty when they may be text."""
    if probe.startswith(_BOMS_UTF16):
        return "it starts with the byte order mark of UTF-16; convert it to UTF-8 first"
    nul = probe.find(b"\0")
    if nul < 0:
        return ""
    return f"NUL byte at offset {nul}; use --members to select the archive members that are text"
