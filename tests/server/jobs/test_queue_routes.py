"""Routes of queues, and what keys of two tenants see of them."""

from contextlib import ExitStack

import pytest

from cases import for_each
from headrace.jobs.access import Scope
from headrace.jobs.worker_registry import WorkerInfo
from headrace.testing import ManualWallClock, MemoryJobLedger
from jobs.service_support import key_of, served_jobs
from server.jobs.test_job_routes import submit

SCALE = "/v1/queues/default/scale"


def test_queue_is_paused_drained_and_resumed(served, http):
    submit(http)
    look = http.post("/v1/queues/default/pause").json()
    assert (look["paused"], look["draining"], look["queued"]) == (True, False, 1)
    assert http.post("/v1/queues/default/drain").json()["draining"]
    assert served.ledger.queue("default").paused
    assert served.ledger.queue("default").draining
    look = http.post("/v1/queues/default/resume").json()
    assert (look["paused"], look["draining"]) == (False, False)
    assert served.claim()


def test_limit_change_keeps_other_settings(http):
    http.post("/v1/queues/night/pause")
    look = http.patch("/v1/queues/night", json={"pending_max": 5}).json()
    assert (look["paused"], look["pending_max"]) == (True, 5)
    assert http.patch("/v1/queues/night", json={"pending_max": None}).json()["pending_max"] is None
    assert [queue["queue"] for queue in http.get("/v1/queues").json()["queues"]] == ["night"]


@for_each(
    "document",
    [
        {},
        {"pending_max": -1},
        {"pending_max": "5"},
        {"pending_max": True},
        {"pending_max": 1, "paused": True},
        [],
    ],
)
def test_invalid_change_is_refused(refused, document):
    response = refused.patch("/v1/queues/night", json=document)
    assert (response.status_code, response.json()["type"]) == (400, "DataError")
    assert refused.get("/v1/queues").json() == {"queues": []}


def test_unknown_queue_is_empty(http):
    look = http.get("/v1/queues/nowhere").json()
    assert look == {
        "queue": "nowhere", "paused": False, "draining": False, "pending_max": None, "queued": 0, "later": 0,
        "blocked": 0, "running": 0, "oldest_seconds": 0.0, "queued_by_region": {},
    }  # fmt: skip
    assert http.get("/v1/queues/a%2fb").status_code in (400, 404)


def test_scale_counts_due_and_running_jobs(served, http):
    for _ in range(5):
        submit(http)
    submit(http, delay_s=100)
    served.claim()
    served.claim()
    scale = http.get(SCALE).json()
    assert scale["oldest_seconds"] >= 0
    assert list(scale.items()) == [
        ("queue", "default"),
        ("queued", 3),
        ("running", 2),
        ("backlog", 5),
        ("slots_per_worker", 1),
        ("desired", 5),
        ("oldest_seconds", scale["oldest_seconds"]),
        ("reason", "3 due and 2 running jobs, 1 for each worker"),
    ]


def test_scale_of_an_unknown_queue_is_zero(http):
    assert http.get("/v1/queues/empty/scale").json() == {
        "queue": "empty", "queued": 0, "running": 0, "backlog": 0, "slots_per_worker": 1, "desired": 0,
        "oldest_seconds": 0.0, "reason": "0 due and 0 running jobs, 1 for each worker",
    }  # fmt: skip


def test_slots_of_the_request_replace_those_of_the_server(make_ledger):
    with served_jobs(ledger=make_ledger(), slots_per_worker=4) as served, served.client() as http:
        for _ in range(5):
            submit(http)
        for params, slots, desired in (({}, 4, 2), ({"slots_per_worker": 2}, 2, 3)):
            scale = http.get(SCALE, params=params).json()
            assert (scale["slots_per_worker"], scale["desired"]) == (slots, desired)
            assert scale["reason"] == f"5 due and 0 running jobs, {slots} for each worker"
        assert http.get(SCALE, params={"slots_per_worker": 1}).json()["desired"] == 5


@for_each("slots", ["0", "-1", "10001", "x", "1.5"])
def test_invalid_slots_are_refused(http, slots):
    response = http.get(SCALE, params={"slots_per_worker": slots})
    assert (response.status_code, response.json()["type"]) == (400, "DataError")
    assert response.json()["error"].startswith("slots_per_worker: ")


def test_scale_is_unavailable_without_the_ledger():
    ledger = MemoryJobLedger(ManualWallClock())
    with served_jobs(ledger=ledger) as served, served.client() as http:
        submit(http)
        ledger.unavailable = True
        response = http.get(SCALE)
        assert (response.status_code, response.json()["type"]) == (503, "JobLedgerUnavailableError")
        assert "desired" not in response.json()


def test_removed_queue_has_no_settings(served, http):
    http.post("/v1/queues/night/pause")
    job_id = submit(http, queue="night")["id"]
    refused = http.delete("/v1/queues/night")
    assert (refused.status_code, refused.json()["type"]) == (409, "QueueInUseError")
    assert http.get("/v1/queues/night").json()["paused"]
    http.post(f"/v1/jobs/{job_id}/cancel")
    for _ in range(2):
        done = http.delete("/v1/queues/night")
        assert (done.status_code, done.content) == (204, b"")
    assert [entry.subject for entry in served.ledger.audit(action="queue.delete").entries] == ["night"]
    assert http.get("/v1/queues").json() == {"queues": []}
    assert not http.get("/v1/queues/night").json()["paused"]
    assert http.get(f"/v1/jobs/{job_id}").json()["queue"] == "night"
    http.post(f"/v1/jobs/{job_id}/retry")
    assert [queue["queue"] for queue in http.get("/v1/queues").json()["queues"]] == ["night"]


