"""Records that were tried again, merged back into their object's output, each where its prediction would have stood.

Arrives: an object's failed records, and what came of those that were tried. Leaves: its new output and failed records as
drafts, so that both can be published, and published again, whatever happens in between.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from headrace.core.block import Failure, Position
from headrace.formats.failures import FailedRecord, failed_record_line
from headrace.storage.contract import Store
from headrace.storage.draft import Draft
from headrace.transforms.retry_source import Retried

_COPY_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class Recovered:
    """A record that is predicted now: the bytes that its output gains."""

    record: FailedRecord
    text: bytes


Outcome = Recovered | FailedRecord


def in_place(retried: Retried, recovered: Sequence[Recovered], failed: Sequence[Failure]) -> list[Outcome]:
    """All of an object's failed records with what became of them, in the object's order.

    `failed` are those that were tried and failed again; their `position.record` is their number among the tried.
    """
    found: dict[Position, Outcome] = {one.record.failure.position: one for one in recovered}
    for failure in failed:
        before = retried.tried[failure.position.record]
        again = replace(
            before.failure,
            kind=failure.kind,
            why=failure.why,
            attempts=before.failure.attempts + failure.attempts,
        )
        found[before.failure.position] = replace(before, failure=again)
    return [found.get(record.failure.position, record) for record in retried.all]


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
    """Write the output at `uri` with what was recovered, and the failed records that are left with their new places.

    The output's first `begin_bytes` stand before its first record. `header` is what would stand there if the first of
    those that were recovered were the object's first, as it may be now. Returns how many bytes stand there now.
    """
    size = store.head(uri).size_bytes or 0
    first = next((o.record for o in outcomes if isinstance(o, Recovered)), None)
    begins = first is not None and not first.output_row
    begin = header if begins else b"".join(_pieces(store, uri, 0, begin_bytes))
    out.write(begin)
    at, gained_rows, gained_bytes = begin_bytes, 0, len(begin) - begin_bytes
    for outcome in outcomes:
        if isinstance(outcome, FailedRecord):
            failed.write(failed_record_line(_moved(outcome, begin_bytes, gained_rows, gained_bytes)))
            continue
        place = max(outcome.record.output_byte, begin_bytes)
        for piece in _pieces(store, uri, at, place):
            out.write(piece)
        at = place
        out.write(outcome.text)
        gained_bytes += len(outcome.text)
        gained_rows += 1
    for piece in _pieces(store, uri, at, size):
        out.write(piece)
    return len(begin)


def _moved(record: FailedRecord, begin_bytes: int, gained_rows: int, gained_bytes: int) -> FailedRecord:
    """A failed record behind so much more; what fails before any record is predicted does so before the header."""
    row = record.output_row + gained_rows
    byte = max(record.output_byte, begin_bytes) + gained_bytes
    return replace(record, output_row=row, output_byte=byte if row else 0)


def _pieces(store: Store, uri: str, start: int, stop: int) -> Iterator[bytes]:
    while start < stop:
        piece = store.get_range(uri, start, min(_COPY_BYTES, stop - start))
        yield piece
        start += len(piece)
