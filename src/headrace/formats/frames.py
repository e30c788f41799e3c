"""Binary records in frames (a header that tells the length, the record, a trailer), whatever the chunks.

Chunks arrive, blocks leave. What a frame looks like is a `Framing`'s business; everything else is here, once: what is
held between chunks, records in several frames, bounds, positions, what is skipped, and the end that comes too early.

A byte is copied once, or twice when it came before its record's end; a record is looked at when all of it is there,
so that one that comes in small chunks costs no more than one that comes at once.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np

from headrace.core.block import RAW_BYTES_KEPT_MAX, Block, Failure, FailureKind, Position
from headrace.core.errors import ConfigError, CorruptError, TruncatedError
from headrace.formats.contract import Buffer

RECORDS_MAX: Final = 1 << 16
"""In one block."""


@dataclass(frozen=True, slots=True)
class Head:
    """What a frame's header says.

    `frame_bytes` is the whole frame's length, `record_bytes` that of the record, or of the record's part, in it.
    `begins` and `ends` say whether the record does so here; a frame that holds a whole record does both.
    """

    record_bytes: int
    frame_bytes: int
    begins: bool = True
    ends: bool = True


class Framing(Protocol):
    """What a frame looks like."""

    @property
    def what(self) -> str:
        """The format's name, for people."""
        ...

    @property
    def header_bytes(self) -> int:
        """How long every header is."""
        ...

    @property
    def joint(self) -> bytes:
        """What stood between the parts of a record that came in several frames."""
        ...

    def scan(self, data: bytes, bounds: "Bounds") -> tuple[list[int], list[int], int]:
        """Where the records of the sound frames at the start of the bounds start and end, and where the last such frame does.

        Ends before a frame that is not whole, not sound, longer than may be, or holds less than a record.
        """
        ...

    def head(self, header: bytes) -> Head | str:
        """What a header says; or, when it is none, why."""
        ...

    def flaw(self, frame: bytes) -> str:
        """What is wrong with a whole frame whose header is right; empty when nothing is."""
        ...


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of one scan: from `start` on, frames that end by `stop` (the first may end later), of records no longer than given."""

    start: int
    stop: int
    record_bytes_max: int


def cut_frames(
    chunks: Iterable[Buffer],
    first: Position,
    framing: Framing,
    *,
    record_bytes_max: int,
    block_bytes_max: int,
) -> Iterator[Block]:
    """Blocks of one member's records.

    A record that is longer than may be, and one whose frame has a flaw, is a failure (kind FORMAT); the next is
    read. Raises, after all whole records before, CorruptError where a header is none, since nothing tells then where
    the next one is, and TruncatedError when the chunks end within a record.
    """
    cutter = FrameCutter(framing, first, record_bytes_max=record_bytes_max, block_bytes_max=block_bytes_max)
    for chunk in chunks:
        yield from cutter.feed(chunk)
    cutter.finish()


class FrameCutter:
    """Cuts one member's bytes into blocks. Push it chunks, then `finish`.

    Holds at most `record_bytes_max` of an unfinished record, beside one block.
    """

    def __init__(
        self, framing: Framing, first: Position, *, record_bytes_max: int, block_bytes_max: int
    ) -> None:
        if record_bytes_max < 1 or block_bytes_max < 1:
            raise ConfigError(
                "record_bytes_max and block_bytes_max must be at least 1, "
                f"not {record_bytes_max} and {block_bytes_max}"
            )
        self._framing = framing
        self._record_bytes_max = record_bytes_max
        self._block_bytes_max = block_bytes_max
        # Where the next record's header is; and how far from there the next frame is, of a record in several.
        self._next = first
        self._ahead = 0
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._needed = framing.header_bytes
        self._skip = 0
        self._parts: list[bytes] = []
        self._parts_bytes = 0
        self._dropping = False

    def feed(self, chunk: Buffer) -> Iterator[Block]:
        """Blocks of the records that end in this chunk, and of those that fail."""
        view = memoryview(chunk)
        at = 0
        while at < len(view):
            if self._skip:
                skipped = min(self._skip, len(view) - at)
                self._skip -= skipped
                at += skipped
                continue
            # Of a chunk that is bytes, and taken whole, nothing is copied.
            whole = not at and len(view) <= self._block_bytes_max
            piece = bytes(chunk if whole else view[at : at + self._block_bytes_max])
            at += len(piece)
            self._held.append(piece)
            self._held_bytes += len(piece)
            if self._held_bytes >= self._needed:
                yield from self._cut()

    def finish(self) -> None:
        """Raises TruncatedError unless a record ended where the bytes do."""
        if not (self._held_bytes or self._ahead or self._skip):
            return
        end = self._next.byte + self._ahead + self._held_bytes - self._skip
        raise TruncatedError(
            f"the {self._framing.what} file ends early, at byte {end}, within a record: the upload or the program "
            "that wrote it was cut short; fetch or write it again",
            byte=end,
        )

    def _cut(self) -> Iterator[Block]:
        """Take all that can be taken of what is held."""
        data = self._held[0] if len(self._held) == 1 else b"".join(self._held)
        self._held, self._held_bytes, self._needed = [], 0, 0
        at = 0
        while at < len(data):
            used = 0
            if not self._ahead:
                used, block = self._sound(data, at)
                if block is not None:
                    yield block
            if not used:
                used, block = self._frame(data, at)
                if block is not None:
                    yield block
            if not used:
                break
            at += used
        if at > len(data):
            self._skip, at = at - len(data), len(data)
        if at < len(data):
            self._held.append(data[at:])
            self._held_bytes = len(data) - at

    def _sound(self, data: bytes, at: int) -> tuple[int, Block | None]:
        """The frames from `at` on that hold a record each and have no flaw: how many bytes, and their block."""
        bounds = Bounds(at, at + self._block_bytes_max, self._record_bytes_max)
        starts, ends, stop = self._framing.scan(data, bounds)
        if not starts:
            return 0, None
        first = self._next
        self._next = replace(first, byte=first.byte + stop - at, record=first.record + len(starts))
        block = Block(
            first,
            data[at:stop],
            np.array(starts, np.int64) - at,
            np.array(ends, np.int64) - at,
            header_bytes=self._framing.header_bytes,
        )
        return stop - at, block

    def _frame(self, data: bytes, at: int) -> tuple[int, Block | None]:
        """The one frame at `at`, whatever it holds: its bytes (none while it is not there), and what came of it.

        It may use up more than there is: that much is to be skipped.
        """
        framing = self._framing
        if not self._has(data, at, framing.header_bytes):
            return 0, None
        head = self._head(data[at : at + framing.header_bytes])
        if self._dropping:
            return self._advanced(head), None
        start = at + framing.header_bytes
        joint = framing.joint if self._parts else b""
        size = self._parts_bytes + len(joint) + head.record_bytes
        if size > self._record_bytes_max:
            keep = min(head.record_bytes, RAW_BYTES_KEPT_MAX, self._record_bytes_max)
            if not self._has(data, at, framing.header_bytes + keep):
                return 0, None
            raw = b"".join((*self._parts, joint, data[start : start + keep]))[: self._record_bytes_max]
            block = self._failure(f"longer than record_bytes_max={self._record_bytes_max}", raw)
            self._parts, self._parts_bytes, self._dropping = [], 0, True
            return self._advanced(head), block
        if not self._has(data, at, head.frame_bytes):
            return 0, None
        self._parts += [joint, data[start : start + head.record_bytes]]
        self._parts_bytes = size
        block = self._ended(data[at : at + head.frame_bytes]) if head.ends else None
        return self._advanced(head), block

    def _has(self, data: bytes, at: int, size: int) -> bool:
        """Whether so many bytes are there; if not, they are what is needed."""
        if len(data) - at >= size:
            return True
        self._needed = size
        return False

    def _head(self, header: bytes) -> Head:
        head = self._framing.head(header)
        if isinstance(head, Head) and head.begins == bool(self._ahead):
            head = "a record begins within another" if head.begins else "a record goes on that never began"
        if isinstance(head, Head):
            return head
        byte = self._next.byte + self._ahead
        raise CorruptError(
            f"not {self._framing.what} at byte {byte}: {head}; the rest is not read", byte=byte
        )

    def _ended(self, frame: bytes) -> Block:
        """The record whose last frame this is, in a block of its own."""
        record = b"".join(self._parts)
        self._parts, self._parts_bytes = [], 0
        flaw = self._framing.flaw(frame)
        return self._failure(flaw, record) if flaw else self._joined(record, self._ahead + len(frame))

    def _advanced(self, head: Head) -> int:
        """Go behind a frame: how many bytes that is."""
        self._ahead += head.frame_bytes
        if head.ends:
            here = self._next
            self._next = replace(here, byte=here.byte + self._ahead, record=here.record + 1)
            self._ahead = 0
            self._dropping = False
        return head.frame_bytes

    def _failure(self, why: str, raw: bytes) -> Block:
        failure = Failure(self._next, FailureKind.FORMAT, why, raw[:RAW_BYTES_KEPT_MAX])
        return Block(self._next, failures=(failure,))

    def _joined(self, record: bytes, frames_bytes: int) -> Block:
        """A block of one record that came in several frames: as long as they are, so that the next one's byte is told."""
        header = self._framing.header_bytes
        data = bytes(header) + record
        return Block(
            self._next,
            data.ljust(frames_bytes, b"\0"),
            np.array([header], np.int64),
            np.array([len(data)], np.int64),
            header_bytes=header,
        )
