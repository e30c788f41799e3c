"""jobs/: every section runs in small over real ledgers and workers, and what they say is right."""

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
from job_places import LEDGERS, SQLITE, places

from headrace.jobs.cause import Cause
from headrace.jobs.job import Completed, Failed, JobFailure, ResultRef, Settlement
from headrace.jobs.ledger import ClaimRequest
from headrace.storage.local import LocalStore

CLAIM = ClaimRequest("test", ("default",), 10, 60_000)


@pytest.fixture
def new_place(tmp_path, monkeypatch):
    """Makes places of SQLite in a folder that goes."""
    monkeypatch.setattr("job_places.FOLDER", tmp_path)
    monkeypatch.setattr("disk_limit.FOLDER", tmp_path)
    with places([SQLITE]) as new:
        yield lambda: new(SQLITE)


def settle(ledger, place, ids, answers):
    """Do the jobs that wait, as a worker would, with these answers."""
    answer_of = dict(zip(ids, answers, strict=True))
    for job in ledger.turn((), CLAIM).claimed:
        answer = answer_of.pop(job.id)
        uri = f"{place.store}/{job.id}"
        LocalStore().put(uri, b'{"outputs":[{"name":"y","data":[%g]}]}' % answer)
        ledger.turn([Settlement(job.id, job.lease, Completed(ResultRef(uri, 1)))])
    assert not answer_of


def test_the_right_results_of_all_jobs_are_asked_for(new_place):
    place = new_place()
    with place.ledger() as ledger:
        ids = job_workers.submit(ledger, place, range(3))
        with pytest.raises(BrokenRunError, match="is pending"):
            job_workers.check(ledger, ids)
        settle(ledger, place, ids, [1, 3, 5])
        job_workers.check(ledger, ids)
        with pytest.raises(BrokenRunError, match="is lost"):
            job_workers.check(ledger, [*ids, "01890000-0000-7000-8000-000000000000"])
        wrong = job_workers.submit(ledger, place, range(1))
        settle(ledger, place, wrong, [2])
        with pytest.raises(BrokenRunError, match=r"has the result \[2\]"):
            job_workers.check(ledger, wrong)


def test_a_job_that_was_tried_twice_is_no_good_run(new_place):
    place = new_place()
    with place.ledger() as ledger:
        ids = job_workers.submit(ledger, place, range(1))
        (job,) = ledger.turn((), CLAIM).claimed
        ledger.turn([Settlement(job.id, job.lease, Failed(JobFailure(Cause.STORAGE, "once"), 0))])
        settle(ledger, place, ids, [1])
        with pytest.raises(BrokenRunError, match="attempt 2"):
            job_workers.check(ledger, ids)


def test_a_filled_ledger_has_what_was_asked_for_and_gives_out_the_oldest(new_place):
    place = new_place()
    large_table.fill(place, 300, 40)
    with place.ledger() as ledger:
        counts = ledger.counts("default")
        assert (counts.due, counts.running) == (40, 0)
        assert len(ledger.ended_before(large_table._FIRST_MS + 1000, limit=1000)) == 300
        (first, *_) = ledger.turn((), CLAIM).claimed
        assert first.created_at_ms == large_table._FIRST_MS + 1
        assert ledger.get(first.id).spec.input_uri.startswith("s3://")


@pytest.mark.postgres
def test_a_filled_ledger_in_postgresql_is_the_same(postgres, tmp_path):
    from job_places import POSTGRES, Place

    place = Place(POSTGRES, postgres.url(postgres.create_database()), tmp_path)
    large_table.fill(place, 300, 40)
    with place.ledger() as ledger:
        assert ledger.counts("default").due == 40
        (first, *_) = ledger.turn((), CLAIM).claimed
        assert first.created_at_ms == large_table._FIRST_MS + 1


def test_short_jobs_go_the_whole_way(new_place):
    found = short_jobs.by_headrace(new_place(), 60, "Millisecond", concurrency=8)
    assert found["jobs_per_s"] > 1
    assert found["cpu_us_per_job"] > 0


def test_a_start_is_timed_from_the_submission_on(new_place):
    found = starting.one_by_one(new_place(), 5)
    assert [len(values) for values in found.values()] == [5, 5, 5]
    for submitted_ms, called_ms in zip(found["submit_ms"], found["model_ms"], strict=True):
        assert submitted_ms > 0
        assert 0 < called_ms < starting.END_S * 1000


def test_submissions_are_counted_by_each_way(new_place):
    found = submits.one_round(new_place(), new_place(), 0.2)
    assert set(found) == {"disk", "one", "eight", "batch", "http"}
    assert min(found.values()) > 1


def test_merged_jobs_are_checked_and_counted(new_place):
    assert 1 < merged.jobs_per_s(new_place(), 4, 4) < 40


def test_an_idle_worker_is_looked_at(new_place, monkeypatch):
    monkeypatch.setattr(idle_worker, "CALM_S", 0.0)
    found = idle_worker.idle(new_place(), 0.3)
    assert found["memory_mb"] > 20
    assert 0 <= found["cpu_percent"] <= 200


def test_percentiles_are_values_that_were_measured():
    values = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert [percentile(values, percent) for percent in (1, 50, 99, 100)] == [1, 3, 5, 5]
    assert percentile(range(1, 101), 99) == 99


def test_promises_are_of_pairs():
    figures = {kind: [{"jobs_per_s": 1000, "cpu_us_per_job": 1}] * 2 for kind in LEDGERS}
    figures["celery"] = [{"jobs_per_s": 500, "cpu_us_per_job": 2}, {"jobs_per_s": 2000, "cpu_us_per_job": 2}]
    found = {promise.what: promise for promise in short_jobs.promises(figures, 1)}
    against = found["SQLite: jobs/s against celery"]
    assert (against.ratio, against.bound, against.kept) == (1.25, 1, True)
    assert not any("pgqueuer" in what for what in found)
    assert found["PostgreSQL: jobs/s, 1 ms each, 2 workers"].kept


@pytest.mark.parametrize("peer", job_peers.PEERS, ids=lambda peer: peer.name)
def test_a_peer_that_does_not_start_is_told_of(peer):
    """By this interpreter, which has none of them."""
    peer = replace(peer, over_postgres=False)
    with pytest.raises(BrokenRunError, match="ModuleNotFoundError"):
        job_peers.by_peer(peer, sys.executable, 1, 0.0, workers=1, warm_jobs=1)


def test_what_is_asked_for_is_understood(monkeypatch):
    asked = job_suite.parser_of("").parse_args(["short", "--jobs", "10"])
    assert isinstance(asked, argparse.Namespace)
    assert (asked.sections, asked.jobs, asked.job_ms) == (["short"], 10, 1)
    monkeypatch.setattr(sys, "argv", ["jobs", "long"])
    with pytest.raises(SystemExit):
        job_suite.run("")


def test_the_disk_is_asked(tmp_path, monkeypatch):
    monkeypatch.setattr(disk_limit, "FOLDER", tmp_path)
    assert disk_limit.disk_per_s(0.05) > 1
    assert not list(tmp_path.iterdir())
