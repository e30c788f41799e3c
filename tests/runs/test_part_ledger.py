import pytest

from headrace.core.block import Position
from headrace.core.errors import LedgerError, ResumeRefusedError
from headrace.runs.items import Cursor
from headrace.runs.part_ledger import Counts, Ledger, LedgerMark
from headrace.storage.contract import ObjectInfo
from headrace.storage.memory import MemoryStore

OUT = "memory://out/run/"
PLAN = [ObjectInfo("memory://in/a.csv", 7, '"e"', 1.5), ObjectInfo("memory://in/b.csv", None)]
IDENTITY = {"source": "memory://in/", "model": "m", "settings": {"columns": (1, 2)}}


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def ledger(store) -> Ledger:
    return Ledger(store, OUT)


def names(store: MemoryStore) -> list[str]:
    return [i.uri.removeprefix(f"{OUT}_headrace/") for i in store.list(OUT)]


def mark(
    part: int, checkpoint: int = 0, *, records: int = 4, total: int | None = None, attempt="a"
) -> LedgerMark:
    position = Position("memory://in/a.csv", "m.csv", record=records, member_byte=512)
    count = Counts(records, records - 1, 1)
    return LedgerMark(part, checkpoint, Cursor(0, position), Counts(total or records), count, attempt, 99)


def test_counts_add_and_subtract():
    one, two = Counts(4, 3, 1, 1), Counts(10, 10, 0, 0)
    assert one.plus(two) == Counts(14, 13, 1, 1)
    assert one.plus(two).minus(two) == one


def test_mark_round_trips_through_json():
    assert LedgerMark.from_json(mark(3, 2).to_json()) == mark(3, 2)


def test_records_of_a_run(store, ledger):
    assert ledger.identity() is None
    ledger.begin(IDENTITY, PLAN)
    assert ledger.read_plans() == [PLAN]
    assert ledger.state().last is None
    ledger.learn({"csv_width": 3})
    assert ledger.learned() == {"csv_width": 3}
    ledger.checkpoint(mark(0, 1, records=2), b"out", b"failed")
    assert names(store) == [
        "learned.json",
        "part-00000.checkpoint-0001.failed",
        "part-00000.checkpoint-0001.json",
        "part-00000.checkpoint-0001.out",
        "plan-00000.jsonl",
        "run.json",
    ]
    state = ledger.state()
    assert (state.last, state.checkpoints) == (mark(0, 1, records=2), [mark(0, 1, records=2)])
    assert ledger.checkpoint_bytes(state.last) == (b"out", b"failed")
    assert ledger.count(ledger.state()) == Counts(2, 1, 1)
    ledger.commit_part(mark(0, 1))
    assert ledger.state().last == mark(0)
    assert ledger.count(ledger.state()) == Counts(4, 3, 1)
    ledger.finish({"status": "complete"})
    assert names(store) == ["learned.json", "part-00000.json", "plan-00000.jsonl", "report.json", "run.json"]
    assert ledger.state().finished == {"status": "complete"}
    ledger.reopen()
    assert ledger.state().finished is None


def test_checkpoints_of_a_published_part_are_ignored(ledger):
    """A kill between the part's record and the deletion leaves them behind."""
    ledger.begin(IDENTITY, PLAN)
    ledger.checkpoint(mark(0, 1), b"", b"")
    ledger._create("part-00000.json", mark(0).to_json())
    state = ledger.state()
    assert (state.last, state.checkpoints) == (mark(0), [])
    assert ledger.count(ledger.state()) == mark(0).in_part


def test_names_with_more_digits_stay_in_order(store, ledger):
    ledger.begin(IDENTITY, PLAN[:1])
    for number in (99_999, 100_000, 100_001):
        ledger.write_plan(number, [ObjectInfo(f"memory://in/{number}", 1)])
        ledger.commit_part(mark(number))
    assert [p[0].uri.rpartition("/")[2] for p in ledger.read_plans()] == [
        "a.csv",
        "99999",
        "100000",
        "100001",
    ]
    assert ledger.state().last.part == 100_001
    for number in (9_999, 10_000):
        ledger.checkpoint(mark(100_002, number), b"", b"")
    assert ledger.state().last.checkpoint == 10_000


def test_different_record_of_another_process_is_refused(ledger):
    ledger.begin(IDENTITY, PLAN)
    ledger.commit_part(mark(0))
    ledger.commit_part(mark(0))
    with pytest.raises(LedgerError, match=r"part-00000.json was written by another process.*--resume"):
        ledger.commit_part(mark(0, attempt="b"))


def test_different_run_is_refused_with_its_differences(ledger):
    ledger.begin(IDENTITY, PLAN)
    ledger.check_identity(IDENTITY)
    with pytest.raises(ResumeRefusedError, match=r"another run .model was 'm', is 'n'.*--overwrite"):
        ledger.check_identity(IDENTITY | {"model": "n"})


def test_only_changed_settings_are_named(ledger):
    settings = {"read": {"header": "none", "format": "csv"}, "batch": [None, 1]}
    ledger.begin(IDENTITY | {"settings": settings}, PLAN)
    others = settings | {"read": {"header": "names", "format": "csv"}}
    with pytest.raises(ResumeRefusedError, match=r"\(settings.read.header was 'none', is 'names'\)"):
        ledger.check_identity(IDENTITY | {"settings": others})


def test_ledger_of_another_version_is_refused(store, ledger):
    ledger.begin(IDENTITY | {"v": 1}, PLAN)
    store.put(f"{OUT}_headrace/run.json", b'{"v": 99}')
    with pytest.raises(LedgerError, match="has version 99, this headrace supports 1"):
        ledger.identity()
