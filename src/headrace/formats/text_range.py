"""A byte range of a text, cut into the records that begin in it: how one large object is read in parallel.

Any byte may be asked for as an edge. Where every newline ends a record, the first record of a range is behind the
first newline from the byte before the edge on. Where newlines can be quoted, nothing near the edge proves whether
it lies inside quotes; but one reading of the quotes around it mostly makes sense and the other does not (Ge et al.,
"Speculative Distributed CSV Data Parsing for Big Data Analytics", SIGMOD 2019). So the range's `begin` is a guess, and
it is proved or refuted afterwards: the range before tells, in its `end`, where its last record really ended. Ranges
are right when every `begin` is the `end` before; one that is not is read again from there.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Final

import numpy as np

from headrace.core.block import Block, Position
from headrace.formats.contract import Buffer
from headrace.formats.csv import CsvFormat, QuoteScanner
from headrace.formats.line import LineFormat
from headrace.formats.lines import INSIDE, OPENABLE, RecordCutter, Scanner, Until, cut_rest

GUESS_BYTES: Final = 64 << 10
"""How much text behind an edge is looked at first; four times more each time that holds no record's end."""

TextFormat = CsvFormat | LineFormat


class TextRange:
    """The records of one text that begin at or behind byte `start` and before byte `stop`.

    `begin` and `end` are known once `blocks` is exhausted: where the first of them begins, and where the first record
    behind them does (or the text ends). Positions in between count records and lines from `begin`'s own.

    Args:
        text: How the text is cut.
        start: The range's edge; 0 is the text's start, with its header and byte order mark.
        stop: The next range's edge; None is the text's end.
        begin: Where the first record begins, if that is known: then nothing is guessed, and positions go on from it.
        column_names: Those that the text's header tells, for a range that is not the first.
    """

    def __init__(
        self,
        text: TextFormat,
        start: int,
        stop: int | None,
        *,
        begin: Position | None = None,
        column_names: tuple[str, ...] | None = None,
    ) -> None:
        self._text = text
        self._start = start
        self._stop = stop
        self._column_names = column_names
        self.begin: Position | None = begin
        self.end: Position | None = None

    @property
    def first_byte(self) -> int:
        """The byte that the chunks for `blocks` must begin with."""
        if self.begin is not None:
            return self.begin.byte
        return max(0, self._start - 1)

    def blocks(self, chunks: Iterable[Buffer], uri: str) -> Iterator[Block]:
        """The range's blocks. `chunks` begin at `first_byte`; no more of them is asked for than is needed.

        They must go on behind `stop` for as long as asked: a record ends where it ends.
        """
        until = Until(self._stop)
        if not self.first_byte and not self._start:
            self.begin = self.begin or Position(uri)
            yield from self._text.blocks(chunks, self.begin, until)
            self.end = until.reached
            return
        source = iter(chunks)
        if self.begin is None:
            found, source = self._find_begin(source)
            # Numbers within the object are not known: these count from the range's own start.
            self.begin = Position(uri, byte=found)
        cutter = RecordCutter(
            self._text.scanner(),
            self.begin,
            record_bytes_max=self._text.record_bytes_max,
            block_bytes_max=self._text.block_bytes_max,
            stop_byte=self._stop,
        )
        for block in cut_rest(cutter, source, until):
            yield replace(block, column_names=self._column_names) if self._column_names else block
        self.end = until.reached

    def _find_begin(self, source: Iterator[Buffer]) -> tuple[int, Iterator[Buffer]]:
        """Where the first record begins, most likely, and the chunks from there on."""
        scanner = self._text.scanner()
        window, wanted, ended = b"", GUESS_BYTES, False
        while True:
            while len(window) < wanted and not ended:
                chunk = next(source, None)
                ended = chunk is None
                window += b"" if chunk is None else bytes(chunk)
            offset = likely_start(window, scanner)
            if offset is not None:
                return self.first_byte + offset, chain([window[offset:]], source)
            if ended or len(window) > self._text.record_bytes_max:
                # One record, or what is left of it, is all there is; or it is so long that it fails wherever it began.
                return self._beyond(window, source)
            wanted = 4 * len(window)

    def _beyond(self, window: bytes, source: Iterator[Buffer]) -> tuple[int, Iterator[Buffer]]:
        newline = window.find(b"\n")
        if newline < 0:
            return self.first_byte + len(window), source
        return self.first_byte + newline + 1, chain([window[newline + 1 :]], source)


def likely_start(window: bytes, scanner: Scanner) -> int | None:
    """Offset behind the first newline that most likely ends a record; None where none does.

    `window` begins anywhere in the text, perhaps inside quotes. Exact where nothing quotes.
    """
    if not window:
        return None
    outside = True
    if isinstance(scanner, QuoteScanner) and scanner.quote in window:
        outside = _likely_outside(window, scanner)
    ends, _ = scanner.scan(window, OPENABLE if outside else INSIDE)
    return int(ends[0]) + 1 if len(ends) else None


def _likely_outside(window: bytes, scanner: QuoteScanner) -> bool:
    """Whether the window begins outside quotes: where fewer quotes stand where none should."""
    values = np.frombuffer(window, np.uint8)
    quotes = np.flatnonzero(values == scanner.quote[0])
    quote, delimiter = scanner.quote[0], scanner.delimiter[0]
    # At the window's own edges anything may have stood before, or may follow.
    before = np.concatenate(([delimiter], values))[quotes]
    behind = np.concatenate((values, [delimiter]))[quotes + 1]
    opens = (before == delimiter) | (before == 0x0A) | (before == quote)
    closes = (behind == delimiter) | (behind == 0x0A) | (behind == 0x0D) | (behind == quote)
    wrong_outside = np.count_nonzero(~opens[0::2]) + np.count_nonzero(~closes[1::2])
    wrong_inside = np.count_nonzero(~closes[0::2]) + np.count_nonzero(~opens[1::2])
    return bool(wrong_outside <= wrong_inside)
