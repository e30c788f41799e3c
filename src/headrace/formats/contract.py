"""What a format is: bytes as they come in, blocks of records out; and how blocks become tensors and text.

Formats are pure: they open nothing and read no clock. Chunks may be cut anywhere; the records that come out do
not depend on where (`headrace.testing.check_format` proves it). A format holds at most one unfinished record
and one block.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.core.block import Block, Failure, Position
from headrace.core.tensor import Array

AudioChannels = Literal["mono", "keep"]
"""Of sound: the mean of its channels, or all of them."""
Buffer = bytes | memoryview
"""A chunk of bytes. A memoryview is only valid until the next chunk is asked for, unless it views bytes."""

BLOCK_BYTES_MAX = 3 << 19
"""How much a block of text holds at most, unless one record is longer: enough to spread what a block costs, little
enough for a core's cache."""
RECORD_BYTES_MAX = 16 << 20
"""The longest record that is kept, by default; a longer one becomes a failure and is skipped."""


class Format(Protocol):
    """Cuts one object or member into blocks of records."""

    def blocks(self, chunks: Iterable[Buffer], first: Position) -> Iterator[Block]:
        """Blocks, in order, as soon as the bytes for them are there.

        `first` says where the first byte stands (object, member, line 1, byte 0). Every byte of every record is
        in exactly one block or failure. Raises `CorruptError` or `TruncatedError` when the rest cannot be read,
        after all whole records before that were given.
        """
        ...


@dataclass(frozen=True, slots=True)
class Decoded:
    """A block's records as a model's inputs.

    `tensors` have one row for each record that decoded, in order; `rows` are these records' indices in the
    block, or None when it is all of them. `failures` are the others, sorted by position (kind DECODE or
    FORMAT), not including the block's own.
    """

    tensors: Mapping[str, Array]
    rows: NDArray[np.int64] | None = None
    failures: tuple[Failure, ...] = ()


class Decoder(Protocol):
    """Turns blocks into tensors by input name. Never raises for bad data: that is a failure in the result."""

    def decode(self, block: Block) -> Decoded:
        """Decode every record of the block."""
        ...


@dataclass(frozen=True, slots=True)
class Piece:
    """Some records of one block, by index, ascending. `rows` None means all of ``start..stop``."""

    block: Block
    start: int
    stop: int
    rows: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        """How many records."""
        return self.stop - self.start if self.rows is None else len(self.rows)


class Encoder(Protocol):
    """Turns predictions into the bytes of one output part. Made anew for every part.

    The part is ``begin() + encode(...)* + finish()``; the same calls give the same bytes.
    """

    def begin(self) -> bytes:
        """What stands before the first record: a header, a magic number."""
        ...

    def encode(self, pieces: Sequence[Piece], outputs: Mapping[str, Array]) -> bytes:
        """Bytes of these records' predictions; row i of every output belongs to the i-th record of the pieces."""
        ...

    def finish(self) -> bytes:
        """What stands after the last record: a footer."""
        ...
