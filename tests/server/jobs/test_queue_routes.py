"""Routes of queues."""

from cases import for_each
from server.jobs.test_job_routes import submit


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
        "running": 0, "oldest_seconds": 0.0, "queued_by_region": {},
    }  # fmt: skip
    assert http.get("/v1/queues/a%2fb").status_code in (400, 404)


def test_scale_counts_due_and_running_jobs(served, http):
    for _ in range(5):
        submit(http)
    submit(http, delay_s=100)
    served.claim()
    served.claim()
    scale = http.get("/v1/queues/default/scale").json()
    assert scale["oldest_seconds"] >= 0
    assert scale == {
        "queue": "default", "queued": 3, "running": 2, "backlog": 5, "slots_per_worker": 1, "desired": 5,
        "oldest_seconds": scale["oldest_seconds"],
    }  # fmt: skip
    of_two = http.get("/v1/queues/default/scale", params={"slots_per_worker": 2}).json()
    assert (of_two["slots_per_worker"], of_two["desired"]) == (2, 3)
    assert http.get("/v1/queues/default/scale", params={"slots_per_worker": 0}).status_code == 400
    assert http.get("/v1/queues/empty/scale").json()["desired"] == 0
