"""jobs/: every section in small, over real ledgers and workers."""

import argparse
import sys
from dataclasses import replace

import disk_limit
import idle_worker
import job_peers
import job_suite
import job_workers
import large_table
import merged
import pytest
import short_jobs
import starting
import submits
from competition import BrokenRunError
from job_percentiles import percentile
from job_storage import LEDGERS, SQLITE, open_storage

from headrace.jobs.job import Completed, Failed, JobFailure, ResultRef, Settlement
from headrace.jobs.ledger import ClaimRequest
from headrace.jobs.state import Cause
from headrace.storage.local import LocalStore

CLAIM = ClaimRequest("test", ("default",), 10, 60_000)


@pytest.fixture
def new_storage(tmp_path, monkeypatch):
    """Return a function that creates storage with SQLite in a temporary folder."""
    monkeypatch.setattr("job_storage.FOLDER", tmp_path)
    monkeypatch.setattr("disk_limit.FOLDER", tmp_path)
    with open_storage([SQLITE]) as new:
        yield lambda: new(SQLITE)


def settle(ledger, storage, ids, results):
    """Complete the pending jobs with these results, as a worker does."""
    result_of = dict(zip(ids, results, strict=True))
    for job in ledger.settle_and_claim((), CLAIM).claimed:
        result = result_of.pop(job.id)
        uri = f"{storage.store}/{job.id}"
        LocalStore().put(uri, b'{"outputs":[{"name":"y","data":[%g]}]}' % result)
        ledger.settle_and_claim([Settlement(job.id, job.lease, Completed(ResultRef(uri, 1)))])
    assert not result_of


def test_check_requires_the_right_result_of_every_job(new_storage):
    storage = new_storage()
    with storage.ledger() as ledger:
        ids = job_workers.submit(ledger, storage, range(3))
        with pytest.raises(BrokenRunError, match="is pending"):
            job_workers.check(ledger, ids)
        settle(ledger, storage, ids, [1, 3, 5])
        job_workers.check(ledger, ids)
        with pytest.raises(BrokenRunError, match="is lost"):
            job_workers.check(ledger, [*ids, "01890000-0000-7000-8000-000000000000"])
        wrong = job_workers.submit(ledger, storage, range(1))
        settle(ledger, storage, wrong, [2])
        with pytest.raises(BrokenRunError, match=r"has the result \[2\]"):
            job_workers.check(ledger, wrong)


def test_check_refuses_a_retried_job(new_storage):
    storage = new_storage()
    with storage.ledger() as ledger:
        ids = job_workers.submit(ledger, storage, range(1))
        (job,) = ledger.settle_and_claim((), CLAIM).claimed
        ledger.settle_and_claim([Settlement(job.id, job.lease, Failed(JobFailure(Cause.STORAGE, "once"), 0))])
        settle(ledger, storage, ids, [1])
        with pytest.raises(BrokenRunError, match="attempt 2"):
            job_workers.check(ledger, ids)


def test_fill_inserts_jobs_and_the_oldest_is_claimed_first(new_storage):
    storage = new_storage()
    large_table.fill(storage, 300, 40)
    with storage.ledger() as ledger:
        counts = ledger.counts("default")
        assert (counts.due, counts.running) == (40, 0)
        assert len(ledger.ended_before(large_table._FIRST_MS + 1000, limit=1000)) == 300
        (first, *_) = ledger.settle_and_claim((), CLAIM).claimed
        assert first.created_at_ms == large_table._FIRST_MS + 1
        assert ledger.get(first.id).spec.input_uri.startswith("s3://")


@pytest.mark.postgres
def test_fill_works_in_postgresql(postgres, tmp_path):
    from job_storage import POSTGRES, JobStorage

    storage = JobStorage(POSTGRES, postgres.url(postgres.create_database()), tmp_path)
    large_table.fill(storage, 300, 40)
    with storage.ledger() as ledger:
        assert ledger.counts("default").due == 40
        (first, *_) = ledger.settle_and_claim((), CLAIM).claimed
        assert first.created_at_ms == large_table._FIRST_MS + 1


def test_short_jobs_complete(new_storage):
    found = short_jobs.by_headrace(new_storage(), 60, "Millisecond", concurrency=8)
    assert found["jobs_per_s"] > 1
    assert found["cpu_us_per_job"] > 0


def test_start_is_timed_from_the_submission(new_storage):
    found = starting.one_by_one(new_storage(), 5)
    assert [len(values) for values in found.values()] == [5, 5, 5]
    for submitted_ms, called_ms in zip(found["submit_ms"], found["model_ms"], strict=True):
        assert submitted_ms > 0
        assert 0 < called_ms < starting.END_S * 1000


def test_submissions_of_each_client_are_counted(new_storage):
    found = submits.one_round(new_storage(), new_storage(), 0.2)
    assert set(found) == {"disk", "one", "eight", "batch", "http"}
    assert min(found.values()) > 1


def test_merged_jobs_are_checked_and_counted(new_storage):
    assert 1 < merged.jobs_per_s(new_storage(), 4, 4) < 40


def test_idle_worker_is_measured(new_storage, monkeypatch):
    monkeypatch.setattr(idle_worker, "CALM_S", 0.0)
    found = idle_worker.idle(new_storage(), 0.3)
    assert found["memory_mb"] > 20
    assert 0 <= found["cpu_percent"] <= 200


def test_percentiles_are_measured_values():
    values = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert [percentile(values, percent) for percent in (1, 50, 99, 100)] == [1, 3, 5, 5]
    assert percentile(range(1, 101), 99) == 99


def test_targets_compare_runs_of_one_round():
    figures = {kind: [{"jobs_per_s": 1000, "cpu_us_per_job": 1}] * 2 for kind in LEDGERS}
    figures["celery"] = [{"jobs_per_s": 500, "cpu_us_per_job": 2}, {"jobs_per_s": 2000, "cpu_us_per_job": 2}]
    found = {target.what: target for target in short_jobs.targets(figures, 1)}
    against = found["SQLite: jobs/s against celery"]
    assert (against.ratio, against.bound, against.met) == (1.25, 1, True)
    assert not any("pgqueuer" in what for what in found)
    assert found["PostgreSQL: jobs/s, 1 ms each, 2 workers"].met


@pytest.mark.parametrize("peer", job_peers.PEERS, ids=lambda peer: peer.name)
def test_peer_that_does_not_start_is_an_error(peer):
    """This interpreter has no peer."""
    peer = replace(peer, over_postgres=False)
    with pytest.raises(BrokenRunError, match="ModuleNotFoundError"):
        job_peers.by_peer(peer, sys.executable, 1, 0.0, workers=1, warm_jobs=1)


def test_command_line_is_parsed(monkeypatch):
    arguments = job_suite.parser_of("").parse_args(["short", "--jobs", "10"])
    assert isinstance(arguments, argparse.Namespace)
    assert (arguments.sections, arguments.jobs, arguments.job_ms) == (["short"], 10, 1)
    monkeypatch.setattr(sys, "argv", ["jobs", "long"])
    with pytest.raises(SystemExit):
        job_suite.run("")


def test_disk_rate_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(disk_limit, "FOLDER", tmp_path)
    assert disk_limit.disk_per_s(0.05) > 1
    assert not list(tmp_path.iterdir())
