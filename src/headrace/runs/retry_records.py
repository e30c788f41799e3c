"""Failed records, one by one: read them into blocks again, and merge the results into their outputs.

Input: an object's failed records. Output: blocks whose record i is the i-th retryable record; then
the new output and the remaining failed records as drafts, so that both can be published, again if
necessary.
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from headrace.core.block import RAW_BYTES_KEPT_MAX, Block, Failure, FailureKind, Position
from headrace.core.errors import DataError, NotFoundError
from headrace.formats.contract import BlockSelection
from headrace.formats.failures import FailedRecord, failed_record_line
from headrace.formats.read import format_name
from headrace.formats.read_options import V2, ReadOptions
from headrace.runs.encoders import Encoders
from headrace.runs.items import BlockSource, ReadBlock, ScoredBatch, selected_rows
from headrace.runs.table_source import object_blocks
from headrace.storage.contract import ObjectInfo, Store
from headrace.storage.draft import Draft
from headrace.storage.resolve import Stores

_TEXTS: Final = frozenset({"csv", "jsonl", V2, "line"})
"""Formats whose records are completely described by their bytes."""
_RECORDS_MAX: Final = 4096
"""The maximal number of records of a block."""
_COPY_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class ObjectFailures:
    """An object's failed records in one output, in order; those in `retryable` are retried."""

    info: ObjectInfo
    records: tuple[FailedRecord, ...]
    retryable: tuple[FailedRecord, ...]


@dataclass(frozen=True, slots=True)
class OutputFailures:
    """The failed records of an output, by object in the order of the source."""

    number: int
    objects: tuple[ObjectFailures, ...]

    @property
    def nbytes(self) -> int:
        """The size of the records."""
        return sum(len(f.failure.raw) for one in self.objects for f in one.records)


def select_retryable(info: ObjectInfo, failed: Sequence[FailedRecord]) -> ObjectFailures:
    """Select the failed records that could succeed: all except those with an invalid format."""
    retryable = tuple(f for f in failed if f.failure.kind in (FailureKind.DECODE, FailureKind.MODEL))
    return ObjectFailures(info, tuple(failed), retryable)


def needs_object(object_failures: ObjectFailures, read: ReadOptions) -> bool:
    """Return True if the stored bytes do not suffice: records of no text, long records, archives."""
    return not _has_raw_records(object_failures, read) or _has_column_names(object_failures.info, read)


def _has_raw_records(object_failures: ObjectFailures, read: ReadOptions) -> bool:
    if format_name(object_failures.info.uri, read) not in _TEXTS:
        return False
    failures = [f.failure for f in object_failures.retryable]
    return all(f.position.member is None and 0 < len(f.raw) < RAW_BYTES_KEPT_MAX for f in failures)


def _has_column_names(info: ObjectInfo, read: ReadOptions) -> bool:
    """Return True if the object's first bytes name the columns, which the model may need."""
    return read.has_column_names and format_name(info.uri, read) == "csv"


class RetrySource(BlockSource):
    """A source of blocks of the retryable records, object by object.

    The positions of a block are not those of its records: record i of object `index` is
    ``objects[index].retryable[i]``.
    """

    def __init__(self, objects: Sequence[ObjectFailures], stores: Stores, read: ReadOptions) -> None:
        self._objects = objects
        self._stores = stores
        self._read = read
        self.bytes_read = 0
        self.objects_read = 0

    @property
    @override
    def reading(self) -> str:
        return ""

    @override
    def close(self) -> None:
        """Do nothing: the source does not read ahead."""

    @override
    def blocks(self) -> Iterator[ReadBlock]:
        """Yield all blocks. Raises the errors of reading an object, which must be unchanged."""
        for index, object_failures in enumerate(self._objects):
            for block in self._object_blocks(object_failures):
                yield ReadBlock(block, index)
            self.objects_read += 1

    def _object_blocks(self, object_failures: ObjectFailures) -> Iterator[Block]:
        uri = object_failures.info.uri
        if not _has_raw_records(object_failures, self._read):
            yield from self._from_object(object_failures)
            return
        raws = [f.failure.raw for f in object_failures.retryable]
        names = (
            self._column_names(object_failures.info)
            if _has_column_names(object_failures.info, self._read)
            else None
        )
        for start in range(0, len(raws), _RECORDS_MAX):
            data, starts, ends = _as_lines(raws[start : start + _RECORDS_MAX])
            yield Block(Position(uri, record=start), data, starts, ends, column_names=names)

    def _column_names(self, info: ObjectInfo) -> tuple[str, ...] | None:
        with closing(self._all_blocks(info)) as blocks:
            head = next(blocks, None)
        return None if head is None else head.column_names

    def _from_object(self, object_failures: ObjectFailures) -> Iterator[Block]:
        """Read the object again and yield only the retryable records."""
        positions = enumerate(f.failure.position for f in object_failures.retryable)
        wanted = {(p.member, p.member_byte, p.record): number for number, p in positions}
        left = len(wanted)
        with closing(self._all_blocks(object_failures.info)) as blocks:
            while left and (block := next(blocks, None)) is not None:
                first = block.first
                at = (first.member, first.member_byte)
                rows = [i for i in range(len(block)) if (*at, first.record + i) in wanted]
                if rows:
                    # The rows have consecutive numbers, because failed records are in order.
                    number = wanted[(*at, first.record + rows[0])]
                    yield select_rows(block, rows, replace(first, record=number))
                left -= len(rows)

    def _all_blocks(self, info: ObjectInfo) -> Generator[Block]:
        yield from object_blocks(info, self._stores, self._read, self._chunks(info))

    def _chunks(self, info: ObjectInfo) -> Iterator[bytes]:
        for chunk in self._stores.for_uri(info.uri).stream(info.uri, etag=info.etag):
            self.bytes_read += len(chunk)
            yield chunk


