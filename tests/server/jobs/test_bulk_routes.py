"""The routes of actions on many jobs and of the audit log, and that every change is recorded."""

import asyncio
from types import SimpleNamespace

import pytest

from headrace.core.errors import DataError, NotFoundError
from headrace.jobs.access import Scope
from headrace.jobs.client import AsyncClient, Client, core
from headrace.jobs.notify import Notification, WebhookTarget
from headrace.jobs.worker_registry import WorkerInfo
from jobs.memory_outbox import MemoryOutbox
from jobs.service_support import key_of, served_jobs

OPS = key_of("ops", Scope.OPERATE)
ADMIN = key_of("root", Scope.ADMIN)
ANN = key_of("ann")


@pytest.fixture
def world():
    with (
        served_jobs(keys=[OPS, ADMIN, ANN], outbox=(outbox := MemoryOutbox())) as served,
        served.client(OPS[0]) as ops,
        served.client(ADMIN[0]) as admin,
        served.client(ANN[0]) as ann,
    ):
        yield SimpleNamespace(served=served, ops=ops, admin=admin, ann=ann, outbox=outbox)


def submit(http, **fields):
    return http.post("/v1/jobs", json={"model": "m", "input": [1], **fields}).json()["id"]


def entries(world, **query):
    return world.ops.get("/v1/audit", params=query).json()["entries"]


def test_jobs_are_changed_by_a_filter(world):
    for _ in range(3):
        submit(world.ann, tags={"day": "1"})
    submit(world.ann)
    request = {"action": "cancel", "filter": {"tag": ["day=1"], "state": ["pending"]}, "limit": 2}
    first = world.ann.post("/v1/jobs/bulk", json=request).json()
    after = first.pop("next_after")
    assert first == {"action": "cancel", "dry_run": False, "matched": 2, "changed": 2, "skipped": {}}
    second = world.ann.post("/v1/jobs/bulk", json={**request, "after": after}).json()
    assert (second["changed"], second["next_after"]) == (1, "")


def test_invalid_requests_are_refused(world):
    for body in (
        {"action": "cancel"},
        {"action": "explode", "all": True},
        {"action": "cancel", "filter": {"unknown": "q"}},
        {"action": "cancel", "filter": {"tag": ["day"]}},
        {"action": "cancel", "filter": {"queue": "q"}, "limit": 10_001},
        {"action": "cancel", "filter": {"state": ["failed"]}},
    ):
        response = world.ops.post("/v1/jobs/bulk", json=body)
        assert response.status_code == 400, (body, response.text)


def test_deleted_jobs_lose_their_payloads(world):
    job_id = submit(world.ann)
    uri = world.served.ledger.get(job_id).spec.input_uri
    world.ann.post(f"/v1/jobs/{job_id}/cancel")
    reply = world.ann.post("/v1/jobs/bulk", json={"action": "delete", "all": True}).json()
    assert reply["changed"] == 1
    with pytest.raises(NotFoundError):
        world.served.stores.for_uri(uri).get(uri)


def test_client_continues_until_no_job_is_left(world, monkeypatch):
    monkeypatch.setattr(core, "BULK_PAGE", 2)
    for _ in range(5):
        submit(world.ann, queue="q", tags={"day": "1"})
    with Client(world.served.url, api_key=ANN[0]) as client:
        counted = client.bulk("cancel", dry_run=True, queue="q", tags={"day": "1"}, states=["pending"])
        assert (counted["matched"], counted["changed"]) == (5, 0)
        limited = client.bulk("cancel", queue="q", limit=3)
        assert (limited["matched"], bool(limited["next_after"])) == (3, True)
        done = client.bulk("cancel", queue="q")
        assert done == {
            "action": "cancel",
            "dry_run": False,
            "matched": 2,
            "changed": 2,
            "skipped": {},
            "next_after": "",
        }
        with pytest.raises(DataError, match="all=true"):
            client.bulk("retry")
        assert client.bulk("retry", all_jobs=True)["changed"] == 5

    async def cancel_all():
        async with AsyncClient(world.served.url, api_key=ANN[0]) as client:
            return await client.bulk("cancel", tenant="ann")

    assert asyncio.run(cancel_all())["changed"] == 5


def test_completed_jobs_are_requeued_and_not_retried(world):
    job_id = submit(world.ann)
    world.served.complete(world.served.claim())
    wanted = {"filter": {"tenant": "ann"}}
    assert world.ops.post("/v1/jobs/bulk", json={"action": "retry", **wanted}).json()["matched"] == 0
    assert world.ops.post("/v1/jobs/bulk", json={"action": "requeue", **wanted}).json()["changed"] == 1
    assert world.ann.get(f"/v1/jobs/{job_id}").json()["state"] == "pending"


