"""The values that pass between the stages of a flow, and the bounded queue that they pass through."""

import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.core.block import Block, Failure, FailureKind, Outcome, Position, Prediction
from headrace.core.tensor import Array
from headrace.formats.contract import BlockSelection, DecodedBlock
from headrace.formats.read import position_after

T = TypeVar("T")


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
class RecordSequences:
    """The sequence of each record of a block.

    `ids` are str ``[records]``; the id is empty for a record without one, which is also in
    `failures`. `ends` are bool ``[records]``: True for the last record of its sequence. `place` is
    not None if all records form one sequence because they come from one object or member. Another
    place is another sequence, even with the same id.
    """

    ids: Array
    ends: NDArray[np.bool_]
    failures: tuple[Failure, ...] = ()
    place: int | None = None


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
            record=block.number(entries - 1) + 1 if entries else first.record,
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
        begin, end = (
            bisect_left(self.failures, block.number(entry), key=_record_of) for entry in (start, stop)
        )
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
    equals rows plus failures. `replay` is for a resumption after this batch.
    """

    spans: tuple[ScoredSpan, ...]
    outputs: Mapping[str, Array]
    entries: int
    end: Cursor
    replay: Replay | None = None
    rows: int = field(init=False, repr=False, compare=False)
    """The number of predicted records."""
    failures: list[Failure] = field(init=False, repr=False, compare=False)
    """The failed records, in order."""
    broken: int = field(init=False, repr=False, compare=False)
    """The number of failures of objects or members (kind OBJECT) rather than records."""

    def __post_init__(self) -> None:
        failures = [failure for span in self.spans for failure in span.failures]
        object.__setattr__(self, "rows", sum(len(span.selection) for span in self.spans))
        object.__setattr__(self, "failures", failures)
        object.__setattr__(self, "broken", [f.kind for f in failures].count(FailureKind.OBJECT))

    @property
    def selections(self) -> list[BlockSelection]:
        """The predicted records, in order."""
        return [s.selection for s in self.spans if len(s.selection)]

    def outcomes(self) -> Sequence[Outcome]:
        """Return one outcome per record, in source order. Sinks use the arrays instead."""
        found: list[Outcome] = []
        row = 0
        for span in self.spans:
            failures = iter(span.failures)
            failure = next(failures, None)
            for index in selected_rows(span.selection):
                number = span.selection.block.number(int(index))
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


class ChannelClosedError(Exception):
    """The receiver closed the channel; the sender should stop. It never leaves the flow."""


class EndOfChannelError(Exception):
    """The sender finished, and every item was received. It never leaves the flow."""


class Channel(Generic[T]):
    """A queue with one sender and one receiver.

    `send` blocks while the waiting items weigh `weight_max` or more, so the channel holds at most
    that weight and one item. An item may wait for a future, and the items after it with it: the
    receiver's thread wakes only when the head is ready. The receiver gets items sent before `finish`
    or `fail` first. After `close` by the receiver, `send` raises ChannelClosedError.
    """

    def __init__(self, weight_max: int) -> None:
        self._weight_max = weight_max
        self._items: deque[tuple[T, int, Future[Any] | None]] = deque()
        self._weight = 0
        self._lock = threading.Lock()
        self._not_full = threading.Condition(self._lock)
        self._ready = threading.Condition(self._lock)
        self._finished = False
        self._closed = False
        self._error: BaseException | None = None

    def send(self, item: T, weight: int, future: Future[Any] | None = None) -> None:
        """Add an item, which is ready when `future` is done. Block while the channel is full."""
        with self._lock:
            while self._weight >= self._weight_max and not self._closed:
                self._not_full.wait()
            if self._closed:
                raise ChannelClosedError
            self._items.append((item, weight, future))
            self._weight += weight
            if future is None:
                self._ready.notify()
        if future is not None:
            future.add_done_callback(self._on_done)

    def _on_done(self, future: Future[Any]) -> None:
        with self._lock:
            if self._items and self._items[0][2] is future:
                self._ready.notify()

    def finish(self) -> None:
        """Mark the end of the items."""
        with self._lock:
            self._finished = True
            self._ready.notify()

    def fail(self, error: BaseException) -> None:
        """Mark the end of the items with an error. The receiver gets it after all items."""
        with self._lock:
            self._error = error
            self._finished = True
            self._ready.notify()

    def close(self) -> None:
        """Stop receiving, and drop the waiting items."""
        with self._lock:
            self._closed = True
            self._items.clear()
            self._not_full.notify()
            self._ready.notify()

    def receive(self, timeout_s: float | None = None) -> T | None:
        """Return the next item, or None if none was ready within `timeout_s`.

        Raises:
            EndOfChannelError: The sender finished. If it failed, its error is raised instead.
        """
        with self._lock:
            while not self._head_is_ready():
                if self._closed or (self._finished and not self._items):
                    raise self._error or EndOfChannelError
                if not self._ready.wait(timeout_s):
                    return None
            item, weight, _ = self._items.popleft()
            self._weight -= weight
            self._not_full.notify()
            return item

    def _head_is_ready(self) -> bool:
        if not self._items:
            return False
        future = self._items[0][2]
        return future is None or future.done()
