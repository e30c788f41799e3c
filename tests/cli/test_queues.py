"""``headrace queues`` as it is typed, against a real API."""

import pytest

from cli.test_submit import typed
from jobs.desk_support import served_jobs


@pytest.fixture
def served():
    with served_jobs() as made:
        yield made


def test_queues_are_a_table_or_json(served):
    none = typed(served, "queues")
    assert (none.code, none.out) == (0, "")
    assert "there is no queue" in none.err
    typed(served, "submit", "-m", "m", "--input", "1", "-q", "night")
    rows = [line.split() for line in typed(served, "queues").out.splitlines()]
    assert rows[1] == ["night", "1", "0", "0", "0", "-", "open"]
    (queue,) = typed(served, "queues", "list", "--json").lines
    assert (queue["queue"], queue["queued"]) == ("night", 1)


@pytest.mark.parametrize(
    ("verb", "state"), [("pause", "paused"), ("drain", "draining"), ("resume", "open"), ("bound", "open")]
)
def test_a_queue_is_changed_and_shown(served, verb, state):
    done = typed(served, "queues", verb, "night")
    assert done.code == 0
    assert done.out.splitlines()[1].split()[-1] == state
    assert served.ledger.queue("night").paused == (verb == "pause")
    assert served.ledger.queue("night").draining == (verb == "drain")


def test_a_queue_is_bounded(served):
    assert typed(served, "queues", "bound", "night", "1000", "--json").lines[0]["pending_max"] == 1000
    assert served.ledger.queue("night").pending_max == 1000


def test_what_it_wants_is_lines_or_json(served):
    typed(served, "submit", "-m", "m", "--input", "1")
    assert typed(served, "queues", "scale", "default", "--json").lines[0]["desired"] == 1
    lines = dict(line.split() for line in typed(served, "queues", "scale", "default").out.splitlines())
    assert lines["desired"] == lines["backlog"] == "1"


def test_what_waits_in_regions_is_seen(served):
    typed(served, "submit", "-m", "m", "--input", "1", "--region", "eu-west-1")
    typed(served, "submit", "-m", "m", "--input", "1", "--region", "us")
    typed(served, "submit", "-m", "m", "--input", "1")
    lines = typed(served, "queues").out.splitlines()
    assert lines[0].rstrip().endswith("queued by region")
    assert lines[1].rstrip().endswith("eu-west-1 1, us 1")
    (queue,) = typed(served, "queues", "list", "--json").lines
    assert (queue["queued"], queue["queued_by_region"]) == (3, {"eu-west-1": 1, "us": 1})
