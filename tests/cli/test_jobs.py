"""``headrace jobs`` as it is typed, against a real API."""

import pytest

from cli.test_submit import typed, worked
from headrace.jobs.cause import Cause
from headrace.jobs.job import JobFailure, Progress
from jobs.desk_support import WAIT_S, served_jobs

FAILURE = JobFailure(Cause.MODEL, "it raised \x1b[31mred\nand more", "ValueError")


@pytest.fixture
def served():
    with served_jobs() as made:
        yield made


def submitted(served, *arguments):
    return typed(served, "submit", "-m", "m", "--input", "1", *arguments).out.strip()


def test_jobs_are_a_table_or_json(served):
    ids = [submitted(served, "--tag", f"n={n}") for n in range(3)]
    served.tell(served.claim(), Progress(1, 4, "rows"))
    done = typed(served, "jobs")
    rows = [line.split() for line in done.out.splitlines()]
    assert rows[0] == ["id", "state", "queue", "model", "progress", "attempt", "age", "why"]
    assert {row[0] for row in rows[1:]} == set(ids)
    assert "25% of 4 rows" in done.out
    assert [line["id"] for line in typed(served, "jobs", "list", "--tag", "n=1", "--json").lines] == [ids[1]]
    assert len(typed(served, "jobs", "list", "--json", "-n", "2").lines) == 2
    none = typed(served, "jobs", "list", "--state", "failed")
    assert (none.code, none.out, none.err) == (0, "", "there is no such job\n")


def test_one_is_shown_with_what_went_wrong(served):
    job_id = submitted(served)
    served.fail(served.claim(), FAILURE)
    shown = typed(served, "jobs", "show", job_id).out
    assert "\x1b" not in shown
    lines = dict(line.split(None, 1) for line in shown.splitlines() if not line.startswith(" "))
    assert lines["state"] == "failed"
    assert lines["attempt"] == "1 of 3 by worker-1"
    assert lines["failure"].endswith("and more")
    assert "attempt 1  attempt_failed" in shown
    (document,) = typed(served, "jobs", "show", job_id, "--json").lines
    assert (document["id"], document["history"][0]["event"]) == (job_id, "attempt_failed")


def test_one_is_watched_to_its_end(served):
    job_id = submitted(served)
    thread = worked(served, lambda job: served.complete(job, b"42"))
    done = typed(served, "jobs", "watch", job_id)
    thread.join(WAIT_S)
    assert (done.code, done.out) == (0, "completed\n")
    assert done.err.splitlines()[0] == f"{job_id}  pending"


def test_a_result_is_printed_or_saved(served, tmp_path):
    job_id = submitted(served)
    early = typed(served, "jobs", "result", job_id)
    assert early.code == 1
    assert "there is no result yet" in early.error
    served.complete(served.claim(), b"\x00\xff")
    assert typed(served, "jobs", "result", job_id, "-o", tmp_path / "x").code == 0
    assert (tmp_path / "x").read_bytes() == b"\x00\xff"
    assert typed(served, "jobs", "result", job_id, "--wait", "-o", tmp_path / "y").code == 0
    nowhere = typed(served, "jobs", "result", job_id, "-o", tmp_path / "no" / "x")
    assert nowhere.code == 1
    assert "cannot be written" in nowhere.error


def test_several_are_cancelled_also_after_one_that_cannot_be(served):
    one, two = submitted(served), submitted(served)
    done = typed(served, "jobs", "cancel", one, "01a2007b-0000-7000-8000-000000000000", two)
    assert done.code == 1
    assert done.out.splitlines() == [f"{one}  cancelled", f"{two}  cancelled"]
    assert "there is no job" in done.error
    assert typed(served, "jobs", "retry", one, "--json").lines == [{"id": one, "state": "pending"}]
    assert typed(served, "jobs", "delete", two).out == f"{two}  deleted\n"


def test_dead_jobs_are_put_back_all_together(served):
    ids = {submitted(served, "-q", "night") for _ in range(3)}
    for _ in range(2):
        served.fail(served.claim("night"), FAILURE)
    looked = typed(served, "jobs", "requeue", "-q", "night", "--dry-run", "--json").lines
    assert {line["state"] for line in looked} == {"failed"}
    refused = typed(served, "jobs", "requeue", "-q", "night")
    assert refused.code == 1
    done = typed(served, "jobs", "requeue", "-q", "night", "--yes")
    assert (done.code, done.err) == (0, "2 jobs\n")
    assert {line.split()[0] for line in done.out.splitlines()} < ids
    assert len(typed(served, "jobs", "list", "--state", "pending", "--json").lines) == 3
