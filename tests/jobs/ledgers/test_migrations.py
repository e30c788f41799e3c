"""Schema migrations, also from the databases of earlier versions in tests/data/jobs."""

import sqlite3
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.core.errors import ConfigError, JobLedgerUnavailableError
from headrace.jobs.history import HistoryEvent
from headrace.jobs.job import JobProgress, NewJob, ResultRef
from headrace.jobs.ledger import ClaimRequest, JobFilter, QueueSettings
from headrace.jobs.ledgers import sql
from headrace.jobs.ledgers.sql import STEPS, MigrationStep
from headrace.jobs.ledgers.sqlite import SqliteJobLedger
from headrace.jobs.state import Cause, JobState
from headrace.testing import ManualWallClock
from jobs.ledger_fixtures import LEDGERS, SQL_LEDGERS

DATA = Path(__file__).parents[2] / "data" / "jobs"
OLD = sorted(DATA.glob("ledger-*.sql"))


@pytest.fixture(params=SQL_LEDGERS)
def opened(request):
    return LEDGERS[request.param](ManualWallClock(), request.getfixturevalue)


@pytest.fixture(params=OLD, ids=[path.stem for path in OLD])
def old(request, tmp_path):
    """Return a ledger over a database that an earlier version wrote."""
    path = tmp_path / "jobs.db"
    with sqlite3.connect(path) as connection:
        connection.executescript(request.param.read_text())
    connection.close()
    ledger = SqliteJobLedger(path, wall_ms=ManualWallClock(1_800_000_100_000).now_ms)
    ledger.start()
    yield ledger
    ledger.stop()


def next_step(statement="CREATE TABLE headrace_more (n INTEGER)", *, min_reader=1) -> MigrationStep:
    return MigrationStep(STEPS[-1].number + 1, min_reader, (statement,), (statement,))


def versions(ledger):
    def select(transaction):
        return (
            transaction.connection.exec_driver_sql("SELECT number FROM headrace_schema ORDER BY 1")
            .scalars()
            .all()
        )

    return ledger._database.run(select, read_only=True)


def test_every_version_has_a_stored_database():
    # Create the missing file in tests/: python -m jobs.dump_ledger
    assert [path.stem for path in OLD] == [f"ledger-{step.number}" for step in STEPS]


def test_jobs_of_earlier_versions_are_readable(old):
    completed, failed, pending = (old.get(name) for name in ("completed", "failed", "pending"))
    assert completed.state is JobState.COMPLETED
    # Databases of later versions do not publish jobs without an output.
    published_uri = completed.result.published_uri
    assert published_uri in {"", "s3://box/out"}
    assert completed.result == ResultRef("memory://out", 3, "text/csv", published_uri)
    assert completed.spec.tags == {"team": "blue"}
    assert completed.spec.notify == ({"webhook": "https://example.com"},)
    assert failed.state is JobState.FAILED
    assert failed.failure.cause is Cause.MODEL
    assert [entry.event for entry in old.history("failed")] == [HistoryEvent.ATTEMPT_FAILED]
    assert (pending.attempt, pending.lease, pending.cursor) == (1, 2, {"chunk": 7})
    assert old.get("running").progress == JobProgress(3, 9, "records")
    assert old.get("later").spec.region in {"", "eu-east"}  # none until version 2
    assert (completed.spec.region, completed.worker_region) == ("", "")
    assert old.queue("narrow") == QueueSettings("narrow", pending_max=5)
    assert [job.id for job in old.find(JobFilter(tags={"team": "blue"})).jobs] == ["completed"]


def test_jobs_of_earlier_versions_can_be_run(old):
    old.maintain(100)
    claimed = old.settle_and_claim([], ClaimRequest("w", ("default",), 10, 1_000)).claimed
    assert {job.id: job.lease for job in claimed}["pending"] == 3
    assert old.submit([NewJob(idempotency_key="k", body_digest="d")])[0].created is False


def test_unpublished_ends_of_earlier_versions_are_published(tmp_path):
    path = tmp_path / "jobs.db"
    with sqlite3.connect(path) as connection:
        connection.executescript((DATA / "ledger-3.sql").read_text())
        connection.execute(
            "UPDATE headrace_job SET unpublished = 1, published_uri = '', "
            """spec = '{"output_uri": "s3://box/out", "key": "K"}' WHERE id IN ('completed', 'failed')"""
        )
        connection.execute(
            "INSERT INTO headrace_notification (id, job_id, endpoint_id, event_id, type, at_ms, data, state, "
            "due_at_ms) VALUES ('n', 'completed', 'e', 'evt', 'job.completed', 0, '{}', 'held', 0)"
        )
    connection.close()
    ledger = SqliteJobLedger(path, wall_ms=ManualWallClock(1_800_000_100_000).now_ms)
    ledger.start()
    try:
        assert {job.id: job.state for job in ledger.claim_publications(9)} == {
            "completed": JobState.PUBLISHING,
            "failed": JobState.FAILED,
        }
        assert "n" not in {held.delivery_id for held in ledger.outbox.deliveries_of("completed")}
        assert ledger.mark_published("completed", 1, "s3://box/out/K.out")
        assert ledger.get("completed").state is JobState.COMPLETED
    finally:
        ledger.stop()


def test_migrations_are_applied_once_and_in_order(opened, monkeypatch):
    ledger = opened()
    ledger.start()
    assert versions(ledger) == [step.number for step in STEPS]
    ledger.stop()
    steps = (*STEPS, next_step())
    monkeypatch.setattr(sql.migrate, "__kwdefaults__", {"steps": steps})
    for _ in range(2):
        ledger.start()
        assert versions(ledger) == [step.number for step in steps]
        ledger.stop()


def test_concurrent_starts_apply_each_migration_once(opened, monkeypatch):
    steps = (*STEPS, next_step())
    monkeypatch.setattr(sql.migrate, "__kwdefaults__", {"steps": steps})
    ledgers = [opened() for _ in range(6)]
    line = threading.Barrier(6)
    errors = []

    def start(ledger):
        line.wait(30)
        try:
            ledger.start()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=start, args=(ledger,)) for ledger in ledgers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert versions(ledgers[0]) == [step.number for step in steps]
    for ledger in ledgers:
        ledger.stop()


def test_failed_migration_leaves_nothing(opened, monkeypatch):
    ledger = opened()
    ledger.start()
    ledger.stop()
    whole = next_step()
    broken = replace(
        whole, sqlite=(*whole.sqlite, "CREATE NONSENSE"), postgres=(*whole.postgres, "CREATE NONSENSE")
    )
    monkeypatch.setattr(sql.migrate, "__kwdefaults__", {"steps": (*STEPS, broken)})
    with pytest.raises(JobLedgerUnavailableError):
        ledger.start()
    monkeypatch.setattr(sql.migrate, "__kwdefaults__", {"steps": (*STEPS, whole)})
    ledger.start()
    assert versions(ledger)[-1] == whole.number
    ledger.stop()


@pytest.mark.parametrize("min_reader", [1, STEPS[-1].number + 1])
def test_older_program_works_with_a_newer_schema_or_refuses_it(opened, monkeypatch, min_reader):
    newer = opened()
    with monkeypatch.context() as later:
        steps = (*STEPS, next_step(min_reader=min_reader))
        later.setattr(sql.migrate, "__kwdefaults__", {"steps": steps})
        newer.start()
        newer.submit([NewJob(id="a")])
    older = opened()
    if min_reader == 1:
        older.start()
        assert older.get("a").id == "a"
        older.stop()
    else:
        with pytest.raises(ConfigError, match="install a newer one"):
            older.start()
    newer.stop()