# Two tenants


@pytest.fixture
def tenants(make_ledger):
    """Serve an API for keys of two tenants, of which `ann` has jobs in three queues."""
    keys = {
        "ann": key_of("ann"),
        "bob": key_of("bob"),
        "named": key_of("named", tenant="bob", queues=frozenset({"default", "named"})),
        "scaler": key_of("scaler", Scope.MONITOR, queues=frozenset({"named"})),
        "sender": key_of("sender", Scope.SUBMIT),
        "ops": key_of("ops", Scope.OPERATE),
    }
    with served_jobs(ledger=make_ledger(), keys=keys.values()) as made, ExitStack() as stack:
        clients = {name: stack.enter_context(made.client(text)) for name, (text, _, _) in keys.items()}
        for queue in ("default", "default", "ann-night", "ann-gpu"):
            submit(clients["ann"], queue=queue, region="eu")
        made.claim("default")
        clients["ops"].post("/v1/queues/named/pause")
        made.ledger.register_worker(
            WorkerInfo("w", queues=("ann-night", "ann-gpu"), models=("m", "ann-model"))
        )
        yield clients


def seen(client):
    """Return the listed queues with their numbers of due and running jobs."""
    queues = client.get("/v1/queues").json()["queues"]
    return {each["queue"]: (each["queued"], each["running"]) for each in queues}


def test_tenant_sees_its_own_queues_and_counts(tenants):
    ann, bob, named = tenants["ann"], tenants["bob"], tenants["named"]
    assert seen(ann) == {"default": (1, 1), "ann-night": (1, 0), "ann-gpu": (1, 0)}
    assert seen(bob) == {}
    assert seen(named) == {"default": (0, 0), "named": (0, 0)}
    job_id = submit(bob, queue="default", region="us")["id"]
    assert seen(bob) == {"default": (1, 0)}
    (queue,) = bob.get("/v1/queues").json()["queues"]
    alone = bob.get("/v1/queues/default").json()
    assert [each | {"oldest_seconds": 0} for each in (queue, alone)] == [alone | {"oldest_seconds": 0}] * 2
    assert queue["queued_by_region"] == {"us": 1}
    scale = bob.get(SCALE).json()
    assert (scale["desired"], scale["reason"]) == (1, "1 due and 0 running jobs, 1 for each worker")
    bob.post(f"/v1/jobs/{job_id}/cancel")
    assert seen(bob) == {}


def test_scope_monitor_counts_the_jobs_of_all_tenants(tenants):
    everything = {"default": (1, 1), "ann-night": (1, 0), "ann-gpu": (1, 0), "named": (0, 0)}
    for name in ("scaler", "ops"):
        assert seen(tenants[name]) == everything
        scale = tenants[name].get(SCALE).json()
        assert (scale["desired"], scale["reason"]) == (2, "1 due and 1 running jobs, 1 for each worker")
        assert tenants[name].get("/v1/queues/ann-gpu").json()["queued"] == 1
    assert tenants["scaler"].get("/v1/jobs").status_code == 403
    for path in ("/v1/queues", "/v1/queues/default", SCALE):
        assert tenants["sender"].get(path).status_code == 403


@for_each("path", ["", "/scale"])
def test_queue_with_jobs_of_another_tenant_looks_like_an_unknown_one(tenants, path):
    def responses(name, queue):
        response = tenants[name].get(f"/v1/queues/{queue}{path}")
        return response.status_code, response.text.replace(queue, "QUEUE")

    for name, status in (("bob", 200), ("named", 403)):
        known, unknown = responses(name, "ann-night"), responses(name, "ann-never")
        assert known[0] == unknown[0] == status
        without_id = [text.partition("request_id")[0] for _, text in (known, unknown)]
        assert without_id[0] == without_id[1]


def test_messages_of_submissions_name_no_queue_of_another_tenant(tenants):
    for name in ("bob", "named"):
        warned = tenants[name].post("/v1/jobs", json={"model": "ann-mode", "input": 1}).json()
        assert warned["warnings"] == [
            "no worker has served queue default in the last 30 days: the job waits for one"
        ]
    refused = tenants["bob"].post("/v1/jobs", json={"model": "x", "input": 1, "queue": "ann-night"})
    assert refused.status_code == 404
    assert "ann-gpu" not in refused.text
    forbidden = tenants["named"].post("/v1/jobs", json={"model": "x", "input": 1, "queue": "ann-night"})
    assert (forbidden.status_code, "ann-gpu" in forbidden.text) == (403, False)


def test_only_operators_remove_queues(tenants):
    for name in ("ann", "bob", "named", "scaler"):
        assert tenants[name].delete("/v1/queues/named").status_code == 403
    assert tenants["ops"].delete("/v1/queues/named").status_code == 204
    assert seen(tenants["named"]) == {"default": (0, 0)}
