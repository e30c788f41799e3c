"""Assemble the output of an object that several shards scored.

Input: the records of all shards of one object. Output: ``KEY.out`` and ``KEY.out.failed``, with
absolute positions; or the first shard whose start was guessed wrong and must be scored again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from headrace.core.block import Failure
from headrace.formats.failures import FailedRecord, failed_record_line, read_failed_records
from headrace.runs.ledger import TransformLedger
from headrace.runs.plan import PlannedObject
from headrace.runs.records import ShardPosition, ShardRecord, repeated_bytes
from headrace.storage.contract import Store
from headrace.storage.draft import PersistedRange, assemble, discard, open_draft, read_range


@dataclass(frozen=True, slots=True)
class ShardOffset:
    """The start of a shard in its object, and the output of the shards before it.

    `begin` is valid only if `is_known`: each shard before this one has a known end.
    """

    begin: ShardPosition
    rows: int = 0
    out_bytes: int = 0
    is_known: bool = True


def shard_offsets(records: Sequence[ShardRecord]) -> tuple[list[ShardOffset], int | None]:
    """Return the offset of each shard and of the object's end, and the first misplaced shard's number.

    The list ends before the first misplaced shard. The number is None if every start is right. A
    shard without bounds, because its object is broken or not text, says nothing about the shards
    after it; those are accepted as they are.
    """
    found = [ShardOffset(ShardPosition(0, 0, 1))]
    for record, repeated in zip(records, repeated_bytes(records), strict=True):
        offset = found[-1]
        if (
            offset.is_known
            and record.number
            and record.begin is not None
            and record.begin.byte != offset.begin.byte
        ):
            return found, record.number
        is_known = offset.is_known and record.end is not None
        at = _absolute_position(record, offset, record.end) if record.end is not None else offset.begin
        out_bytes = offset.out_bytes + record.out_bytes - repeated
        found.append(ShardOffset(at, offset.rows + record.counts.rows_out, out_bytes, is_known))
    return found, None


def _absolute_position(record: ShardRecord, offset: ShardOffset, position: ShardPosition) -> ShardPosition:
    """Return a position that counts from the shard's start as a position in the object."""
    if not record.relative:
        return position
    return ShardPosition(
        position.byte, position.record + offset.begin.record, position.line + offset.begin.line - 1
    )


def publish_object(
    ledger: TransformLedger,
    planned: PlannedObject,
    records: Sequence[ShardRecord],
    *,
    suppressed: bool,
    attempt: str,
) -> None:
    """Publish an object's output and failed records. `suppressed` leaves the output out.

    `attempt` is part of the drafts' names. Raises NotFoundError if another process has published
    the object and removed the drafts of its ranges.
    """
    store, destination = ledger.store, ledger.destination
    name = f"object-{records[0].index}-{attempt}"
    if suppressed:
        store.delete(destination + planned.output)
    else:
        pairs = zip(records, repeated_bytes(records), strict=True)
        parts = [_skip_bytes(r.out, repeated) for r, repeated in pairs if r.out is not None]
        # No worker writes after the last range. After another range, a lost worker may still write.
        ended = records[-1].out is not None
        assemble(store, parts, ledger.draft_uri(f"{name}.out"), destination + planned.output, ended=ended)
    if any(record.failed is not None for record in records):
        _publish_failed(store, records, ledger.draft_uri(f"{name}.failed"), destination + planned.failed)
    ledger.commit_object(records[0].index)
    for record in records:
        for part in (record.out, record.failed):
            if part is not None:
                discard(store, part.kept)


def _skip_bytes(part: PersistedRange, nbytes: int) -> PersistedRange:
    """Return the range without its first bytes."""
    return PersistedRange(part.kept, part.start + nbytes, part.stop)


def _publish_failed(store: Store, records: Sequence[ShardRecord], draft_uri: str, uri: str) -> None:
    draft = open_draft(store, draft_uri)
    for record, repeated, offset in zip(
        records, repeated_bytes(records), shard_offsets(records)[0], strict=False
    ):
        if record.failed is None:
            continue
        for failed in read_failed_records(_lines(read_range(store, record.failed))):
            draft.write(failed_record_line(_absolute_record(failed, record, repeated, offset)))
    draft.publish(uri)


def _absolute_record(
    failed: FailedRecord, record: ShardRecord, repeated: int, offset: ShardOffset
) -> FailedRecord:
    failure = _absolute_failure(failed.failure, offset) if record.relative else failed.failure
    # Records that fail before the first prediction have positions before the shard's header.
    byte = max(0, failed.output_byte - repeated)
    return FailedRecord(failure, failed.output_row + offset.rows, byte + offset.out_bytes)


def _absolute_failure(failure: Failure, offset: ShardOffset) -> Failure:
    at = failure.position
    position = replace(at, record=at.record + offset.begin.record, line=at.line + offset.begin.line - 1)
    return replace(failure, position=position)


def _lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the lines of a text that arrives in chunks."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
    if rest:
        yield rest
