"""Merge the results of retried records into the output of their object, in the object's order.

Input: an object's failed records and the results of the retry. Output: the new output and the
remaining failed records as drafts, so that both can be published, again if necessary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from headrace.core.block import Failure, Position
from headrace.core.errors import NotFoundError
from headrace.formats.failures import FailedRecord, failed_record_line
from headrace.runs.retry_source import ObjectFailures
from headrace.storage.contract import Store
from headrace.storage.draft import Draft

_COPY_BYTES: Final = 8 << 20


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
