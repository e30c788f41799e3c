"""What travels between the stages of a stream."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.core.block import Block, Failure, FailureKind, Position
from headrace.core.outcome import Outcome, Prediction
from headrace.core.tensor import Array
from headrace.formats.contract import Decoded, Piece
from headrace.formats.read import behind
from headrace.pipeline.sequence_mapping import RecordSequences


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a stream goes on: object `index` of the plan, and the first record not yet delivered.

    `position` None means from the object's start. Everything before is done. Its line and byte are told only at a
    block's end, where a failure may have to name them that no record follows.
    """

    index: int = 0
    position: Position | None = None

    def to_json(self) -> dict[str, Any]:
        """For the ledger."""
        p = self.position
        if p is None:
            return {"object": self.index}
        return {
            "object": self.index,
            "uri": p.object,
            "member": p.member,
            "member_byte": p.member_byte,
            "record": p.record,
            "line": p.line,
            "byte": p.byte,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Cursor":
        """From the ledger."""
        if "record" not in data:
            return cls(data["object"])
        position = Position(
            object=data["uri"],
            member=data["member"],
            record=data["record"],
            line=data["line"],
            byte=data["byte"],
            member_byte=data["member_byte"],
        )
        return cls(data["object"], position)


@dataclass(frozen=True, slots=True)
class Replay:
    """What a resumption gives the model again, so that the sequences that live are what they were: from `begin` on.

    That is where the batch began in which the oldest of them did. Between there and the resumption are so many `records`,
    and `broken` objects or members: a source in which they are not any more makes other states.
    """

    begin: Cursor
    records: int
    broken: int = 0

    def to_json(self) -> dict[str, Any]:
        """For the ledger."""
        return {"begin": self.begin.to_json(), "records": self.records, "broken": self.broken}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Replay":
        """From the ledger."""
        return cls(Cursor.from_json(data["begin"]), data["records"], data["broken"])


@dataclass(frozen=True, slots=True)
class ReadBlock:
    """A block on its way from the reader; `last` says that its object ended with it (by a failure).

    `index` is that of its object, or of the range of one, among those that are read. `ends_batch`: the batch that
    it is in, or the one before where it is empty, takes no more.
    """

    block: Block
    index: int
    last: bool = False
    ends_batch: bool = False


class BlockSource(Protocol):
    """Where a flow's blocks come from. One thread iterates; `close` may come from another."""

    bytes_read: int
    objects_read: int

    def blocks(self) -> Iterator[ReadBlock]:
        """All blocks, in order. Raises what breaks the whole run."""
        ...

    def close(self) -> None:
        """Read no further ahead."""
        ...


@dataclass(frozen=True, slots=True)
class FedBlock:
    """A block with its tensors, as the batcher cuts it: its entries are the records, then the failures."""

    read: ReadBlock
    decoded: Decoded
    sequences: RecordSequences | None = None
    failures: tuple[Failure, ...] = field(init=False)
    """All of the block's entries that failed, in order."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "failures", (*self.decoded.failures, *self.read.block.failures))

    def cursor_after(self, entries: int) -> Cursor:
        """Where a stream goes on after the first `entries` of this block."""
        block = self.read.block
        if self.read.last and entries == block.records:
            return Cursor(self.read.index + 1)
        if entries == block.records:
            return Cursor(self.read.index, behind(block))
        first = block.first
        position = Position(
            object=first.object,
            member=first.member,
            record=first.record + entries,
            member_byte=first.member_byte,
        )
        return Cursor(self.read.index, position)

    def span(self, start: int, stop: int) -> "Span":
        """Entries ``start..stop``: which records decoded, their tensor rows, and the failures among them."""
        block, decoded = self.read.block, self.decoded
        stop_record = min(stop, len(block))
        start_record = min(start, stop_record)
        if decoded.rows is None:
            piece = Piece(block, start_record, stop_record)
            low, high = start_record, stop_record
        else:
            low, high = (int(i) for i in np.searchsorted(decoded.rows, [start_record, stop_record]))
            piece = Piece(block, start_record, stop_record, decoded.rows[low:high])
        first = block.first.record
        begin, end = (bisect_left(self.failures, first + entry, key=_record_of) for entry in (start, stop))
        failures = self.failures[begin:end]
        tensors = {name: data[low:high] for name, data in decoded.tensors.items()}
        return Span(piece, tensors, failures, self.read.index, self.sequences)


def _record_of(failure: Failure) -> int:
    return failure.position.record


@dataclass(frozen=True, slots=True)
class Span:
    """A batch's share of one block."""

    piece: Piece
    tensors: Mapping[str, Array]
    failures: tuple[Failure, ...]
    index: int = 0
    """Of the object, as in `ReadBlock`."""
    sequences: RecordSequences | None = None
    """Of all of the block's records."""


@dataclass(frozen=True, slots=True)
class ScoredSpan:
    """The records of one block that were predicted, and those that were not."""

    piece: Piece
    failures: tuple[Failure, ...]
    index: int = 0


@dataclass(frozen=True, slots=True)
class ScoredBatch:
    """A batch with its answer, in source order.

    Row i of every output belongs to the i-th record of the spans' pieces together.
    ``entries == rows out + failures``; `broken` of the failures are objects' (kind OBJECT), not records'. `replay` is for
    a resumption after it.
    """

    spans: tuple[ScoredSpan, ...]
    outputs: Mapping[str, Array]
    entries: int
    end: Cursor
    replay: Replay | None = None

    @property
    def pieces(self) -> list[Piece]:
        """The predicted records, in order."""
        return [s.piece for s in self.spans if len(s.piece)]

    @property
    def failures(self) -> list[Failure]:
        """The failed records, in order."""
        return [f for s in self.spans for f in s.failures]

    @property
    def rows(self) -> int:
        """How many records were predicted."""
        return sum(len(s.piece) for s in self.spans)

    @property
    def broken(self) -> int:
        """How many failures are of objects or members rather than of records."""
        return sum(f.kind is FailureKind.OBJECT for f in self.failures)

    def outcomes(self) -> Sequence[Outcome]:
        """One value a record, in source order. For callers; never on the way to a sink."""
        found: list[Outcome] = []
        row = 0
        for span in self.spans:
            failures = iter(span.failures)
            failure = next(failures, None)
            for index in piece_rows(span.piece):
                number = span.piece.block.first.record + int(index)
                while failure is not None and failure.position.record < number:
                    found.append(failure)
                    failure = next(failures, None)
                found.append(self._prediction(span.piece.block, int(index), row))
                row += 1
            if failure is not None:
                found.extend((failure, *failures))
        return found

    def _prediction(self, block: Block, index: int, row: int) -> Prediction:
        outputs = {name: data[row] for name, data in self.outputs.items()}
        return Prediction(block.position(index), outputs, block.record(index))


def piece_rows(piece: Piece) -> NDArray[np.int64]:
    """The indices of a piece's records in its block."""
    return np.arange(piece.start, piece.stop) if piece.rows is None else piece.rows