def test_audit_log_is_read_in_pages_by_key_and_action(world):
    for queue in "abc":
        world.ops.post(f"/v1/queues/{queue}/pause")
    world.admin.post("/v1/queues/a/resume")
    assert [entry["subject"] for entry in entries(world)] == ["a", "c", "b", "a"]
    assert [entry["subject"] for entry in entries(world, done_by="ops", limit=2)] == ["c", "b"]
    assert entries(world, action="none") == []
    with Client(world.served.url, api_key=OPS[0]) as client:
        found = list(client.audit(action="queue.change"))
    assert [entry["by"] for entry in found] == ["root", "ops", "ops", "ops"]
    assert found[0]["details"] == {"paused": False, "draining": False}
    assert world.ann.get("/v1/audit").status_code == 403


def test_clients_change_their_own_jobs_unrecorded(world):
    job_id = submit(world.ann)
    world.ann.post(f"/v1/jobs/{job_id}/cancel")
    assert entries(world) == []
    world.ops.post(f"/v1/jobs/{job_id}/retry")
    (entry,) = entries(world)
    assert (entry["action"], entry["subject"], entry["jobs"]) == ("job.retry", job_id, 1)
    assert (entry["by"], entry["details"]) == ("ops", {"tenant": "ann"})


def test_unchanged_endpoint_is_not_recorded(world):
    for _ in range(2):
        world.admin.put("/v1/endpoints/e", json={"model": "m"})
    assert [entry["details"] for entry in entries(world)] == [{"version": 1}]


def test_unchanged_schedule_is_not_recorded(world):
    for _ in range(2):
        world.ann.put("/v1/schedules/s", json=SCHEDULE)
    assert [entry["details"] for entry in entries(world)] == [{"tenant": "ann", "version": 1}]


# Every changing route is recorded. A new one needs an entry here.

NOT_RECORDED = {
    "submit": "the job itself has its client",
    "submit_batch": "the jobs themselves have their client",
    "run_schedule": "the job itself has its client",
    "begin_upload": "an upload is part of a submission",
    "upload": "an upload is part of a submission",
    "receive_s3_events": "its jobs name their trigger",
    "create_session": "changes no job",
    "end_session": "changes no job",
}


SCHEDULE = {"cron": "0 2 * * *", "job": {"model": "m", "input": [1]}}


def changes(job_id):
    """Return the request and the recorded action of each changing route, in an order that works."""
    return {
        "pause_queue": ("POST", "/v1/queues/q/pause", None, "queue.change"),
        "drain_queue": ("POST", "/v1/queues/q/drain", None, "queue.change"),
        "resume_queue": ("POST", "/v1/queues/q/resume", None, "queue.change"),
        "limit_queue": ("PATCH", "/v1/queues/q", {"pending_max": 7}, "queue.change"),
        "delete_queue": ("DELETE", "/v1/queues/q", None, "queue.delete"),
        "set_endpoint": ("PUT", "/v1/endpoints/e", {"model": "m"}, "endpoint.set"),
        "delete_endpoint": ("DELETE", "/v1/endpoints/e", None, "endpoint.delete"),
        "set_schedule": ("PUT", "/v1/schedules/s", SCHEDULE, "schedule.set"),
        "pause_schedule": ("POST", "/v1/schedules/s/pause", None, "schedule.pause"),
        "resume_schedule": ("POST", "/v1/schedules/s/resume", None, "schedule.resume"),
        "delete_schedule": ("DELETE", "/v1/schedules/s", None, "schedule.delete"),
        "drain_worker": ("POST", "/v1/workers/w/drain", None, "worker.drain"),
        "undrain_worker": ("POST", "/v1/workers/w/undrain", None, "worker.undrain"),
        "redeliver": ("POST", "/v1/deliveries/dlv_0/redeliver", None, "delivery.redeliver"),
        "enable_receiver": ("POST", "/v1/receivers/hook/enable", None, "receiver.enable"),
        "cancel": ("POST", f"/v1/jobs/{job_id}/cancel", None, "job.cancel"),
        "retry": ("POST", f"/v1/jobs/{job_id}/retry", None, "job.retry"),
        "bulk": ("POST", "/v1/jobs/bulk", {"action": "cancel", "filter": {"queue": "jobs"}}, "jobs.cancel"),
        "delete": ("DELETE", f"/v1/jobs/{job_id}", None, "job.delete"),
    }


def test_every_changing_route_is_recorded(world):
    routes = {route.action for route in world.served.app.routes if route.method not in ("GET", "HEAD")}
    job_id = submit(world.ann, queue="jobs")
    world.served.ledger.register_worker(WorkerInfo("w"))
    world.outbox.add_receiver(WebhookTarget("hook", "https://ann.example/hook"))
    world.outbox.put(Notification("evt_1", "job.completed", job_id, 1), "hook")
    requests = changes(job_id)
    assert routes - set(NOT_RECORDED) == set(requests)
    for name, (method, path, body, action) in requests.items():
        response = world.admin.request(method, path, json=body)
        assert response.status_code < 300, (name, response.text)
        newest = entries(world, limit=1)[0]
        assert (newest["action"], newest["by"]) == (action, "root"), name
        assert len(entries(world)) == list(requests).index(name) + 1, name
