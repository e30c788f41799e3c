"""A byte range of a text, cut into the records that begin in it.

Ranges are used to read one large object in parallel. A range may start and stop at any byte. If
every newline ends a record, the first record of a range follows the first newline from the byte
before its start on. If newlines can be quoted, no text near the start proves whether the start lies
inside quotes. Usually only one reading of the nearby quotes makes sense (Ge et al., "Speculative
Distributed CSV Data Parsing for Big Data Analytics", SIGMOD 2019).

So the `begin` of a range is a guess, and is checked afterwards: the `end` of the previous range is
the true end of its last record. Ranges are correct if every `begin` equals the previous `end`. A
range with another `begin` is read again from there.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Final

from headrace.core.block import Block, Position
from headrace.formats.contract import Buffer
from headrace.formats.csv import CsvFormat
from headrace.formats.line import LineFormat
from headrace.formats.lines import RangeStop, RecordCutter, RecordEndScanner, cut_remaining

GUESS_BYTES: Final = 64 << 10
"""The size of the first text window after the start; each window without a record's end is quadrupled."""

TextFormat = CsvFormat | LineFormat


class TextRange:
    """The records of one text that begin at byte `start` or later, and before byte `stop`.

    `begin` and `end` are known once `blocks` is exhausted. `begin` is the start of the first
    record. `end` is the start of the first record after the range, or the end of the text.
    Positions in between count records and lines from `begin`.

    Args:
        text_format: The format that cuts the text.
        start: The first byte of the range; 0 is the start of the text, with its header and byte
            order mark.
        stop: The first byte of the next range; None is the end of the text.
        begin: The start of the first record, if known. Then nothing is guessed, and positions
            continue from it.
        column_names: The column names in the header of the text, for a range other than the first.
    """

    def __init__(
        self,
        text_format: TextFormat,
        start: int,
        stop: int | None,
        *,
        begin: Position | None = None,
        column_names: tuple[str, ...] | None = None,
    ) -> None:
        self._format = text_format
        self._start = start
        self._stop = stop
        self._column_names = column_names
        self.begin: Position | None = begin
        self.end: Position | None = None

    @property
    def first_byte(self) -> int:
        """Return the byte at which the chunks for `blocks` must begin."""
        if self.begin is not None:
            return self.begin.byte
        return max(0, self._start - 1)

    def blocks(self, chunks: Iterable[Buffer], uri: str) -> Iterator[Block]:
        """Yield the blocks of the range.

        `chunks` begin at `first_byte`, and only as many as needed are read. They must continue
        beyond `stop`, because the last record may end there.
        """
        range_stop = RangeStop(self._stop)
        if not self.first_byte and not self._start:
            self.begin = self.begin or Position(uri)
            yield from self._format.blocks(chunks, self.begin, range_stop)
            self.end = range_stop.next_position
            return
        source = iter(chunks)
        if self.begin is None:
            begin_byte, source = self._guess_begin(source)
            # Numbers within the object are unknown, so positions count from the start of the range.
            self.begin = Position(uri, byte=begin_byte)
        cutter = RecordCutter(
            self._format.scanner(),
            self.begin,
            record_bytes_max=self._format.record_bytes_max,
            block_bytes_max=self._format.block_bytes_max,
            stop_byte=self._stop,
            comment=self._format.comment_bytes,
        )
        for block in cut_remaining(cutter, source, range_stop):
            yield replace(block, column_names=self._column_names) if self._column_names else block
        self.end = range_stop.next_position

    def _guess_begin(self, source: Iterator[Buffer]) -> tuple[int, Iterator[Buffer]]:
        """Return the likely start of the first record, and the chunks from there on."""
        scanner = self._format.scanner()
        window, window_bytes, exhausted = b"", GUESS_BYTES, False
        while True:
            while len(window) < window_bytes and not exhausted:
                chunk = next(source, None)
                exhausted = chunk is None
                window += b"" if chunk is None else bytes(chunk)
            offset = guess_record_start(window, scanner)
            if offset is not None:
                return self.first_byte + offset, chain([window[offset:]], source)
            if exhausted or len(window) > self._format.record_bytes_max:
                # The window is the rest of a single record, or a record so long that it fails for
                # any start.
                return self._skip_to_next_line(window, source)
            window_bytes = 4 * len(window)

    def _skip_to_next_line(self, window: bytes, source: Iterator[Buffer]) -> tuple[int, Iterator[Buffer]]:
        newline = window.find(b"\n")
        if newline < 0:
            return self.first_byte + len(window), source
        return self.first_byte + newline + 1, chain([window[newline + 1 :]], source)


def guess_record_start(window: bytes, scanner: RecordEndScanner) -> int | None:
    """Return the offset after the first newline that most likely ends a record, or None.

    `window` begins anywhere in the text, perhaps inside quotes. The result is exact if the format
    has no quotes.
    """
    if not window:
        return None
    ends, _ = scanner.scan(window, scanner.likely_state(window))
    return int(ends[0]) + 1 if len(ends) else None
