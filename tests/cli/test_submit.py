"""``headrace submit`` against a real job API."""

import json

import pytest

from cases import for_each
from cli.job_commands import run_command, work_after_first_event
from headrace.jobs.job import JobFailure, JobProgress
from headrace.jobs.ledger import ClaimRequest, JobFilter, QueueSettings
from headrace.jobs.state import Cause, JobState
from headrace.jobs.worker_registry import WorkerInfo
from integration.command import headrace
from jobs.service_support import served_jobs


@pytest.fixture
def served():
    with served_jobs() as made:
        yield made


def test_file_is_submitted_and_the_job_id_is_printed(served, tmp_path):
    (tmp_path / "rows.csv").write_bytes(b"1,2\n")
    served.ledger.register_worker(WorkerInfo("w", queues=("night",), models=("churn",)))
    done = run_command(
        served,
        "submit",
        tmp_path / "rows.csv",
        "-m",
        "churn",
        "-q",
        "night",
        "--tag",
        "day=1=2",
        "-O",
        "batch_rows_max=5",
        "--priority",
        "0",
        "--delay-s",
        "1.5",
        "--time-limit-s",
        "60",
        "--correlation-id",
        "c",
    )
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
    assert (spec.options, spec.priority, spec.delay_ms, spec.time_limit_s) == (
        {"batch_rows_max": 5},
        0,
        1500,
        60,
    )
    assert served.stores.for_uri(spec.input_uri).get(spec.input_uri) == b"1,2\n"


def test_job_comes_after_others(served):
    first, second = (run_command(served, "submit", "-m", "m", "--input", "1").out.strip() for _ in range(2))
    done = run_command(served, "submit", "-m", "m", "--input", "1", "--after", first, "--after", second)
    job = served.ledger.get(done.out.strip())
    assert (job.state, job.spec.after) == (JobState.BLOCKED, (first, second))
    shown = run_command(served, "jobs", "show", job.id).out
    assert f"{first}, {second}" in shown
    assert "blocked" in run_command(served, "jobs", "list").out
    (queue,) = run_command(served, "queues", "list", "--json").lines
    assert queue["blocked"] == 1


def test_value_and_uri_are_payloads(served):
    assert run_command(served, "submit", "-m", "m", "--input", '{"x":[1]}').code == 0
    assert run_command(served, "submit", "-m", "m", "s3://in/k.csv").code == 0
    named, inline = served.ledger.find(JobFilter()).jobs
    assert {named.spec.input_uri, inline.spec.input_uri} >= {"s3://in/k.csv"}
    (line,) = run_command(served, "submit", "-m", "m", "--input", "1", "--json").lines
    assert (line["state"], line["model"]) == ("pending", "m")


def test_same_idempotency_key_returns_the_same_job(served):
    job_ids = {
        run_command(served, "submit", "-m", "m", "--input", "1", "--idempotency-key", "k").out
        for _ in range(2)
    }
    assert len(job_ids) == 1
    other = run_command(served, "submit", "-m", "m", "--input", "2", "--idempotency-key", "k")
    assert other.code == 1
    assert "was used for job" in other.error


def test_second_job_of_a_key_is_refused_or_replaces(served):
    named = ("submit", "-m", "m", "--input", "1", "--output-uri", "s3://out", "--key", "day 0.csv")
    first = run_command(served, *named).out.strip()
    refused = run_command(served, *named)
    assert refused.code == 1
    assert first in refused.error
    assert run_command(served, *named, "--if-exists", "replace").code == 0
    assert run_command(served, *named, "--if-exists", "version").code == 0
    assert run_command(served, *named, "--if-exists", "rename").code == 2


def test_wait_prints_or_saves_the_result(served, tmp_path, monkeypatch):
    def work(job):
        served.report_progress(job, JobProgress(1, 2, "rows"))
        served.complete(job, b"0.5\n", "text/csv")

    work_after_first_event(monkeypatch, served, work)
    served.ledger.register_worker(WorkerInfo("w", queues=("default",), models=("m",)))
    done = run_command(served, "submit", "-m", "m", "--input", "[1]", "--wait")
    assert (done.code, done.out) == (0, "0.5\n")
    assert done.err.splitlines()[0].startswith("submitted ")
    assert done.err.splitlines()[-1].endswith("completed  50% of 2 rows")
    done = run_command(
        served, "submit", "-m", "m", "--input", "[2]", "--wait", "--output", tmp_path / "out.csv"
    )
    assert (done.code, done.out, (tmp_path / "out.csv").read_bytes()) == (0, "", b"0.5\n")


def test_wait_for_a_failed_job_shows_the_reason(served, monkeypatch):
    work_after_first_event(
        monkeypatch,
        served,
        lambda job: served.fail(job, JobFailure(Cause.MODEL, "it raised\nbadly", "ValueError")),
    )
    done = run_command(served, "submit", "-m", "m", "--input", "[1]", "--wait", "--json")
    assert done.code == 1
    assert [json.loads(line)["state"] for line in done.out.splitlines()][-1] == "failed"
    assert "failed: model: it raised badly" in done.err


