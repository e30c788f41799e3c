"""The values that pass between the stages of a stream."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.core.block import Block, Failure, FailureKind, Outcome, Position, Prediction
from headrace.core.tensor import Array
from headrace.formats.contract import BlockSelection, DecodedBlock
from headrace.formats.read import position_after
from headrace.runs.sequence_mapping import RecordSequences


@dataclass(frozen=True, slots=True)
class Cursor:
    """A resume position: object `index` of the plan, and the first record that was not delivered.

    A `position` of None is the start of the object. Everything before the cursor is done. Line and
    byte are known only at the end of a block, where a failure without a following record needs
    them.
    """

    index: int = 0
    position: Position | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the cursor for the ledger."""
        if self.position is None:
            return {"object": self.index}
        position = asdict(self.position)
        return {**position, "object": self.index, "uri": position["object"]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Cursor":
        """Return the cursor of a ledger record."""
        if "record" not in data:
            return cls(data["object"])
        return cls(data["object"], msgspec.convert({**data, "object": data["uri"]}, Position))


@dataclass(frozen=True, slots=True)
class Replay:
    """The part of the source that rebuilds the live sequences at a resumption.

    The model receives it again from `begin` on: the start of the batch in which the oldest live
    sequence began. Between it and the resume position are `records` records and `broken` objects or
    members. Other numbers mean that the source changed and the states would differ.
    """

    begin: Cursor
    records: int
    broken: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the replay for the ledger."""
        return {"begin": self.begin.to_json(), "records": self.records, "broken": self.broken}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Replay":
        """Return the replay of a ledger record."""
        return cls(Cursor.from_json(data["begin"]), data["records"], data["broken"])


@dataclass(frozen=True, slots=True)
class ReadBlock:
    """A block from the reader. `last` marks the end of its object by a failure.

    `index` is the index of the object, or of its byte range. With `ends_batch`, the current batch
    takes no more entries after this block; an empty block closes the batch before it.
    """

    block: Block
    index: int
    last: bool = False
    ends_batch: bool = False


class BlockSource(Protocol):
    """A source of blocks for a flow. One thread iterates; any thread may call `close`."""

    bytes_read: int
    objects_read: int

    @property
    def reading(self) -> str:
        """The URI of the object that is being read, or an empty string."""
        ...

    def blocks(self) -> Iterator[ReadBlock]:
        """Yield all blocks in order. Raise errors that break the whole run."""
        ...

    def close(self) -> None:
        """Stop reading ahead."""
        ...


@dataclass(frozen=True, slots=True)
class BlockEntries:
    """A block with its tensors, for the batcher.

    Its entries are the records, then the failures.
    """

    read: ReadBlock
    decoded: DecodedBlock
    sequences: RecordSequences | None = None
    failures: tuple[Failure, ...] = field(init=False)
    """All failed entries of the block, in order."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "failures", (*self.decoded.failures, *self.read.block.failures))

    def cursor_after(self, entries: int) -> Cursor:
        """Return the resume position after the first `entries` entries."""
        block = self.read.block
        if self.read.last and entries == block.records:
            return Cursor(self.read.index + 1)
        if entries == block.records:
            return Cursor(self.read.index, position_after(block))
        first = block.first
        position = Position(
            object=first.object,
            member=first.member,
            record=first.record + entries,
            member_byte=first.member_byte,
        )
        return Cursor(self.read.index, position)

    def span(self, start: int, stop: int) -> "Span":
        """Return the entries ``start..stop``.

        A span has the decoded records, their tensor rows, and the failures among the entries.
        """
        block, decoded = self.read.block, self.decoded
        stop_record = min(stop, len(block))
        start_record = min(start, stop_record)
        if decoded.rows is None:
            selection = BlockSelection(block, start_record, stop_record)
            low, high = start_record, stop_record
        else:
            low, high = (int(i) for i in np.searchsorted(decoded.rows, [start_record, stop_record]))
            selection = BlockSelection(block, start_record, stop_record, decoded.rows[low:high])
        first = block.first.record
        begin, end = (bisect_left(self.failures, first + entry, key=_record_of) for entry in (start, stop))
        failures = self.failures[begin:end]
        tensors = {name: data[low:high] for name, data in decoded.tensors.items()}
        return Span(selection, tensors, failures, self.read.index, self.sequences)


def _record_of(failure: Failure) -> int:
    return failure.position.record


@dataclass(frozen=True, slots=True)
class Span:
    """The part of one block that belongs to a batch."""

    selection: BlockSelection
    tensors: Mapping[str, Array]
    failures: tuple[Failure, ...]
    index: int = 0
    """The index of the object, as in `ReadBlock`."""
    sequences: RecordSequences | None = None
    """The sequences of all records of the block."""


@dataclass(frozen=True, slots=True)
class ScoredSpan:
    """The predicted records and the failed records of one block."""

    selection: BlockSelection
    failures: tuple[Failure, ...]
    index: int = 0


@dataclass(frozen=True, slots=True)
class ScoredBatch:
    """A batch with its predictions, in source order.

    Row i of every output belongs to the i-th record of all `selections`. The number of entries
    equals rows plus failures. `broken` counts failures of objects (kind OBJECT) rather than
    records. `replay` is for a resumption after this batch.
    """

    spans: tuple[ScoredSpan, ...]
    outputs: Mapping[str, Array]
    entries: int
    end: Cursor
    replay: Replay | None = None

    @property
    def selections(self) -> list[BlockSelection]:
        """The predicted records, in order."""
        return [s.selection for s in self.spans if len(s.selection)]

    @property
    def failures(self) -> list[Failure]:
        """The failed records, in order."""
        return [f for s in self.spans for f in s.failures]

    @property
    def rows(self) -> int:
        """The number of predicted records."""
        return sum(len(s.selection) for s in self.spans)

    @property
    def broken(self) -> int:
        """The number of failures of objects or members."""
        return sum(f.kind is FailureKind.OBJECT for f in self.failures)

    def outcomes(self) -> Sequence[Outcome]:
        """Return one outcome per record, in source order. Sinks use the arrays instead."""
        found: list[Outcome] = []
        row = 0
        for span in self.spans:
            failures = iter(span.failures)
            failure = next(failures, None)
            for index in selected_rows(span.selection):
                number = span.selection.block.first.record + int(index)
                while failure is not None and failure.position.record < number:
                    found.append(failure)
                    failure = next(failures, None)
                found.append(self._prediction(span.selection.block, int(index), row))
                row += 1
            if failure is not None:
                found.extend((failure, *failures))
        return found

    def _prediction(self, block: Block, index: int, row: int) -> Prediction:
        outputs = {name: data[row] for name, data in self.outputs.items()}
        return Prediction(block.position(index), outputs, block.record(index))


def selected_rows(selection: BlockSelection) -> NDArray[np.int64]:
    """Return the indices of the selected records in their block."""
    return np.arange(selection.start, selection.stop) if selection.rows is None else selection.rows
