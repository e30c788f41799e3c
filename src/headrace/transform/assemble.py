"""An object's ranges put together: their drafts, one behind the other, and their failed records with true positions.

Arrives: the records of all shards of one object. Leaves: ``KEY.out`` and ``KEY.out.failed``; or the first shard whose begin
was guessed wrong, which must be done again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from headrace.core.block import Failure
from headrace.formats.failures import FailedRecord, failed_record_line, read_failed_records
from headrace.storage.contract import Store
from headrace.storage.draft import assemble, discard, open_draft, read_kept
from headrace.transform.ledger import ShardRecord, Spot, TransformLedger
from headrace.transform.plan import PlannedObject


@dataclass(frozen=True, slots=True)
class Base:
    """What stands before a shard in its object: where it begins, and how much output the shards before made."""

    begin: Spot
    rows: int = 0
    out_bytes: int = 0


def bases(records: Sequence[ShardRecord]) -> tuple[list[Base], int | None]:
    """What stands before each shard, and the number of the first that was guessed wrong (None: all are right).

    Only the bases up to that one are told. A shard without bounds (its object is no text) is taken as it is, and so is
    everything behind one where the object broke.
    """
    found: list[Base] = []
    base = Base(Spot(0, 0, 1))
    broken = False
    for record in records:
        begin, end = record.begin, record.end
        if record.number and begin is not None and begin.byte != base.begin.byte and not broken:
            return [*found, base], record.number
        broken = broken or bool(record.counts.objects_broken)
        found.append(base)
        at = base.begin if end is None else _absolute(record, base, end)
        base = Base(at, base.rows + record.counts.rows_out, base.out_bytes + record.out_bytes)
    return found, None


def _absolute(record: ShardRecord, base: Base, spot: Spot) -> Spot:
    """A place told from the shard's own begin, or from the object's."""
    if not record.relative:
        return spot
    return Spot(spot.byte, spot.record + base.begin.record, spot.line + base.begin.line - 1)


def publish_object(
    ledger: TransformLedger, planned: PlannedObject, records: Sequence[ShardRecord], *, withheld: bool
) -> None:
    """Publish an object's output, and its failed records if there are any; `withheld` leaves the output out."""
    store, destination = ledger.store, ledger.destination
    name = f"object-{records[0].index}"
    if withheld:
        store.delete(destination + planned.output)
    else:
        parts = [record.out for record in records if record.out is not None]
        assemble(store, parts, ledger.draft_uri(f"{name}.out"), destination + planned.output)
    if any(record.failed is not None for record in records):
        _publish_failed(store, records, ledger.draft_uri(f"{name}.failed"), destination + planned.failed)
    ledger.commit_object(records[0].index)
    for record in records:
        for part in (record.out, record.failed):
            if part is not None:
                discard(store, part.kept)


def _publish_failed(store: Store, records: Sequence[ShardRecord], draft_uri: str, uri: str) -> None:
    draft = open_draft(store, draft_uri)
    for record, base in zip(records, bases(records)[0], strict=True):
        if record.failed is None:
            continue
        for failed in read_failed_records(_lines(read_kept(store, record.failed))):
            draft.write(failed_record_line(_placed(failed, record, base)))
    draft.publish(uri)


def _placed(failed: FailedRecord, record: ShardRecord, base: Base) -> FailedRecord:
    failure = _in_object(failed.failure, base) if record.relative else failed.failure
    return FailedRecord(failure, failed.output_row + base.rows, failed.output_byte + base.out_bytes)


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
