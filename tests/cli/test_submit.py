"""``headrace submit`` as it is typed, against a real API."""

import json
import threading

import pytest

from headrace.jobs.cause import Cause
from headrace.jobs.job import JobFailure, Progress
from headrace.jobs.ledger import ClaimRequest, JobFilter
from integration.command import headrace
from jobs.desk_support import WAIT_S, served_jobs


@pytest.fixture
def served():
    with served_jobs() as made:
        yield made


def typed(served, *arguments):
    return headrace(*arguments, environ={"HEADRACE_SERVER": served.url})


def worked(served, work):
    """What a worker does as soon as there is a job."""

    def run():
        follower = served.desk._follower
        while not follower.followers:
            threading.Event().wait(0.002)
        work(served.claim())

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_a_file_is_a_job_and_its_id_is_said(served, tmp_path):
    (tmp_path / "rows.csv").write_bytes(b"1,2\n")
    done = typed(
        served, "submit", tmp_path / "rows.csv", "-m", "churn", "-q", "night", "--tag", "day=1=2", "-O", "batch_rows=5",
        "--priority", "0", "--delay-s", "1.5", "--time-limit-s", "60", "--correlation-id", "c",
    )  # fmt: skip
    assert (done.code, done.err) == (0, "")
    (job,) = served.ledger.find(JobFilter()).jobs
    spec = job.spec
    assert done.out == f"{job.id}\n"
    assert (spec.model, spec.queue, spec.content_type, spec.tags) == (
        "churn",
        "night",
        "text/csv",
        {"day": "1=2"},
    )
    assert (spec.options, spec.priority, spec.delay_ms, spec.time_limit_s) == ({"batch_rows": 5}, 0, 1500, 60)
    assert served.stores.for_uri(spec.input_uri).get(spec.input_uri) == b"1,2\n"


def test_a_value_and_an_object_are_payloads_too(served):
    assert typed(served, "submit", "-m", "m", "--input", '{"x":[1]}').code == 0
    assert typed(served, "submit", "-m", "m", "s3://in/k.csv").code == 0
    named, inline = served.ledger.find(JobFilter()).jobs
    assert {named.spec.input_uri, inline.spec.input_uri} >= {"s3://in/k.csv"}
    (line,) = typed(served, "submit", "-m", "m", "--input", "1", "--json").lines
    assert (line["state"], line["model"]) == ("pending", "m")


def test_the_same_key_is_the_same_job(served):
    said = {
        typed(served, "submit", "-m", "m", "--input", "1", "--idempotency-key", "k").out for _ in range(2)
    }
    assert len(said) == 1
    other = typed(served, "submit", "-m", "m", "--input", "2", "--idempotency-key", "k")
    assert other.code == 1
    assert "stands for job" in other.error


def test_waiting_gives_the_result(served, tmp_path):
    def work(job):
        served.tell(job, Progress(1, 2, "rows"))
        served.complete(job, b"0.5\n", "text/csv")

    thread = worked(served, work)
    done = typed(served, "submit", "-m", "m", "--input", "[1]", "--wait")
    thread.join(WAIT_S)
    assert (done.code, done.out) == (0, "0.5\n")
    assert done.err.splitlines()[0].startswith("submitted ")
    assert done.err.splitlines()[-1].endswith("completed  50% of 2 rows")
    thread = worked(served, work)
    done = typed(served, "submit", "-m", "m", "--input", "[2]", "--wait", "--output", tmp_path / "out.csv")
    thread.join(WAIT_S)
    assert (done.code, done.out, (tmp_path / "out.csv").read_bytes()) == (0, "", b"0.5\n")


def test_waiting_for_one_that_fails_says_why(served):
    thread = worked(
        served, lambda job: served.fail(job, JobFailure(Cause.MODEL, "it raised\nbadly", "ValueError"))
    )
    done = typed(served, "submit", "-m", "m", "--input", "[1]", "--wait", "--json")
    thread.join(WAIT_S)
    assert done.code == 1
    assert [json.loads(line)["state"] for line in done.out.splitlines()][-1] == "failed"
    assert "failed: model: it raised badly" in done.err


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        ((), 2, "give a PAYLOAD, or --input"),
        (("x.csv", "--input", "1"), 2, "give a PAYLOAD, or --input"),
        (("--input", "1", "--output", "x"), 2, "--output is for the result"),
        (("--input", "{"), 1, "--input is not JSON"),
        (("nowhere.csv",), 1, "there is no such file"),
        (("--input", "1", "--tag", "x"), 1, "--tag 'x' must be NAME=VALUE"),
        (("--input", "1", "--notify", "{"), 1, "--notify is not JSON"),
        (("s3://elsewhere/k",), 1, "outside of what this key may name"),
    ],
)
def test_what_cannot_be_is_one_line(served, arguments, code, why):
    done = typed(served, "submit", "-m", "m", *arguments)
    assert (done.code, done.out) == (code, "")
    assert why in done.err


def test_help_has_examples():
    assert "headrace submit rows.csv --model churn --wait" in headrace("submit", "--help").out


def test_a_region_is_submitted_and_shown(served):
    done = typed(served, "submit", "-m", "m", "--input", "1", "--region", "eu-west-1")
    job_id = done.out.strip()
    assert "eu-west-1" in typed(served, "jobs", "list").out
    shown = [line.split(maxsplit=1) for line in typed(served, "jobs", "show", job_id).out.splitlines()]
    assert ["region", "eu-west-1"] in shown
    claim = ClaimRequest("w", ("default",), 1, 60_000, "us", other_regions=True)
    served.ledger.turn((), claim)
    assert "eu-west-1, worked on in us" in typed(served, "jobs", "show", job_id).out
    wrong = typed(served, "submit", "-m", "m", "--input", "1", "--region", "eu west")
    assert (wrong.code, "region: 'eu west' cannot be a region" in wrong.err) == (1, True)
