"""``headrace jobs`` against a real job API."""

import hashlib

import pytest

from cli.job_commands import run_command, work_after_first_event
from headrace.jobs.job import JobFailure, JobProgress
from headrace.jobs.state import Cause
from jobs.service_support import served_jobs

FAILURE = JobFailure(Cause.MODEL, "it raised \x1b[31mred\nand more", "ValueError")


@pytest.fixture
def served():
    with served_jobs() as made:
        yield made


def submitted(served, *arguments):
    return run_command(served, "submit", "-m", "m", "--input", "1", *arguments).out.strip()


def test_jobs_are_a_table_or_json(served):
    ids = [submitted(served, "--tag", f"n={n}") for n in range(3)]
    served.report_progress(served.claim(), JobProgress(1, 4, "rows"))
    done = run_command(served, "jobs")
    rows = [line.split() for line in done.out.splitlines()]
    assert rows[0] == ["id", "state", "queue", "model", "progress", "attempt", "age", "why"]
    assert {row[0] for row in rows[1:]} == set(ids)
    assert "25% of 4 rows" in done.out
    assert [line["id"] for line in run_command(served, "jobs", "list", "--tag", "n=1", "--json").lines] == [
        ids[1]
    ]
    assert len(run_command(served, "jobs", "list", "--json", "-n", "2").lines) == 2
    none = run_command(served, "jobs", "list", "--state", "failed")
    assert (none.code, none.out, none.err) == (0, "", "no matching jobs\n")


def test_job_is_shown_with_its_failures(served):
    job_id = submitted(served)
    served.fail(served.claim(), FAILURE)
    shown = run_command(served, "jobs", "show", job_id).out
    assert "\x1b" not in shown
    lines = dict(line.split(None, 1) for line in shown.splitlines() if not line.startswith(" "))
    assert lines["state"] == "failed"
    assert lines["attempt"] == "1 of 3 by worker-1"
    assert lines["failure"].endswith("and more")
    assert "attempt 1  claimed by worker-1\n" in shown
    assert "attempt 1  attempt_failed by worker-1: " in shown
    (document,) = run_command(served, "jobs", "show", job_id, "--json").lines
    assert (document["id"], document["history"][1]["event"]) == (job_id, "attempt_failed")


def test_job_is_watched_to_its_end(served, monkeypatch):
    job_id = submitted(served)
    work_after_first_event(monkeypatch, served, lambda job: served.complete(job, b"42"))
    done = run_command(served, "jobs", "watch", job_id)
    assert (done.code, done.out) == (0, "completed\n")
    assert done.err.splitlines()[0] == f"{job_id}  pending"


def test_result_is_printed_or_saved(served, tmp_path):
    job_id = submitted(served)
    early = run_command(served, "jobs", "result", job_id)
    assert early.code == 1
    assert "there is no result yet" in early.error
    served.complete(served.claim(), b"\x00\xff")
    assert run_command(served, "jobs", "result", job_id, "-o", tmp_path / "x").code == 0
    assert (tmp_path / "x").read_bytes() == b"\x00\xff"
    assert run_command(served, "jobs", "result", job_id, "--wait", "-o", tmp_path / "y").code == 0
    unwritable = run_command(served, "jobs", "result", job_id, "-o", tmp_path / "no" / "x")
    assert unwritable.code == 1
    assert "cannot be written" in unwritable.error


def test_published_results_are_verified(served):
    job_id = submitted(served, "--output-uri", "s3://out", "--key", "k")
    early = run_command(served, "jobs", "verify", job_id)
    assert (early.code, "has published no result" in early.error) == (1, True)
    run = served.claim()
    served.complete(run, b"42")
    uri = "memory://out/k.out"
    digest = f"sha256:{hashlib.sha256(b'42').hexdigest()}"
    assert served.ledger.mark_published(run.id, run.lease, uri, digest)
    with served.stores.for_uri(uri).writer(uri, {"headracejob": "other"}) as writer:
        writer.write(b"42")
    done = run_command(served, "jobs", "verify", job_id)
    assert (done.code, done.out) == (0, f"{job_id}  equal  {uri}  written by other\n")
    served.stores.for_uri(uri).put(uri, b"43")
    done = run_command(served, "jobs", "verify", job_id, "--json")
    assert (done.code, done.lines[0]["status"], done.lines[0]["digest"]) == (1, "different", digest)


