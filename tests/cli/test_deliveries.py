"""``headrace deliveries``, ``headrace receivers`` and ``headrace jobs failures`` against a real job API."""

import pytest

from cli.job_commands import run_command
from headrace.jobs.job import JobFailure
from headrace.jobs.notify import Notification, WebhookTarget
from headrace.jobs.notify.delivery import Dead, DeliveryDecision, ReceiverHealth
from headrace.jobs.state import Cause
from jobs.memory_outbox import MemoryOutbox
from jobs.service_support import served_jobs


@pytest.fixture
def outbox():
    made = MemoryOutbox()
    made.add_receiver(WebhookTarget("hook", "https://hooks.example/jobs"))
    return made


@pytest.fixture
def served(outbox):
    with served_jobs(outbox=outbox) as made:
        yield made


def submit(served):
    return run_command(served, "submit", "--model", "m", "--input", "1", "--json").lines[0]["id"]


def test_failures_are_shown_in_groups(served):
    none = run_command(served, "jobs", "failures")
    assert (none.code, none.out) == (0, "")
    for row in (1, 2):
        job_id = submit(served)
        served.fail(served.claim(), JobFailure(Cause.MODEL, f"row {row} is odd", "ValueError"))
    head, row = run_command(served, "jobs", "failures").out.splitlines()
    assert head.split()[:2] == ["jobs", "fingerprint"]
    assert row.split()[0] == "2"
    assert row.endswith("ValueError: row 2 is odd")
    (group,) = run_command(served, "jobs", "failures", "--json").lines
    assert (group["jobs"], group["job_id"]) == (2, job_id)


def test_dead_deliveries_are_listed_and_delivered_again(served, outbox):
    job_id = submit(served)
    delivery_id = outbox.put(Notification("evt_1", "job.completed", job_id, 1), "hook")
    assert "no dead deliveries" in run_command(served, "deliveries").err
    (claim,) = outbox.claim(1, 60_000)
    outbox.record(claim, DeliveryDecision(Dead("HTTP 410"), ReceiverHealth(1, 5, 0), "HTTP 410"))
    (dead,) = run_command(served, "deliveries", "list", "--json").lines
    assert (dead["id"], dead["state"]) == (delivery_id, "dead")
    row = run_command(served, "deliveries", "job", job_id).out.splitlines()[1]
    assert row.split() == [delivery_id, job_id, "job.completed", "hook", "dead", "1", "HTTP", "410"]
    again = run_command(served, "deliveries", "redeliver", delivery_id, "unknown")
    assert (again.code, again.out) == (1, f"{delivery_id}  waiting\n")
    assert "no delivery 'unknown'" in again.err


def test_disabled_receiver_is_listed_and_enabled(served, outbox):
    assert "no failing receivers" in run_command(served, "receivers").err
    outbox.disable("hook", "HTTP 410 Gone")
    row = run_command(served, "receivers", "list").out.splitlines()[1]
    assert row.split()[:4] == ["hook", "webhook", "https://hooks.example/jobs", "0"]
    assert row.endswith("disabled: HTTP 410 Gone")
    assert run_command(served, "receivers", "enable", "hook").out == "hook  enabled\n"
    assert run_command(served, "receivers", "list", "--json").lines == []
