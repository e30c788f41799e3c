"""The contracts of formats: bytes become blocks, blocks become tensors, outputs become bytes.

Formats are pure: they open no file and read no clock. Input chunks may be cut at any byte. The
resulting records do not depend on the cuts (`headrace.testing.check_format` checks this). A format
holds at most one unfinished record and one block.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from headrace.core.block import Block, Failure, FailureKind, Position
from headrace.core.errors import ConfigError
from headrace.core.tensor import Array

AudioChannels = Literal["mono", "keep"]
"""The treatment of audio channels: their mean, or all of them."""
ImageMode = Literal["RGB", "L"]
"""Channels of an image: three (RGB) or one (L, grey)."""
Buffer = bytes | memoryview
"""A chunk of bytes. A memoryview is valid until the next chunk is requested, unless it views bytes."""

ReadAt = Callable[[int, int], bytes]
"""Read bytes of an object, given the start offset and the number of bytes."""

BLOCK_BYTES_MAX = 3 << 19
"""The maximum size of a text block, unless one record is longer.

It is large enough to amortize the cost of a block and small enough for the cache of a core.
"""
RECORD_BYTES_MAX = 16 << 20
"""The default maximum length of a record; a longer record becomes a failure and is skipped."""


@dataclass(slots=True)
class ArchiveMember:
    """A file of an archive. Consume `pieces` before the next member; the unread rest is skipped.

    `header_byte` grows from member to member. `unreadable_reason` is set if the bytes are not the file's
    content (a sparse or encrypted file); `pieces` must not be used then. `is_independent` is True if damage
    to this member leaves the members behind it readable.
    """

    name: str
    size: int
    header_byte: int
    pieces: Iterator[Buffer]
    unreadable_reason: str | None = None
    is_independent: bool = False


class Format(Protocol):
    """A parser that cuts one object or archive member into blocks of records."""

    def blocks(self, chunks: Iterable[Buffer], first: Position) -> Iterator[Block]:
        """Yield the blocks in order, each as soon as its bytes have arrived.

        `first` is the position of the first byte (object, member, line 1, byte 0). Every byte of
        every record is in exactly one block or failure. Raise `CorruptError` or `TruncatedError` if
        the rest of the input cannot be read, after all whole records before the damage have been
        yielded. Blocks have at least one record or failure, except for a last block that only
        carries the column names of a text without records.
        """
        ...


FailureReasons = dict[int, tuple[FailureKind, str]]
"""The failure kind and message by index of the record in its block."""


@dataclass(frozen=True, slots=True)
class DecodedBlock:
    """The records of a block as inputs of a model.

    `tensors` have one row for each decoded record, in order. `rows` are the indices of these
    records in the block, or None if all records decoded. `failures` are the other records, sorted
    by position (kind DECODE or FORMAT). The failures of the block itself are not included.
    """

    tensors: Mapping[str, Array]
    rows: NDArray[np.int64] | None = None
    failures: tuple[Failure, ...] = ()

    @classmethod
    def with_failures(
        cls, tensors: Mapping[str, Array], block: Block, reasons: FailureReasons, *, all_rows: bool = False
    ) -> "DecodedBlock":
        """Return the result for a block of which the records in `reasons` failed.

        With `all_rows`, the tensors have a row for each record of the block, also for the failed
        ones.
        """
        if not reasons:
            return cls(tensors)
        rows = np.setdiff1d(np.arange(len(block)), list(reasons), assume_unique=True)
        if all_rows:
            tensors = {name: data[rows] for name, data in tensors.items()}
        return cls(tensors, rows, tuple(block.failure(row, *reasons[row]) for row in sorted(reasons)))


class Decoder(Protocol):
    """A converter of blocks into tensors by input name.

    Bad data never raises: it becomes a failure in the result.
    """

    def decode(self, block: Block) -> DecodedBlock:
        """Decode every record of the block."""
        ...


@dataclass(frozen=True, slots=True)
class BlockSelection:
    """Some records of one block, by ascending index. `rows` None means all of ``start..stop``."""

    block: Block
    start: int
    stop: int
    rows: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        """Return the number of selected records."""
        return self.stop - self.start if self.rows is None else len(self.rows)

    def indices(self) -> NDArray[np.int64]:
        """Return the indices of the selected records in the block."""
        return np.arange(self.start, self.stop) if self.rows is None else self.rows


class Encoder(Protocol):
    """A converter of predictions into the bytes of one output part. Every part has its own encoder.

    A part is ``begin() + encode(...)* + finish()``. The same calls give the same bytes.
    """

    def begin(self) -> bytes:
        """Return the bytes before the first record, such as a header or a magic number; by default none."""
        return b""

    def encode(self, selections: Sequence[BlockSelection], outputs: Mapping[str, Array]) -> bytes:
        """Return the bytes of the predictions for the selected records.

        Row i of every output belongs to the i-th record of the selections.
        """
        ...

    def finish(self) -> bytes:
        """Return the bytes after the last record, such as a footer; by default none."""
        return b""


def check_pixels(mode: str, size_px: tuple[int, int] | None, pixels_max: int) -> None:
    """Raise ConfigError for an unknown mode or an invalid (height, width)."""
    if mode not in get_args(ImageMode):
        raise ConfigError(f"image mode {mode!r}: choose {' or '.join(get_args(ImageMode))}")
    if size_px is not None and (min(size_px) < 1 or math.prod(size_px) > pixels_max):
        raise ConfigError(
            f"size_px {size_px}: (height, width) must be positive, and their product at most {pixels_max}"
        )
