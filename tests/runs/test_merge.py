"""Recovered records are merged into the output, for every mix of outcomes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.block import Failure, FailureKind, Position
from headrace.formats.failures import FailedRecord, read_failed_records
from headrace.runs.retry_records import RecoveredRecord, ordered_outcomes, select_retryable, write_merged
from headrace.storage.contract import ObjectInfo
from headrace.storage.draft import open_draft
from headrace.storage.resolve import MemoryStore

URI = "memory://out/a.out"
TEXTS = st.binary(max_size=5).map(lambda text: text + b"\n")


def written(records: list[tuple[bytes, bool]], header: bytes) -> tuple[bytes, list[FailedRecord]]:
    """Return an output and its failed records, for (text, predicted) pairs."""
    out, failed, rows = b"", [], 0
    for number, (text, predicted) in enumerate(records):
        if not predicted:
            failure = Failure(Position("o", record=number), FailureKind.MODEL, "no", b"r")
            failed.append(FailedRecord(failure, rows, len(out)))
            continue
        out += (header if not rows else b"") + text
        rows += 1
    return out, failed


@given(
    st.lists(st.tuples(TEXTS, st.sampled_from(["predicted", "recovered", "failed"])), max_size=12),
    st.sampled_from([b"", b"y\n", b"a,longer,header\n"]),
    st.integers(1, 9),
)
def test_merged_output_equals_a_run_without_these_failures(records, header, piece_bytes):
    before, failed = written([(text, fate == "predicted") for text, fate in records], header)
    expected, still = written([(text, fate != "failed") for text, fate in records], header)
    store = MemoryStore()
    store.put(URI, before)
    fates = {n: records[n] for n in range(len(records))}
    outcomes = [
        RecoveredRecord(f, fates[f.failure.position.record][0])
        if fates[f.failure.position.record][1] == "recovered"
        else f
        for f in failed
    ]
    begin_bytes = len(header) if before else 0
    out, left = open_draft(store, "memory://out/d1"), open_draft(store, "memory://out/d2")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headrace.runs.retry_records._COPY_BYTES", piece_bytes)
        begin = write_merged(store, URI, outcomes, out, left, header=header, begin_bytes=begin_bytes)
    out.publish("memory://out/merged")
    left.publish("memory://out/left")
    assert store.get("memory://out/merged") == expected
    assert list(read_failed_records(store.get("memory://out/left").splitlines())) == still
    assert begin == (len(header) if expected else 0)


def test_records_of_a_part_that_was_not_written_are_merged():
    """A part whose records all failed has only the file of failed records."""
    _, failed = written([(b"0\n", False), (b"1\n", False)], b"y\n")
    store = MemoryStore()
    out, left = open_draft(store, "memory://out/d1"), open_draft(store, "memory://out/d2")
    outcomes = [failed[0], RecoveredRecord(failed[1], b"1\n")]
    assert write_merged(store, URI, outcomes, out, left, header=b"y\n", begin_bytes=0) == 2
    out.publish("memory://out/merged")
    left.publish("memory://out/left")
    assert store.get("memory://out/merged") == b"y\n1\n"
    assert list(read_failed_records(store.get("memory://out/left").splitlines())) == [failed[0]]


def failed_record(number: int, kind: FailureKind = FailureKind.MODEL, attempts: int = 1) -> FailedRecord:
    return FailedRecord(Failure(Position("o", record=number), kind, "why", b"raw", attempts), number, 0)


def test_record_that_fails_again_keeps_its_position_and_adds_attempts():
    found = [
        failed_record(3, attempts=2),
        failed_record(5, FailureKind.FORMAT),
        failed_record(8),
        failed_record(9),
    ]
    retried = select_retryable(ObjectInfo("o", 1), found)
    assert [f.failure.position.record for f in retried.retryable] == [3, 8, 9]
    recovered = RecoveredRecord(found[2], b"text")
    again = Failure(Position("o", record=0), FailureKind.DECODE, "other", b"other", 3)
    first, unchanged, taken, silent = ordered_outcomes(retried, [recovered], [again])
    assert isinstance(first, FailedRecord)
    assert first.failure == Failure(Position("o", record=3), FailureKind.DECODE, "other", b"raw", 5)
    assert (unchanged, taken, silent) == (found[1], recovered, found[3])
