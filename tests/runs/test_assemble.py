"""Shards are assembled into the output of their object."""

import pytest

from headrace.core.block import Failure, FailureKind, Position
from headrace.core.errors import NotFoundError
from headrace.formats.failures import FailedRecord, failed_record_line, read_failed_records
from headrace.runs.assemble import ShardOffset, publish_object, shard_offsets
from headrace.runs.ledger import TransformLedger
from headrace.runs.part_ledger import Counts
from headrace.runs.plan import PlannedObject
from headrace.runs.records import ShardPosition, ShardRecord
from headrace.storage.contract import ObjectInfo
from headrace.storage.draft import open_draft
from headrace.storage.local import LocalStore
from headrace.storage.memory import MemoryStore

URI = "memory://in/a.csv"
PLANNED = PlannedObject(ObjectInfo(URI, 90), "a.csv.out")


@pytest.fixture(params=["disk", "memory"])
def ledger(request, tmp_path) -> TransformLedger:
    if request.param == "disk":
        return TransformLedger(LocalStore(), f"{tmp_path}/out/")
    return TransformLedger(MemoryStore(), "memory://out/")


def shard(number, begin, end, *, rows=0, out_bytes=0, relative=False, **more) -> ShardRecord:
    positions = [None if s is None else ShardPosition(*s) for s in (begin, end)]
    return ShardRecord(0, number, Counts(rows, rows), out_bytes, *positions, relative=relative, **more)


def test_shard_offsets_add_up():
    records = [
        shard(0, (0, 0, 1), (12, 3, 4), rows=3, out_bytes=20, begin_bytes=2),
        shard(1, (12, 0, 1), (30, 5, 8), rows=4, out_bytes=30, begin_bytes=2, relative=True),
        shard(2, (30, 8, 11), (40, 9, 12), rows=1, out_bytes=10, begin_bytes=2),
    ]
    found, misplaced = shard_offsets(records)
    assert misplaced is None
    assert found == [
        ShardOffset(ShardPosition(0, 0, 1)),
        ShardOffset(ShardPosition(12, 3, 4), 3, 20),
        ShardOffset(ShardPosition(30, 8, 11), 7, 48),
        ShardOffset(ShardPosition(40, 9, 12), 8, 56),
    ]


def test_first_misplaced_shard_ends_the_offsets():
    records = [
        shard(0, (0, 0, 1), (12, 3, 4)),
        shard(1, (16, 0, 1), (30, 5, 6), relative=True),
        shard(2, (99, 0, 1), (120, 5, 6), relative=True),
    ]
    found, misplaced = shard_offsets(records)
    assert misplaced == 1
    assert found == [ShardOffset(ShardPosition(0, 0, 1)), ShardOffset(ShardPosition(12, 3, 4))]


def test_shards_after_an_unknown_end_are_accepted():
    records = [
        shard(0, (0, 0, 1), (12, 3, 4)),
        shard(1, None, None),
        shard(2, (99, 0, 1), (120, 5, 6), relative=True),
    ]
    found, misplaced = shard_offsets(records)
    assert misplaced is None
    assert [base.is_known for base in found] == [True, True, False, False]


def persist_draft(ledger, name: str, data: bytes):
    draft = open_draft(ledger.store, ledger.draft_uri(name))
    draft.write(data)
    persisted = draft.persist()
    draft.close()
    return persisted.full_range


def failed_line(record: int, line: int, byte: int, row: int, out_byte: int) -> bytes:
    failure = Failure(Position(URI, record=record, line=line, byte=byte), FailureKind.DECODE, "why", b"raw")
    return failed_record_line(FailedRecord(failure, row, out_byte))


def shards_of(ledger) -> list[ShardRecord]:
    """Return three shards of two records, two of them with failures; the second has relative
    positions.
    """
    return [
        shard(
            0,
            (0, 0, 1),
            (12, 3, 4),
            out=persist_draft(ledger, "0.out", b"y\n0\n1\n"),
            failed=persist_draft(ledger, "0.failed", failed_line(0, 1, 0, 0, 0)),
            rows=2,
            out_bytes=6,
            begin_bytes=2,
        ),
        shard(
            1,
            (12, 0, 1),
            (30, 3, 5),
            out=persist_draft(ledger, "1.out", b"y\n2\n3\n"),
            failed=persist_draft(
                ledger, "1.failed", failed_line(0, 1, 12, 0, 0) + failed_line(2, 4, 20, 2, 6)
            ),
            rows=2,
            out_bytes=6,
            begin_bytes=2,
            relative=True,
        ),
        shard(
            2,
            (30, 6, 8),
            (40, 9, 12),
            out=persist_draft(ledger, "2.out", b"y\n4\n5\n"),
            rows=2,
            out_bytes=6,
            begin_bytes=2,
        ),
    ]


def test_shards_are_joined_with_one_header_and_absolute_failures(ledger):
    publish_object(ledger, PLANNED, shards_of(ledger), suppressed=False, attempt="x")
    assert ledger.store.get(ledger.destination + "a.csv.out") == b"y\n0\n1\n2\n3\n4\n5\n"
    lines = ledger.store.get(ledger.destination + "a.csv.out.failed").splitlines()
    found = [(f.failure.position, f.output_row, f.output_byte) for f in read_failed_records(lines)]
    assert found == [
        (Position(URI, record=0, line=1, byte=0), 0, 0),
        (Position(URI, record=3, line=4, byte=12), 2, 6),
        (Position(URI, record=5, line=7, byte=20), 4, 10),
    ]
    assert ledger.assembled_objects() == {0}
    assert not list(ledger.store.list(ledger.uri("drafts/")))


def test_object_without_output_is_published_empty(ledger):
    publish_object(
        ledger, PLANNED, [shard(0, None, None), shard(1, None, None)], suppressed=False, attempt="x"
    )
    assert ledger.store.get(ledger.destination + "a.csv.out") == b""
    assert [i.uri for i in ledger.store.list(ledger.destination + "a")] == [ledger.destination + "a.csv.out"]


def test_late_writer_does_not_change_a_published_object(tmp_path):
    """The writer is a lost worker. Its draft has the range after the object's break."""
    ledger = TransformLedger(LocalStore(), f"{tmp_path}/")
    orphan = open_draft(ledger.store, ledger.draft_uri("0.out"))
    orphan.write(b"0\n")
    whole = shard(0, (0, 0, 1), None, out=orphan.persist().full_range, rows=1, out_bytes=2)
    orphan.write(b"1\n")
    publish_object(ledger, PLANNED, [whole, shard(1, None, None)], suppressed=False, attempt="x")
    orphan.write(b"2\n")
    orphan.close()
    assert (tmp_path / "a.csv.out").read_bytes() == b"0\n"


def test_suppressed_object_publishes_failures_only(ledger):
    ledger.store.put(ledger.destination + "a.csv.out", b"of an earlier attempt")
    publish_object(ledger, PLANNED, shards_of(ledger), suppressed=True, attempt="x")
    assert [i.uri for i in ledger.store.list(ledger.destination + "a")] == [
        ledger.destination + "a.csv.out.failed"
    ]


def test_draft_removed_by_another_process_publishes_nothing(ledger):
    shards = shards_of(ledger)
    publish_object(ledger, PLANNED, shards, suppressed=False, attempt="x")
    before = ledger.store.get(ledger.destination + "a.csv.out")
    with pytest.raises(NotFoundError):
        publish_object(ledger, PLANNED, shards, suppressed=False, attempt="y")
    assert ledger.store.get(ledger.destination + "a.csv.out") == before