def _as_lines(raws: Sequence[bytes]) -> tuple[bytes, NDArray[np.int64], NDArray[np.int64]]:
    """Return records as lines, with the start and end of each."""
    ends = np.cumsum([len(raw) + 1 for raw in raws]) - 1
    starts = np.concatenate(([0], ends[:-1] + 1))
    return b"\n".join(raws) + b"\n", starts, ends


def select_rows(block: Block, rows: Sequence[int], first: Position) -> Block:
    """Return some records of a block as a block of their own that starts at `first`."""
    taken = block.take(np.array(rows, np.int64))
    # The records are numbered anew, so their lines are no longer consecutive.
    return replace(taken, first=first, places=None, line_end=b"")


@dataclass(frozen=True, slots=True)
class RecoveredRecord:
    """A record that the retry predicted, and the bytes that it adds to the output."""

    record: FailedRecord
    text: bytes


Outcome = RecoveredRecord | FailedRecord


def ordered_outcomes(
    object_failures: ObjectFailures, recovered: Sequence[RecoveredRecord], failed: Sequence[Failure]
) -> list[Outcome]:
    """Return the outcome of each failed record, in the object's order.

    `failed` are the records that failed again. Their `position.record` is an index into
    `retryable`.
    """
    found: dict[Position, Outcome] = {one.record.failure.position: one for one in recovered}
    for failure in failed:
        before = object_failures.retryable[failure.position.record]
        repeated = replace(
            before.failure,
            kind=failure.kind,
            why=failure.why,
            attempts=before.failure.attempts + failure.attempts,
        )
        found[before.failure.position] = replace(before, failure=repeated)
    return [found.get(record.failure.position, record) for record in object_failures.records]


def write_merged(
    store: Store,
    uri: str,
    outcomes: Sequence[Outcome],
    out: Draft,
    failed: Draft,
    *,
    header: bytes,
    begin_bytes: int,
) -> int:
    """Write the output at `uri` with the recovered records, and the remaining failed records, to drafts.

    The first `begin_bytes` of the output precede its first record. `header` replaces them if a
    recovered record becomes the object's first. Failed records get their new output positions.
    Returns the number of bytes that now precede the first record.
    """
    try:
        size = store.head(uri).size_bytes or 0
    except NotFoundError:
        size = 0  # a part whose records all failed
    first = next((o.record for o in outcomes if isinstance(o, RecoveredRecord)), None)
    starts_output = first is not None and not first.output_row
    begin = header if starts_output else b"".join(_chunks(store, uri, 0, begin_bytes))
    out.write(begin)
    at, gained_rows, gained_bytes = begin_bytes, 0, len(begin) - begin_bytes
    for outcome in outcomes:
        if isinstance(outcome, FailedRecord):
            failed.write(failed_record_line(_shifted(outcome, begin_bytes, gained_rows, gained_bytes)))
            continue
        place = max(outcome.record.output_byte, begin_bytes)
        for chunk in _chunks(store, uri, at, place):
            out.write(chunk)
        at = place
        out.write(outcome.text)
        gained_bytes += len(outcome.text)
        gained_rows += 1
    for chunk in _chunks(store, uri, at, size):
        out.write(chunk)
    return len(begin)


def _shifted(record: FailedRecord, begin_bytes: int, gained_rows: int, gained_bytes: int) -> FailedRecord:
    """Return a failed record with its output position moved by the added rows and bytes.

    A record that fails before any record is predicted has an output position before the header.
    """
    row = record.output_row + gained_rows
    byte = max(record.output_byte, begin_bytes) + gained_bytes
    return replace(record, output_row=row, output_byte=byte if row else 0)


def _chunks(store: Store, uri: str, start: int, stop: int) -> Iterator[bytes]:
    while start < stop:
        chunk = store.get_range(uri, start, min(_COPY_BYTES, stop - start))
        yield chunk
        start += len(chunk)


def with_true_positions(batch: ScoredBatch, objects: Sequence[ObjectFailures]) -> ScoredBatch:
    """Return the batch with its failures at their positions in the objects."""
    spans = (
        replace(
            span,
            failures=tuple(
                replace(f, position=objects[span.index].retryable[f.position.record].failure.position)
                for f in span.failures
            ),
        )
        for span in batch.spans
    )
    return replace(batch, spans=tuple(spans))


def record_outcomes(
    batch: ScoredBatch, objects: Sequence[ObjectFailures], encoders: Encoders
) -> Iterator[tuple[int, bytes, RecoveredRecord | Failure]]:
    """Yield the outcome of each record of a batch: its object's number, the header and the prediction.

    A record that does not have what the output filter selects fails; its position is its number
    among the retried records.
    """
    row = 0
    for span in batch.spans:
        block = span.selection.block
        encoder, header = None, b""
        places: list[int] = selected_rows(span.selection).tolist()
        for place in places:
            outputs = {name: data[row : row + 1] for name, data in batch.outputs.items()}
            row += 1
            if encoder is None:
                encoder = encoders.make(outputs, block)
                header = encoder.begin()
            record = objects[span.index].retryable[block.first.record + place]
            alone = select_rows(block, [place], record.failure.position)
            try:
                text = encoder.encode([BlockSelection(alone, 0, 1)], outputs)
            except DataError as error:
                yield span.index, header, block.failure(place, FailureKind.FORMAT, str(error))
                continue
            yield span.index, header, RecoveredRecord(record, text)
