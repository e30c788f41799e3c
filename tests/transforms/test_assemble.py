import pytest

from headrace.core.block import Failure, FailureKind, Position
from headrace.core.errors import NotFoundError
from headrace.formats.failures import FailedRecord, failed_record_line, read_failed_records
from headrace.pipeline.ledger import Counts
from headrace.storage.contract import ObjectInfo
from headrace.storage.draft import open_draft
from headrace.storage.local import LocalStore
from headrace.storage.memory import MemoryStore
from headrace.transforms.assemble import Base, bases, publish_object
from headrace.transforms.ledger import TransformLedger
from headrace.transforms.plan import PlannedObject
from headrace.transforms.records import ShardRecord, Spot

URI = "memory://in/a.csv"
PLANNED = PlannedObject(ObjectInfo(URI, 90), "a.csv.out")


@pytest.fixture(params=["disk", "memory"])
def ledger(request, tmp_path) -> TransformLedger:
    if request.param == "disk":
        return TransformLedger(LocalStore(), f"{tmp_path}/out/")
    return TransformLedger(MemoryStore(), "memory://out/")


def shard(number, begin, end, *, rows=0, out_bytes=0, relative=False, **more) -> ShardRecord:
    spots = [None if s is None else Spot(*s) for s in (begin, end)]
    return ShardRecord(0, number, Counts(rows, rows), out_bytes, *spots, relative=relative, **more)


def test_what_stands_before_each_shard():
    records = [
        shard(0, (0, 0, 1), (12, 3, 4), rows=3, out_bytes=20, begin_bytes=2),
        shard(1, (12, 0, 1), (30, 5, 8), rows=4, out_bytes=30, begin_bytes=2, relative=True),
        shard(2, (30, 8, 11), (40, 9, 12), rows=1, out_bytes=10, begin_bytes=2),
    ]
    found, wrong = bases(records)
    assert wrong is None
    assert found == [
        Base(Spot(0, 0, 1)),
        Base(Spot(12, 3, 4), 3, 20),
        Base(Spot(30, 8, 11), 7, 48),
        Base(Spot(40, 9, 12), 8, 56),
    ]


def test_the_first_wrong_guess_is_told_and_where_it_really_begins():
    records = [
        shard(0, (0, 0, 1), (12, 3, 4)),
        shard(1, (16, 0, 1), (30, 5, 6), relative=True),
        shard(2, (99, 0, 1), (120, 5, 6), relative=True),
    ]
    found, wrong = bases(records)
    assert wrong == 1
    assert found == [Base(Spot(0, 0, 1)), Base(Spot(12, 3, 4))]


def test_behind_a_shard_without_an_end_nothing_is_called_wrong():
    records = [
        shard(0, (0, 0, 1), (12, 3, 4)),
        shard(1, None, None),
        shard(2, (99, 0, 1), (120, 5, 6), relative=True),
    ]
    found, wrong = bases(records)
    assert wrong is None
    assert [base.known for base in found] == [True, True, False, False]


def keep(ledger, name: str, data: bytes):
    draft = open_draft(ledger.store, ledger.draft_uri(name))
    draft.write(data)
    kept = draft.keep()
    draft.close()
    return kept.whole


def failed_line(record: int, line: int, byte: int, row: int, out_byte: int) -> bytes:
    failure = Failure(Position(URI, record=record, line=line, byte=byte), FailureKind.DECODE, "why", b"raw")
    return failed_record_line(FailedRecord(failure, row, out_byte))


def shards_of(ledger) -> list[ShardRecord]:
    """Two records and a failure in each of three; the second counts from its own begin."""
    return [
        shard(0, (0, 0, 1), (12, 3, 4), out=keep(ledger, "0.out", b"y\n0\n1\n"), failed=keep(ledger, "0.failed", failed_line(0, 1, 0, 0, 0)), rows=2, out_bytes=6, begin_bytes=2),
        shard(1, (12, 0, 1), (30, 3, 5), out=keep(ledger, "1.out", b"y\n2\n3\n"), failed=keep(ledger, "1.failed", failed_line(0, 1, 12, 0, 0) + failed_line(2, 4, 20, 2, 6)), rows=2, out_bytes=6, begin_bytes=2, relative=True),
        shard(2, (30, 6, 8), (40, 9, 12), out=keep(ledger, "2.out", b"y\n4\n5\n"), rows=2, out_bytes=6, begin_bytes=2),
    ]  # fmt: skip


def test_an_object_is_its_shards_with_one_header_and_failures_in_their_places(ledger):
    publish_object(ledger, PLANNED, shards_of(ledger), withheld=False, attempt="x")
    assert ledger.store.get(ledger.destination + "a.csv.out") == b"y\n0\n1\n2\n3\n4\n5\n"
    lines = ledger.store.get(ledger.destination + "a.csv.out.failed").splitlines()
    found = [(f.failure.position, f.output_row, f.output_byte) for f in read_failed_records(lines)]
    assert found == [
        (Position(URI, record=0, line=1, byte=0), 0, 0),
        (Position(URI, record=3, line=4, byte=12), 2, 6),
        (Position(URI, record=5, line=7, byte=20), 4, 10),
    ]
    assert ledger.assembled() == {0}
    assert not list(ledger.store.list(ledger.uri("drafts/")))


def test_an_object_without_any_output_is_empty(ledger):
    publish_object(ledger, PLANNED, [shard(0, None, None), shard(1, None, None)], withheld=False, attempt="x")
    assert ledger.store.get(ledger.destination + "a.csv.out") == b""
    assert [i.uri for i in ledger.store.list(ledger.destination + "a")] == [ledger.destination + "a.csv.out"]


def test_whoever_still_writes_behind_the_last_range_that_counts_changes_nothing(tmp_path):
    """The object broke before that; a worker that was given up is still at what is behind, which another one has done."""
    ledger = TransformLedger(LocalStore(), f"{tmp_path}/")
    orphan = open_draft(ledger.store, ledger.draft_uri("0.out"))
    orphan.write(b"0\n")
    whole = shard(0, (0, 0, 1), None, out=orphan.keep().whole, rows=1, out_bytes=2)
    orphan.write(b"1\n")
    publish_object(ledger, PLANNED, [whole, shard(1, None, None)], withheld=False, attempt="x")
    orphan.write(b"2\n")
    orphan.close()
    assert (tmp_path / "a.csv.out").read_bytes() == b"0\n"


def test_a_withheld_object_has_failures_alone(ledger):
    ledger.store.put(ledger.destination + "a.csv.out", b"of an earlier attempt")
    publish_object(ledger, PLANNED, shards_of(ledger), withheld=True, attempt="x")
    assert [i.uri for i in ledger.store.list(ledger.destination + "a")] == [
        ledger.destination + "a.csv.out.failed"
    ]


def test_a_draft_that_another_process_removed_is_told_and_nothing_is_published(ledger):
    shards = shards_of(ledger)
    publish_object(ledger, PLANNED, shards, withheld=False, attempt="x")
    before = ledger.store.get(ledger.destination + "a.csv.out")
    with pytest.raises(NotFoundError):
        publish_object(ledger, PLANNED, shards, withheld=False, attempt="y")
    assert ledger.store.get(ledger.destination + "a.csv.out") == before
