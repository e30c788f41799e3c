"""The routes of failures: groups of failed jobs, deliveries and receivers, over a real ledger and outbox."""

import httpx
import pytest

from headrace.app.notify_entries import notify_preparation
from headrace.config.jobs_file import JobsFile
from headrace.core.errors import ResourceNotFoundError
from headrace.jobs.client import Client
from headrace.jobs.encryption import KEY_BYTES, EncryptionKey
from headrace.jobs.job import JobFailure
from headrace.jobs.ledgers import open_ledger
from headrace.jobs.notify import make_secret
from headrace.jobs.notify.delivery import Dead, DeliveryDecision, ReceiverHealth
from headrace.jobs.state import Cause
from jobs.service_support import served_jobs

HOOK = {"webhook": "https://hooks.example/jobs", "secret": make_secret(), "events": ["failed"]}


@pytest.fixture
def served(tmp_path):
    ledger = open_ledger(f"sqlite:///{tmp_path}/jobs.db")
    notify = notify_preparation(JobsFile(), EncryptionKey([bytes(KEY_BYTES)]))
    with served_jobs(ledger=ledger, outbox=ledger.outbox, prepare_notify=notify) as made:
        yield made
    ledger.stop()


@pytest.fixture
def client(served):
    with Client(served.url) as made:
        yield made


def fail(served, client, message, **options):
    job = client.submit("m", 1, **options)
    served.fail(served.claim(), JobFailure(Cause.MODEL, message, "ValueError"))
    return job.id


def give_up(served, why="HTTP 410"):
    outbox = served.ledger.outbox
    (claim,) = outbox.claim(1, 60_000)
    assert outbox.record(claim, DeliveryDecision(Dead(why), ReceiverHealth(1, 5, 0), why))
    return claim.delivery_id


def test_failed_jobs_are_grouped_by_failure(served, client):
    fail(served, client, "row 1 is odd")
    last = fail(served, client, "row 2 is odd")
    other = fail(served, client, "too large")
    client.submit("m", 1)
    large, small = client.failures()
    assert (large["jobs"], large["job_id"], large["message"]) == (2, last, "row 2 is odd")
    assert (large["cause"], large["error"], large["model"]) == ("model", "ValueError", "m")
    assert (small["jobs"], small["job_id"]) == (1, other)
    document = httpx.get(f"{served.url}/v1/jobs/{last}").json()
    assert document["fingerprint"] == large["fingerprint"]
    assert client.failures(limit=1) == [large]


def test_job_without_notifications_has_no_deliveries(served, client):
    assert client.deliveries(fail(served, client, "x")) == []
    assert client.dead_deliveries() == []


def test_dead_delivery_is_listed_and_delivered_again(served, client):
    job_id = fail(served, client, "x", notify=[HOOK])
    (waiting,) = client.deliveries(job_id)
    assert (waiting["state"], waiting["attempts"], waiting["type"]) == ("waiting", 0, "job.failed")
    assert waiting["at_ms"] >= client.get(job_id).ended_at_ms
    delivery_id = give_up(served)
    (dead,) = client.dead_deliveries()
    assert dead == client.deliveries(job_id)[0]
    assert (dead["id"], dead["job_id"], dead["state"], dead["why"]) == (
        delivery_id,
        job_id,
        "dead",
        "HTTP 410",
    )
    again = client.redeliver(delivery_id)
    assert (again["state"], again["attempts"], again["event_id"]) == ("waiting", 0, dead["event_id"])
    assert client.dead_deliveries() == []


def test_disabled_receiver_is_listed_without_its_secrets_and_enabled(served, client):
    fail(served, client, "x", notify=[HOOK])
    assert client.failing_receivers() == []
    give_up(served, "HTTP 410 Gone")
    (receiver,) = client.failing_receivers()
    assert (receiver["kind"], receiver["address"]) == ("webhook", "https://hooks.example/jobs")
    assert (receiver["disabled_why"], receiver["failures"]) == ("HTTP 410 Gone", 1)
    assert "secret" not in str(receiver)
    enabled = client.enable_receiver(receiver["receiver"])
    assert (enabled["disabled_why"], enabled["failures"]) == ("", 0)
    assert client.failing_receivers() == []


def test_unknown_names_are_not_found(client):
    with pytest.raises(ResourceNotFoundError, match="no delivery 'nowhere'"):
        client.redeliver("nowhere")
    with pytest.raises(ResourceNotFoundError, match="no receiver 'nowhere'"):
        client.enable_receiver("nowhere")
