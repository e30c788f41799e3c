"""Records joined with their predictions into the lines of an output.

Where a block can be taken as one text, no Python object is made per record. The line ends of the
block are replaced by a template, and the predictions are filled in, in one pass.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from headrace.core.block import Block
from headrace.formats.contract import BlockSelection

_NEWLINE: Final = 0x0A
_RETURN: Final = 0x0D


@dataclass(frozen=True, slots=True)
class RecordJoiner:
    """The constants of an output line: ``head + record + middle + prediction + tail``.

    Without records the line is ``head + prediction + tail``.
    """

    head: bytes
    middle: bytes
    tail: bytes

    def prediction_lines(self, predictions: Sequence[bytes]) -> bytes:
        """Return lines without records."""
        if not predictions:
            return b""
        return b"".join((self.head, (self.tail + self.head).join(predictions), self.tail))

    def join_text(self, text: bytes, predictions: Sequence[bytes]) -> bytes:
        """Return lines of the records in one text, each ended by a newline, with no other newlines."""
        head, middle, tail = (part.replace(b"%", b"%%") for part in (self.head, self.middle, self.tail))
        if b"%" in text:
            text = text.replace(b"%", b"%%")
        template = text.replace(b"\n", b"".join((middle, b"%b", tail, head)))
        joined = template % tuple(predictions)
        if not head:
            return joined
        # The last newline was replaced with one head too many, and the first line has none.
        return b"".join((self.head, memoryview(joined)[: -len(self.head)]))

    def join_records(self, records: Sequence[bytes], predictions: Sequence[bytes]) -> bytes:
        """Return lines of the given records."""
        if not records:
            return b""
        parts = [self.middle] * (4 * len(records) + 1)
        parts[0] = self.head
        parts[1::4] = records
        parts[3::4] = predictions
        parts[4::4] = [self.tail + self.head] * len(records)
        parts[-1] = self.tail
        return b"".join(parts)


def join_selections(
    selections: Sequence[BlockSelection],
    predictions: Sequence[bytes],
    join: Callable[[BlockSelection, Sequence[bytes]], bytes],
) -> bytes:
    """Return the lines of all selections.

    `join` receives a selection and its share of the predictions.
    """
    if len(selections) == 1:
        return join(selections[0], predictions)
    parts: list[bytes] = []
    at = 0
    for selection in selections:
        parts.append(join(selection, predictions[at : at + len(selection)]))
        at += len(selection)
    return b"".join(parts)


def selections_text(selections: Sequence[BlockSelection]) -> bytes | None:
    """Return the records of all selections as one text, as `selection_text` does, in one copy.

    Return None if the lines of a block do not end in LF.
    """
    parts: list[bytes | memoryview] = []
    for selection in selections:
        block = selection.block
        if selection.rows is not None or block.line_end != b"\n":
            return None
        if len(selection):
            start, end = int(block.starts[selection.start]), int(block.ends[selection.stop - 1])
            parts += (memoryview(block.data)[start:end], b"\n")
    return b"".join(parts)


def selection_text(selection: BlockSelection) -> bytes | None:
    """Return the records of the selection as one text of lines that end in a newline.

    Return None if the block does not hold them as such lines: records are left out, line ends
    differ, lines are blank, or a record holds a newline.
    """
    block, start, stop = selection.block, selection.start, selection.stop
    if selection.rows is not None or start == stop or not block.data:
        return None
    if block.line_end == b"\n":
        return _text_with_line_end(block.data, int(block.starts[start]), int(block.ends[stop - 1]), b"\n")
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
    text = _text_with_line_end(block.data, int(starts[0]), int(ends[-1]), line_end)
    # The number of line ends equals the number of records, so no record contains one.
    if any(_count_byte(text, value) != len(starts) for value in line_end):
        return None
    return text.replace(b"\r", b"") if gap == 2 else text


def _text_with_line_end(data: bytes, start: int, end: int, line_end: bytes) -> bytes:
    """Return the text from `start` to `end` with a final line end, even if the input lacks it."""
    if data.startswith(line_end, end):
        return data[start : end + len(line_end)]
    return data[start:end] + line_end


def _count_byte(text: bytes, value: int) -> int:
    """Return the number of occurrences of a byte. `bytes.count` takes five times as long."""
    return int(np.count_nonzero(np.frombuffer(text, np.uint8) == value))


def raw_records(selection: BlockSelection) -> list[bytes]:
    """Return copies of the records of the selection; for media without kept bytes, their sources."""
    block = selection.block
    indices: Any = slice(selection.start, selection.stop) if selection.rows is None else selection.rows
    if block.columns and not block.data:
        return _source_names(block, np.arange(len(block))[indices].tolist())
    data = block.data
    bounds = zip(block.starts[indices].tolist(), block.ends[indices].tolist(), strict=True)
    return [data[start:end] for start, end in bounds]


def _source_names(block: Block, indices: Sequence[int]) -> list[bytes]:
    """Return source names such as ``photos.tar!cat.png``.

    Windows and frames have their start time in seconds, as in ``speech.wav#t=0.5``.
    """
    at, times_ms = block.first, block.columns.get("time_ms")
    name = f"{at.object}!{at.member}" if at.member else at.object
    if times_ms is None:
        return [name.encode(errors="surrogateescape")] * len(indices)
    return [f"{name}#t={round(times_ms[i] / 1000, 6)}".encode(errors="surrogateescape") for i in indices]
