"""``headrace queues`` against a real job API."""

import pytest

from cases import for_each
from cli.job_commands import run_command
from jobs.service_support import served_jobs


@pytest.fixture
def served():
    with served_jobs() as made:
        yield made


def test_queues_are_a_table_or_json(served):
    none = run_command(served, "queues")
    assert (none.code, none.out) == (0, "")
    assert "no queues" in none.err
    run_command(served, "submit", "-m", "m", "--input", "1", "-q", "night")
    rows = [line.split() for line in run_command(served, "queues").out.splitlines()]
    assert rows[1] == ["night", "1", "0", "0", "0", "0", "-", "open"]
    (queue,) = run_command(served, "queues", "list", "--json").lines
    assert (queue["queue"], queue["queued"]) == ("night", 1)


@for_each(
    ("verb", "state"), [("pause", "paused"), ("drain", "draining"), ("resume", "open"), ("bound", "open")]
)
def test_queue_is_changed_and_shown(served, verb, state):
    done = run_command(served, "queues", verb, f"to-{verb}")
    assert done.code == 0
    assert done.out.splitlines()[1].split()[-1] == state
    assert served.ledger.queue(f"to-{verb}").paused == (verb == "pause")
    assert served.ledger.queue(f"to-{verb}").draining == (verb == "drain")


def test_queue_is_limited(served):
    assert run_command(served, "queues", "bound", "night", "1000", "--json").lines[0]["pending_max"] == 1000
    assert served.ledger.queue("night").pending_max == 1000


def test_unused_queue_is_removed(served):
    run_command(served, "queues", "pause", "night")
    done = run_command(served, "queues", "remove", "night")
    assert (done.code, done.out) == (0, "night  removed\n")
    assert served.ledger.queues() == []
    assert run_command(served, "queues", "remove", "night", "--json").lines == [
        {"queue": "night", "state": "removed"}
    ]


def test_queue_with_unfinished_jobs_is_not_removed(served):
    run_command(served, "submit", "-m", "m", "--input", "1", "-q", "night")
    refused = run_command(served, "queues", "remove", "night")
    assert (refused.code, refused.out) == (1, "")
    assert "queue night has unfinished jobs" in refused.err
    assert [queue.name for queue in served.ledger.queues()] == ["night"]


def test_scale_is_lines_or_json(served):
    run_command(served, "submit", "-m", "m", "--input", "1")
    (scale,) = run_command(served, "queues", "scale", "default", "--json").lines
    reason = "1 due and 0 running jobs, 1 for each worker"
    assert (scale["desired"], scale["reason"]) == (1, reason)
    out = run_command(served, "queues", "scale", "default").out
    assert [line.split(maxsplit=1) for line in out.splitlines()] == [
        ["queue", "default"],
        ["queued", "1"],
        ["running", "0"],
        ["backlog", "1"],
        ["slots_per_worker", "1"],
        ["desired", "1"],
        ["oldest_seconds", "0.0"],
        ["reason", reason],
    ]


def test_waiting_jobs_are_shown_by_region(served):
    run_command(served, "submit", "-m", "m", "--input", "1", "--region", "eu-west-1")
    run_command(served, "submit", "-m", "m", "--input", "1", "--region", "us")
    run_command(served, "submit", "-m", "m", "--input", "1")
    lines = run_command(served, "queues").out.splitlines()
    assert lines[0].rstrip().endswith("queued by region")
    assert lines[1].rstrip().endswith("eu-west-1 1, us 1")
    (queue,) = run_command(served, "queues", "list", "--json").lines
    assert (queue["queued"], queue["queued_by_region"]) == (3, {"eu-west-1": 1, "us": 1})