def test_cancel_continues_after_a_failure(served):
    one, two = submitted(served), submitted(served)
    done = run_command(served, "jobs", "cancel", one, "01a2007b-0000-7000-8000-000000000000", two)
    assert done.code == 1
    assert done.out.splitlines() == [f"{one}  cancelled", f"{two}  cancelled"]
    assert "no job" in done.error
    assert run_command(served, "jobs", "retry", one, "--json").lines == [{"id": one, "state": "pending"}]
    assert run_command(served, "jobs", "delete", two).out == f"{two}  deleted\n"


def test_failed_jobs_are_requeued_together(served):
    for _ in range(3):
        submitted(served, "-q", "night")
    for _ in range(2):
        served.fail(served.claim("night"), FAILURE)
    counted = run_command(served, "jobs", "requeue", "-q", "night", "--dry-run")
    assert (counted.code, counted.out) == (0, "2 jobs match\n")
    assert run_command(served, "jobs", "requeue", "-q", "night").code == 1
    done = run_command(served, "jobs", "requeue", "-q", "night", "--yes")
    assert (done.code, done.out, done.err) == (0, "2 jobs requeued\n", "")
    assert len(run_command(served, "jobs", "list", "--state", "pending", "--json").lines) == 3
    none = run_command(served, "jobs", "requeue", "-q", "night")
    assert (none.code, none.err) == (0, "no matching jobs\n")


def test_jobs_are_changed_by_conditions(served):
    for number in range(3):
        submitted(served, "--tag", f"n={number % 2}")
    done = run_command(served, "jobs", "cancel", "--tag", "n=0", "--yes", "--json")
    assert done.lines[0] == {
        "action": "cancel",
        "dry_run": False,
        "matched": 2,
        "changed": 2,
        "skipped": {},
        "next_after": "",
    }
    limited = run_command(served, "jobs", "retry", "--state", "cancelled", "-n", "1", "--yes")
    assert limited.out == "1 jobs retried\n"
    assert "more jobs match" in limited.err
    run_command(served, "jobs", "cancel", "--all", "--yes")
    assert run_command(served, "jobs", "delete", "--all", "--yes").out == "3 jobs deleted\n"


def test_conditions_and_ids_exclude_each_other(served):
    job_id = submitted(served)
    both = run_command(served, "jobs", "cancel", job_id, "-q", "night")
    neither = run_command(served, "jobs", "cancel")
    assert (both.code, neither.code) == (2, 2)
    assert "not both" in both.err
    assert "--all" in neither.err


def test_audit_log_is_a_table_or_json(served):
    run_command(served, "queues", "pause", "night")
    submitted(served, "--tag", "n=1")
    run_command(served, "jobs", "cancel", "--tag", "n=1", "--yes")
    rows = run_command(served, "audit").out.splitlines()
    assert rows[0].split() == ["time", "by", "action", "subject", "jobs", "details"]
    assert [row.split()[4] for row in rows[1:]] == ["jobs.cancel", "queue.change"]
    (entry,) = run_command(served, "audit", "--action", "jobs.cancel", "--json").lines
    assert (entry["jobs"], entry["details"]) == (1, {"filter": {"tag": ["n=1"]}})
    assert len(run_command(served, "audit", "--json", "-n", "1").lines) == 1
    none = run_command(served, "audit", "--by", "nobody")
    assert (none.code, none.out, none.err) == (0, "", "no entries\n")
