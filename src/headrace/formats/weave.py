"""Records woven together with their predictions, into the lines of an output.

No Python object is made of a record where its block can be taken as one text: then the block's line ends are
replaced by a template, and the predictions are filled in, in one pass.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from headrace.core.block import Block
from headrace.formats.contract import Piece

_NEWLINE: Final = 0x0A
_RETURN: Final = 0x0D


@dataclass(frozen=True, slots=True)
class Weave:
    """The constants of an output line: ``head + record + middle + prediction + tail``.

    Without records the line is ``head + prediction + tail``.
    """

    head: bytes
    middle: bytes
    tail: bytes

    def lines(self, predictions: Sequence[bytes]) -> bytes:
        """Lines without records."""
        if not predictions:
            return b""
        return b"".join((self.head, (self.tail + self.head).join(predictions), self.tail))

    def into_text(self, text: bytes, predictions: Sequence[bytes]) -> bytes:
        """Lines of records that stand in one text, each ended by a newline, and with no other newlines."""
        head, middle, tail = (part.replace(b"%", b"%%") for part in (self.head, self.middle, self.tail))
        if b"%" in text:
            text = text.replace(b"%", b"%%")
        template = text.replace(b"\n", b"".join((middle, b"%b", tail, head)))
        filled = template % tuple(predictions)
        if not head:
            return filled
        # The last newline brought a head too many, and the first line has none.
        return b"".join((self.head, memoryview(filled)[: -len(self.head)]))

    def into_records(self, records: Sequence[bytes], predictions: Sequence[bytes]) -> bytes:
        """Lines of records given one by one."""
        if not records:
            return b""
        parts = [self.middle] * (4 * len(records) + 1)
        parts[0] = self.head
        parts[1::4] = records
        parts[3::4] = predictions
        parts[4::4] = [self.tail + self.head] * len(records)
        parts[-1] = self.tail
        return b"".join(parts)


def woven(
    pieces: Sequence[Piece],
    predictions: Sequence[bytes],
    weave: Callable[[Piece, Sequence[bytes]], bytes],
) -> bytes:
    """All pieces' lines; `weave` is given a piece and its share of the predictions."""
    if len(pieces) == 1:
        return weave(pieces[0], predictions)
    parts: list[bytes] = []
    at = 0
    for piece in pieces:
        parts.append(weave(piece, predictions[at : at + len(piece)]))
        at += len(piece)
    return b"".join(parts)


def plain_text(pieces: Sequence[Piece]) -> bytes | None:
    """All pieces' records as one text, as `one_text` has it, in one copy; None where a block's lines do not end in LF."""
    parts: list[bytes | memoryview] = []
    for piece in pieces:
        block = piece.block
        if piece.rows is not None or block.line_end != b"\n":
            return None
        if len(piece):
            start, end = int(block.starts[piece.start]), int(block.ends[piece.stop - 1])
            parts += (memoryview(block.data)[start:end], b"\n")
    return b"".join(parts)


def one_text(piece: Piece) -> bytes | None:
    """The piece's records as one text, each ended by a newline; no other newlines are in it.

    None when they do not stand in their block so plainly: records are left out, line ends differ, lines are blank,
    a record holds a newline.
    """
    block, start, stop = piece.block, piece.start, piece.stop
    if piece.rows is not None or start == stop or not block.data:
        return None
    if block.line_end == b"\n":
        return _lines(block.data, int(block.starts[start]), int(block.ends[stop - 1]), b"\n")
    starts, ends = block.starts[start:stop], block.ends[start:stop]
    gap = int(starts[1]) - int(ends[0]) if len(starts) > 1 else 1
    if gap not in (1, 2) or not (starts[1:] - ends[:-1] == gap).all():
        return None
    values = np.frombuffer(block.data, np.uint8)
    if not (values[starts[1:] - 1] == _NEWLINE).all():
        return None
    if gap == 2 and not (values[ends[:-1]] == _RETURN).all():
        return None
    line_end = b"\n" if gap == 1 else b"\r\n"
    text = _lines(block.data, int(starts[0]), int(ends[-1]), line_end)
    # As many as there are lines: so none is inside a record.
    if any(_count(text, value) != len(starts) for value in line_end):
        return None
    return text.replace(b"\r", b"") if gap == 2 else text


def _lines(data: bytes, start: int, end: int, line_end: bytes) -> bytes:
    """The records from `start` to `end`, and the last one's line end, which the end of the input may have spared."""
    if data.startswith(line_end, end):
        return data[start : end + len(line_end)]
    return data[start:end] + line_end


def _count(text: bytes, value: int) -> int:
    """How often a byte occurs; `bytes.count` takes five times as long."""
    return int(np.count_nonzero(np.frombuffer(text, np.uint8) == value))


def raw_records(piece: Piece) -> list[bytes]:
    """The piece's records one by one: a copy of each. Of media, whose bytes are not kept, where each comes from."""
    block = piece.block
    chosen: Any = slice(piece.start, piece.stop) if piece.rows is None else piece.rows
    if block.columns and not block.data:
        return _places(block, np.arange(len(block))[chosen].tolist())
    data = block.data
    bounds = zip(block.starts[chosen].tolist(), block.ends[chosen].tolist(), strict=True)
    return [data[start:end] for start, end in bounds]


def _places(block: Block, indices: Sequence[int]) -> list[bytes]:
    """``photos.tar!cat.png``; of windows and frames with the time where they begin, ``talk.wav#t=0.5``."""
    at, times_ms = block.first, block.columns.get("time_ms")
    name = f"{at.object}!{at.member}" if at.member else at.object
    if times_ms is None:
        return [name.encode(errors="surrogateescape")] * len(indices)
    return [f"{name}#t={round(times_ms[i] / 1000, 6)}".encode(errors="surrogateescape") for i in indices]
