"""The records of a retry: retried outputs, and objects that are scored again as a whole."""

import pytest

from headrace.core.errors import LedgerError
from headrace.runs.ledger import Ledger, RetryLedger
from headrace.runs.records import RetriedOutput
from headrace.storage.contract import ObjectInfo
from headrace.storage.draft import PersistedDraft, open_draft
from headrace.storage.resolve import MemoryStore

OUT = "memory://out/run/"


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(MemoryStore(), OUT)


@pytest.fixture
def retries(ledger) -> RetryLedger:
    return RetryLedger(ledger)


def persisted(ledger: Ledger, name: str, data: bytes) -> PersistedDraft:
    draft = open_draft(ledger.store, ledger.draft_uri(name))
    draft.write(data)
    found = draft.persist()
    draft.close()
    return found


def names(ledger: Ledger) -> list[str]:
    return [i.uri.removeprefix(OUT) for i in ledger.store.list(OUT)]


def test_retried_outputs_round_trip_and_the_last_record_counts(retries):
    assert retries.retried() == {}
    first, second = RetriedOutput(7, 1, 20, {"refused": 2}), RetriedOutput(7, 3, 40, {})
    other = RetriedOutput(123_456, 2, 9, {"refused": 1}, begin_bytes=5)
    for record in (first, other, second):
        retries.commit(record)
    assert retries.retried() == {7: second, 123_456: other}


def test_published_retry_replaces_both_objects_and_leaves_no_draft(ledger, retries):
    for name in ("a.out", "a.out.failed"):
        ledger.store.put(OUT + name, b"old")
    out, failed = persisted(ledger, "new.out", b"1\n2\n"), persisted(ledger, "new.failed", b"{}\n")
    record = RetriedOutput(0, 1, 4, {"refused": 1}, out, failed)
    retries.commit(record)
    retries.publish(record, "a.out", "a.out.failed")
    assert ledger.store.get(OUT + "a.out") == b"1\n2\n"
    assert ledger.store.get(OUT + "a.out.failed") == b"{}\n"
    assert retries.retried() == {0: RetriedOutput(0, 1, 4, {"refused": 1})}
    assert names(ledger) == ["_headrace/retried-00000.json", "a.out", "a.out.failed"]


def test_retry_without_remaining_failures_deletes_the_failed_records(ledger, retries):
    for name in ("a.out", "a.out.failed"):
        ledger.store.put(OUT + name, b"old")
    record = RetriedOutput(0, 1, 4, {}, persisted(ledger, "new.out", b"1\n2\n"))
    retries.publish(record, "a.out", "a.out.failed")
    assert names(ledger) == ["_headrace/retried-00000.json", "a.out"]


def test_part_without_predictions_stays_missing(ledger, retries):
    failed = persisted(ledger, "new.failed", b"{}\n")
    record = RetriedOutput(0, 0, 0, {"refused": 1}, persisted(ledger, "new.out", b""), failed)
    retries.publish(record, "a.out", "a.out.failed")
    assert [i.uri for i in ledger.store.list(OUT + "a.out")] == [OUT + "a.out.failed"]


def test_second_publication_changes_nothing(ledger, retries):
    retries.commit(RetriedOutput(0, 1, 4, {}))
    ledger.store.put(OUT + "a.out", b"published")
    retries.publish(retries.retried()[0], "a.out", "a.out.failed")
    assert ledger.store.get(OUT + "a.out") == b"published"


def test_redo_is_recorded_until_its_end(ledger, retries):
    assert retries.objects_to_redo() == set()
    retries.begin_redo({3, 1})
    assert retries.objects_to_redo() == {1, 3}
    retries.end_redo()
    assert retries.objects_to_redo() == set()
    assert names(ledger) == []


def test_reset_removes_the_assembly_and_the_retry_of_one_output(ledger, retries):
    for number in (1, 2):
        ledger.commit_output(number)
        retries.commit(RetriedOutput(number, 1, 4, {}))
    retries.reset_output(1)
    assert ledger.assembled() == {2}
    assert set(retries.retried()) == {2}


def test_new_versions_of_objects_round_trip(retries):
    assert retries.new_infos() == {}
    infos = {4: ObjectInfo("memory://in/ä.csv", 5, '"e"', 1.5), 100_000: ObjectInfo("http://h/b", None)}
    for index, info in infos.items():
        retries.save_new_info(index, info)
    assert retries.new_infos() == infos


@pytest.mark.parametrize("name", ["retried-00000.json", "again.json", "renewed-00000.json"])
def test_retry_records_of_another_version_are_refused(ledger, retries, name):
    ledger.store.put(ledger.uri(name), b'{"v": 1}')
    with pytest.raises(LedgerError, match="the ledger has version 1"):
        _ = retries.retried(), retries.objects_to_redo(), retries.new_infos()
