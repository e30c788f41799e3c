"""An object's ranges put together: their drafts, one behind the other, and their failed records with true positions.

Arrives: the records of all shards of one object. Leaves: ``KEY.out`` and ``KEY.out.failed``; or the first shard whose begin
was guessed wrong, which must be done again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from headrace.core.block import Failure
from headrace.formats.failures import FailedRecord, failed_record_line, read_failed_records
from headrace.storage.contract import Store
from headrace.storage.draft import KeptRange, assemble, discard, open_draft, read_kept
from headrace.transforms.ledger import TransformLedger
from headrace.transforms.plan import PlannedObject
from headrace.transforms.records import ShardRecord, Spot, repeated_bytes


@dataclass(frozen=True, slots=True)
class Base:
    """What stands before a shard in its object: where it begins, and how much output the shards before made.

    `begin` is only `known` where every shard before tells where it ended.
    """

    begin: Spot
    rows: int = 0
    out_bytes: int = 0
    known: bool = True


def bases(records: Sequence[ShardRecord]) -> tuple[list[Base], int | None]:
    """What stands before each shard and behind the last, and the number of the first that was guessed wrong.

    Only the bases up to that one are told; None: all are right. Where a shard has no bounds, since its object broke or
    is no text, nothing can be said of the ones behind it: they are taken as they are.
    """
    found = [Base(Spot(0, 0, 1))]
    for record, repeated in zip(records, repeated_bytes(records), strict=True):
        base = found[-1]
        if base.known and record.number and record.begin is not None and record.begin.byte != base.begin.byte:
            return found, record.number
        known = base.known and record.end is not None
        at = _absolute(record, base, record.end) if record.end is not None else base.begin
        out_bytes = base.out_bytes + record.out_bytes - repeated
        found.append(Base(at, base.rows + record.counts.rows_out, out_bytes, known))
    return found, None


def _absolute(record: ShardRecord, base: Base, spot: Spot) -> Spot:
    """A place told from the shard's own begin, or from the object's."""
    if not record.relative:
        return spot
    return Spot(spot.byte, spot.record + base.begin.record, spot.line + base.begin.line - 1)


def publish_object(
    ledger: TransformLedger,
    planned: PlannedObject,
    records: Sequence[ShardRecord],
    *,
    withheld: bool,
    attempt: str,
) -> None:
    """Publish an object's output, and its failed records if there are any; `withheld` leaves the output out.

    `attempt` names the drafts that this needs. Raises NotFoundError where another process has done it, and removed the
    ranges' drafts.
    """
    store, destination = ledger.store, ledger.destination
    name = f"object-{records[0].index}-{attempt}"
    if withheld:
        store.delete(destination + planned.output)
    else:
        pairs = zip(records, repeated_bytes(records), strict=True)
        parts = [_without(r.out, repeated) for r, repeated in pairs if r.out is not None]
        # Behind the last of all ranges nobody writes. Behind another one a worker may that was given up and lives.
        ended = records[-1].out is not None
        assemble(store, parts, ledger.draft_uri(f"{name}.out"), destination + planned.output, ended=ended)
    if any(record.failed is not None for record in records):
        _publish_failed(store, records, ledger.draft_uri(f"{name}.failed"), destination + planned.failed)
    ledger.commit_object(records[0].index)
    for record in records:
        for part in (record.out, record.failed):
            if part is not None:
                discard(store, part.kept)


def _without(part: KeptRange, nbytes: int) -> KeptRange:
    """The range without its first bytes."""
    return KeptRange(part.kept, part.start + nbytes, part.stop)


def _publish_failed(store: Store, records: Sequence[ShardRecord], draft_uri: str, uri: str) -> None:
    draft = open_draft(store, draft_uri)
    for record, repeated, base in zip(records, repeated_bytes(records), bases(records)[0], strict=False):
        if record.failed is None:
            continue
        for failed in read_failed_records(_lines(read_kept(store, record.failed))):
            draft.write(failed_record_line(_placed(failed, record, repeated, base)))
    draft.publish(uri)


def _placed(failed: FailedRecord, record: ShardRecord, repeated: int, base: Base) -> FailedRecord:
    failure = _in_object(failed.failure, base) if record.relative else failed.failure
    # What failed before the first prediction stands before the shard's own begin.
    byte = max(0, failed.output_byte - repeated)
    return FailedRecord(failure, failed.output_row + base.rows, byte + base.out_bytes)


def _in_object(failure: Failure, base: Base) -> Failure:
    at = failure.position
    position = replace(at, record=at.record + base.begin.record, line=at.line + base.begin.line - 1)
    return replace(failure, position=position)


def _lines(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Whole lines of a text that comes in pieces."""
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        yield from lines
    if rest:
        yield rest