@for_each(
    ("arguments", "status", "reason"),
    [
        ((), 2, "give either PAYLOAD or --input"),
        (("x.csv", "--input", "1"), 2, "give either PAYLOAD or --input"),
        (("--input", "1", "--output", "x"), 2, "--output requires --wait"),
        (("--input", "{"), 2, "--input is not valid JSON"),
        (("nowhere.csv",), 1, "the file does not exist"),
        (("--input", "1", "--tag", "x"), 1, "--tag 'x' must be NAME=VALUE"),
        (("--input", "1", "--notify", "{"), 2, "--notify is not valid JSON"),
        (("s3://elsewhere/k",), 1, "is not permitted; permitted inputs: "),
    ],
)
def test_invalid_submission_is_one_line(served, arguments, status, reason):
    done = run_command(served, "submit", "-m", "m", *arguments)
    assert (done.code, done.out) == (status, "")
    assert reason in done.err


def test_unknown_model_is_wrong_usage_and_an_unserved_queue_a_warning(served):
    served.ledger.register_worker(WorkerInfo("w", queues=("default",), models=("churn",)))
    refused = run_command(served, "submit", "-m", "chrun", "--input", "1", "--json")
    assert refused.code == 2
    assert "did you mean churn?" in refused.err
    assert refused.lines[0]["exit_code"] == 2
    done = run_command(served, "submit", "-m", "churn", "--input", "1", "-q", "other")
    assert done.code == 0
    assert "warning: no worker has served queue other" in done.err
    (job,) = served.ledger.find(JobFilter()).jobs
    assert done.out.strip() == job.id
    assert run_command(served, "submit", "-m", "churn", "--input", "1").err == ""


def test_help_has_examples():
    assert "headrace submit rows.csv --model churn --wait" in headrace("submit", "--help").out


def test_region_is_submitted_and_shown(served):
    done = run_command(served, "submit", "-m", "m", "--input", "1", "--region", "eu-west-1")
    job_id = done.out.strip()
    assert "eu-west-1" in run_command(served, "jobs", "list").out
    shown = [line.split(maxsplit=1) for line in run_command(served, "jobs", "show", job_id).out.splitlines()]
    assert ["region", "eu-west-1"] in shown
    claim = ClaimRequest("w", ("default",), 1, 60_000, "us", other_regions=True)
    served.ledger.settle_and_claim((), claim)
    assert "eu-west-1, processed in us" in run_command(served, "jobs", "show", job_id).out
    wrong = run_command(served, "submit", "-m", "m", "--input", "1", "--region", "eu west")
    assert (wrong.code, "region: 'eu west' is not a valid region" in wrong.err) == (1, True)


def write_lines(path, *lines):
    path.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
    return path


def test_batch_submits_a_job_for_each_line(served, tmp_path):
    served.ledger.set_queue(QueueSettings("closed", draining=True))
    path = write_lines(
        tmp_path / "jobs.jsonl",
        {"input": [1], "tags": {"n": "1"}},
        "\n",
        {"input": [2], "queue": "closed"},
        {"input_uri": "s3://in/a.csv", "model": "other"},
    )
    options = ("submit", "--batch", path, "-m", "churn", "--priority", "1", "--idempotency-key", "day")
    done = run_command(served, *options)
    assert done.code == 1
    other, churn = served.ledger.find(JobFilter()).jobs
    assert done.out.split() == [churn.id, other.id]
    assert "refused: line 3: queue closed is" in done.err
    assert done.err.endswith("2 submitted, 1 refused\n")
    assert (churn.spec.model, churn.spec.priority, churn.spec.idempotency_key) == ("churn", 1, "day-1")
    assert (other.spec.model, other.spec.priority, other.spec.idempotency_key) == ("other", 1, "day-4")

    again = run_command(served, *options, "--json")
    lines = [json.loads(line) for line in again.out.splitlines()]
    assert [line.get("id") for line in lines] == [churn.id, None, other.id]
    assert (lines[1]["event"], lines[1]["line"], lines[1]["type"]) == ("refused", 3, "QueueClosedError")
    assert len(served.ledger.find(JobFilter()).jobs) == 2


def test_batch_submits_all_jobs_or_none(served, tmp_path):
    path = write_lines(tmp_path / "jobs.jsonl", {"input": [1]}, {"input": [2], "colour": "red"})
    done = run_command(served, "submit", "--batch", path, "-m", "churn", "--all-or-nothing")
    assert done.code == 1
    assert "'colour' is not an argument of submit" in done.err
    path = write_lines(tmp_path / "jobs.jsonl", {"input": [1]}, {"input": [2], "priority": 10})
    done = run_command(served, "submit", "--batch", path, "-m", "churn", "--all-or-nothing")
    assert "nothing was queued, because of jobs[1]: priority" in done.err
    assert served.ledger.find(JobFilter()).jobs == ()


def test_malformed_batches_are_refused(served, tmp_path):
    for lines, reason in (
        (("{",), "jobs.jsonl, line 1: is not JSON"),
        ((json.dumps({"input": 1}) + "\n", "[1]\n"), "jobs.jsonl, line 2: must be a JSON object"),
        ((), "has no jobs"),
    ):
        done = run_command(served, "submit", "--batch", write_lines(tmp_path / "jobs.jsonl", *lines))
        assert (done.code, reason in done.err) == (1, True), done.err
    path = tmp_path / "jobs.jsonl"
    for arguments in (("a.csv", "--batch", path), ("--batch", path, "--wait"), ("--all-or-nothing", "a.csv")):
        assert run_command(served, "submit", *arguments).code == 2
    assert served.ledger.find(JobFilter()).jobs == ()
