"""Routes of workers: what keys see of them, drain and undrain."""

import asyncio

import pytest

from headrace.core.errors import ForbiddenError, ResourceNotFoundError
from headrace.jobs.access import Scope
from headrace.jobs.client import AsyncClient, Client
from headrace.jobs.worker_registry import GpuMemory, ModelCrash, WorkerInfo, WorkerReport
from jobs.service_support import LEASE_MS, key_of, served_jobs
from server.jobs.test_job_routes import submit

MONITOR = key_of("scaler", Scope.MONITOR)
OPERATE = key_of("ops", Scope.OPERATE)
PLAIN = key_of("shop")
INFO = WorkerInfo("worker-1", "s", "host-1", 42, "1.2.3", ("default",), ("m", "m@1"), 4, "eu", LEASE_MS)
REPORT = WorkerReport(
    ready=False,
    memory_bytes=1 << 30,
    gpus=(GpuMemory(0, "A GPU", 1, 2),),
    last_crash=ModelCrash("m", "oom", "a text about inputs", 7),
)


@pytest.fixture
def served():
    with served_jobs(keys=[MONITOR, OPERATE, PLAIN]) as made:
        made.ledger.register_worker(INFO, REPORT)
        yield made


@pytest.fixture
def job_id(served):
    with served.client(PLAIN[0]) as http:
        submitted = submit(http)["id"]
    served.claim()
    return submitted


def get(served, key, path):
    with served.client(key[0]) as http:
        response = http.get(path)
    assert response.status_code == 200, response.text
    return response.json()


def test_worker_is_shown_to_operators_with_its_jobs(served, job_id):
    now_ms = served.ledger.now_ms()
    assert get(served, OPERATE, "/v1/workers/worker-1") == {
        "name": "worker-1", "state": "running", "host": "host-1", "pid": 42, "version": "1.2.3",
        "region": "eu", "queues": ["default"], "models": ["m", "m@1"], "slots": 4,
        "running": 1, "job_ids": [job_id], "ready": False, "memory_bytes": 1 << 30,
        "gpus": [{"index": 0, "name": "A GPU", "used_bytes": 1, "total_bytes": 2}],
        "last_crash": {"model": "m", "cause": "oom", "message": "a text about inputs", "at_ms": 7},
        "draining": False, "draining_by": "", "lease_ms": LEASE_MS, "started_at_ms": now_ms,
        "seen_at_ms": now_ms, "stopped_at_ms": None,
    }  # fmt: skip


def test_monitors_see_numbers_and_nothing_of_tenants(served, job_id):
    served.ledger.set_worker_draining("worker-1", draining=True, by="ops")
    (listed,) = get(served, MONITOR, "/v1/workers")["workers"]
    assert (listed["running"], listed["state"], listed["last_crash"]["cause"]) == (1, "draining", "oom")
    for shown in (listed, get(served, MONITOR, "/v1/workers/worker-1")):
        assert job_id not in str(shown)
        assert (shown["job_ids"], shown["last_crash"]["message"], shown["draining_by"]) == ([], "", "")


def test_only_operators_drain(served):
    with served.client(MONITOR[0]) as http:
        assert http.post("/v1/workers/worker-1/drain").status_code == 403
    with served.client(OPERATE[0]) as http:
        drained = http.post("/v1/workers/worker-1/drain").json()
        assert (drained["state"], drained["draining"], drained["draining_by"]) == ("draining", True, "ops")
        served.ledger.heartbeat("worker-1", [], LEASE_MS, WorkerReport(claims=False))
        assert http.get("/v1/workers/worker-1").json()["state"] == "drained"
        resumed = http.post("/v1/workers/worker-1/undrain").json()
        assert (resumed["state"], resumed["draining"]) == ("running", False)
    changes = [(each.done_by, each.action, each.subject) for each in served.ledger.audit().entries]
    assert changes == [("ops", "worker.undrain", "worker-1"), ("ops", "worker.drain", "worker-1")]


def test_unknown_worker_is_not_found(served):
    with served.client(OPERATE[0]) as http:
        for method, path in (("GET", ""), ("POST", "/drain"), ("POST", "/undrain")):
            for name in ("other", "%00", "a%20b", "x" * 3000):
                response = http.request(method, f"/v1/workers/{name}{path}")
                assert (response.status_code, response.json()["type"]) == (404, "ResourceNotFoundError")
                assert len(response.text) < 400


def test_clients_have_the_operations(served, job_id):
    with Client(served.url, api_key=OPERATE[0]) as client:
        assert [worker["name"] for worker in client.workers()] == ["worker-1"]
        assert client.worker("worker-1")["job_ids"] == [job_id]
        assert client.drain_worker("worker-1")["state"] == "draining"
        assert client.undrain_worker("worker-1")["state"] == "running"
        with pytest.raises(ResourceNotFoundError):
            client.drain_worker("a?b c")

    async def use():
        async with AsyncClient(served.url, api_key=MONITOR[0]) as client:
            assert [worker["running"] for worker in await client.workers()] == [1]
            assert (await client.worker("worker-1"))["name"] == "worker-1"
            for change in (client.drain_worker, client.undrain_worker):
                with pytest.raises(ForbiddenError):
                    await change("worker-1")

    asyncio.run(use())
