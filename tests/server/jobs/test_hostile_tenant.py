"""A tenant against another one: a case for each route of the API, and a new route without a case fails.

The victim has a job of each kind of state, an upload, an endpoint, a schedule and a queue. The hostile
tenant has keys to submit and to read, and knows all names and ids.
"""

from types import SimpleNamespace

import pytest

from cases import for_each
from headrace.jobs.access import Scope
from headrace.jobs.job import JobFailure
from headrace.jobs.ledger import QueueSettings
from headrace.jobs.notify import Notification, WebhookTarget
from headrace.jobs.paths import UriAllowList
from headrace.jobs.state import Cause, JobState
from headrace.jobs.worker_registry import WorkerInfo
from headrace.server.jobs.sagemaker import SageMakerSettings
from jobs.memory_outbox import MemoryOutbox
from jobs.service_support import key_of, served_jobs

SHARED = UriAllowList(prefixes=("s3://shared",))
OWNER = key_of("owner", outputs=SHARED)
HOSTILE = key_of("hostile", outputs=SHARED)
LIMITED = key_of("limited", tenant="hostile", endpoints=frozenset({"of-hostile"}))
ADMIN = key_of("root", Scope.ADMIN)
PAYLOAD = b"the owner's payload"


@pytest.fixture(scope="module")
def world():
    with (
        served_jobs(
            keys=[OWNER, HOSTILE, LIMITED, ADMIN],
            sagemaker=SageMakerSettings("s3://shared/async"),
            outbox=(outbox := MemoryOutbox()),
        ) as served,
        served.client(OWNER[0]) as owner,
        served.client(HOSTILE[0]) as hostile,
    ):
        served.ledger.register_worker(WorkerInfo("owners-worker", queues=("unserved",)))
        served.ledger.control_pool("owners-pool", "controller", 60_000)
        limited, admin = served.client(LIMITED[0]), served.client(ADMIN[0])
        for name in ("of-owner", "of-hostile"):
            settings = {"model": "m", "queue": f"queue-{name}", "output_uri": f"s3://{name}/out"}
            assert admin.put(f"/v1/endpoints/{name}", json=settings).status_code == 200
        submission = {
            "model": "m",
            "queue": "secret",
            "input": [42],
            "output_uri": "s3://shared/out",
            "key": "mine",
            "correlation_id": "owners-id",
        }
        job = owner.post("/v1/jobs", json=submission, headers={"idempotency-key": "k"}).json()
        outbox.add_receiver(WebhookTarget("hook", "https://owner.example/hook"))
        schedule = {"cron": "0 2 * * *", "job": submission | {"key": "nightly"}}
        assert owner.put("/v1/schedules/owners", json=schedule).status_code == 200
        delivery = outbox.put(Notification("evt_1", "job.completed", job["id"], 1), "hook")
        upload = owner.post("/v1/uploads").json()["id"]
        owner.put(f"/v1/uploads/{upload}", content=PAYLOAD)
        yield SimpleNamespace(
            served=served,
            owner=owner,
            hostile=hostile,
            limited=limited,
            job=job,
            path=f"/v1/jobs/{job['id']}",
            upload=upload,
            delivery=delivery,
        )
        limited.close()
        admin.close()


def get_job(world):
    assert world.hostile.get(world.path).status_code == 404


def list_jobs(world):
    for query in ("", "?tenant=owner", "?correlation_id=owners-id", "?queue=secret"):
        assert world.hostile.get(f"/v1/jobs{query}").json()["jobs"] == []


def history(world):
    assert world.hostile.get(f"{world.path}/history").status_code == 404


def events(world):
    assert world.hostile.get(f"{world.path}/events").status_code == 404


def result(world):
    for query in ("", "?redirect=true"):
        assert world.hostile.get(f"{world.path}/result{query}").status_code == 404


def job_input(world):
    assert world.owner.get(f"{world.path}/input").content == b"[42]"
    assert world.hostile.get(f"{world.path}/input").status_code == 404


def check_published(world):
    assert world.hostile.get(f"{world.path}/published").status_code == 404


def cancel(world):
    assert world.hostile.post(f"{world.path}/cancel").status_code == 404


def retry(world):
    assert world.hostile.post(f"{world.path}/retry").status_code == 404


def delete(world):
    assert world.hostile.delete(world.path).status_code == 404


def submit(world):
    """Neither the output's name, nor the idempotency key, nor the payload of the owner is reachable."""
    taken = {"model": "m", "input": [1], "output_uri": "s3://shared/out", "key": "mine"}
    for if_exists in ("fail", "replace", "version"):
        response = world.hostile.post("/v1/jobs", json={**taken, "if_exists": if_exists})
        assert response.status_code == 409
        assert world.job["id"] not in response.text
    own = world.hostile.post("/v1/jobs", json={"model": "m", "input": [1]}, headers={"idempotency-key": "k"})
    assert (own.status_code, own.json()["id"] == world.job["id"]) == (202, False)
    stolen = {"model": "m", "upload": world.upload, "content_type": "text/plain"}
    assert world.hostile.post("/v1/jobs", json=stolen).status_code == 404
    store = world.served.service.settings.store_uri
    for uri in (f"{store}/inputs/{world.job['id']}", "s3://shared/out/mine.out"):
        named = world.hostile.post("/v1/jobs", json={"model": "m", "input_uri": uri})
        assert named.status_code in (400, 403)
    notify = [{"email": ["owner@example.com"]}]
    assert world.hostile.post("/v1/jobs", json={**taken, "notify": notify}).status_code == 403
    for document in ({"model": "n"}, {"endpoint": "of-owner"}, {"endpoint": "of-hostile", "queue": "secret"}):
        assert world.limited.post("/v1/jobs", json={**document, "input": [1]}).status_code == 403
    assert world.hostile.post("/v1/jobs", json={"endpoint": "of-owner", "input": [1]}).status_code == 403
    other = world.job["id"][:-1] + ("0" if world.job["id"][-1] != "0" else "1")
    found, unknown = (
        world.hostile.post("/v1/jobs", json={"model": "m", "input": [1], "after": [job_id]})
        for job_id in (world.job["id"], other)
    )
    assert (found.status_code, unknown.status_code) == (404, 404)
    shown, expected = ({**reply.json(), "request_id": ""} for reply in (found, unknown))
    assert str(shown).replace(world.job["id"], other) == str(expected)


def begin_upload(world):
    assert world.hostile.post("/v1/uploads").json()["id"] != world.upload


def submit_batch(world):
    taken = {"model": "m", "input": [1], "output_uri": "s3://shared/out", "key": "mine"}
    jobs = [
        {**taken, "if_exists": "replace"},
        {"model": "m", "input": [1], "idempotency_key": "k"},
        {"model": "m", "upload": world.upload, "content_type": "text/plain"},
        {"model": "m", "input": [1], "endpoint": "of-owner"},
    ]
    response = world.hostile.post("/v1/jobs/batch", json={"jobs": jobs})
    taken, own, stolen, forbidden = response.json()["results"]
    assert (taken["status"], stolen["status"], forbidden["status"]) == (409, 404, 403)
    assert own["job"]["tenant"] == "hostile"
    assert world.job["id"] not in response.text


def upload(world):
    assert world.hostile.put(f"/v1/uploads/{world.upload}", content=b"replaced").status_code == 404
    mine = {"model": "m", "upload": world.upload, "content_type": "text/plain"}
    job = world.owner.post("/v1/jobs", json=mine).json()
    assert world.served.payload(job["id"]) == PAYLOAD


def list_queues(world):
    shown = world.hostile.get("/v1/queues").text
    assert "secret" not in shown
    assert "of-owner" not in shown


def get_queue(world):
    queue = world.hostile.get("/v1/queues/secret").json()
    assert (queue["queued"], queue["running"], queue["oldest_seconds"]) == (0, 0, 0)
    assert world.owner.get("/v1/queues/secret").json()["queued"] == 1


def scale(world):
    shown = world.hostile.get("/v1/queues/secret/scale").json()
    assert (shown["backlog"], shown["oldest_seconds"]) == (0, 0)
    assert shown["reason"].startswith("0 due and 0 running jobs")


def refused_queue_change(verb):
    def attempt(world):
        assert world.hostile.post(f"/v1/queues/secret/{verb}").status_code == 403
        assert world.owner.get("/v1/queues/secret").json()["paused"] is False

    return attempt


def limit_queue(world):
    assert world.hostile.patch("/v1/queues/secret", json={"pending_max": 0}).status_code == 403


def delete_queue(world):
    assert world.hostile.delete("/v1/queues/secret").status_code == 403


def list_endpoints(world):
    assert world.hostile.get("/v1/endpoints").json()["endpoints"] == []
    shown = world.limited.get("/v1/endpoints").json()["endpoints"]
    assert [each["name"] for each in shown] == ["of-hostile"]


def get_endpoint(world):
    for client in (world.hostile, world.limited):
        found, unknown = (client.get(f"/v1/endpoints/{name}") for name in ("of-owner", "unknown"))
        assert (found.status_code, unknown.status_code) == (404, 404)
        assert found.json()["type"] == unknown.json()["type"]


def endpoint_versions(world):
    assert world.limited.get("/v1/endpoints/of-owner/versions").status_code == 404


def set_endpoint(world):
    for client in (world.hostile, world.limited):
        for name in ("of-owner", "of-hostile", "new"):
            assert client.put(f"/v1/endpoints/{name}", json={"model": "m"}).status_code == 403


def delete_endpoint(world):
    assert world.limited.delete("/v1/endpoints/of-owner").status_code == 403


def list_schedules(world):
    for query in ("", "?tenant=owner"):
        assert world.hostile.get(f"/v1/schedules{query}").json() == {"schedules": []}


def set_schedule(world):
    """A schedule of the same name is another one, and its job has the limits of a submission."""
    job = {"model": "m", "input": [1]}
    own = world.hostile.put("/v1/schedules/owners", json={"cron": "0 3 * * *", "job": job})
    assert (own.status_code, own.json()["tenant"]) == (200, "hostile")
    assert world.hostile.delete("/v1/schedules/owners").status_code == 204
    store = world.served.service.settings.store_uri
    refused = ({"input_uri": f"{store}/inputs/{world.job['id']}"}, {"output_uri": "s3://of-owner/out"})
    for fields in refused:
        body = {
            "cron": "0 3 * * *",
            "job": {"model": "m", **({} if "input_uri" in fields else job), **fields},
        }
        assert world.hostile.put("/v1/schedules/stolen", json=body).status_code in (400, 403)
    body = {"cron": "0 3 * * *", "job": job}
    assert (
        world.limited.put("/v1/schedules/direct", json={**body, "job": {**job, "model": "n"}}).status_code
        == 403
    )
    assert world.owner.get("/v1/schedules/owners").json()["version"] == 1


def refused_schedule(method, path):
    def attempt(world):
        for query in ("", "?tenant=owner"):
            found = world.hostile.request(method, f"/v1/schedules/owners{path}{query}")
            unknown = world.hostile.request(method, f"/v1/schedules/unknown{path}{query}")
            assert (found.status_code, unknown.status_code) == (404, 404)
            assert found.json()["error"].replace("owners", "unknown") == unknown.json()["error"]
        assert world.owner.get("/v1/schedules/owners").json()["paused"] is False

    return attempt


def refused_worker(method, path):
    def attempt(world):
        for name in ("owners-worker", "unknown"):
            assert world.hostile.request(method, path.format(name)).status_code == 403
        assert not world.served.ledger.worker("owners-worker").draining

    return attempt


def refused_pool(path):
    def attempt(world):
        for name in ("owners-pool", "unknown"):
            assert world.hostile.get(path.format(name)).status_code == 403

    return attempt


def receive_s3_events(world):
    assert world.hostile.post("/v1/events/s3", json={"Records": []}).status_code == 403


def invoke_endpoint_async(world):
    """An equal inference id names another object."""
    invoke = "/endpoints/m/async-invocations"
    headers = {"x-amzn-sagemaker-inference-id": "same"}
    owners, hostiles = (
        client.post(invoke, content=b"[1]", headers=headers).headers["x-amzn-sagemaker-outputlocation"]
        for client in (world.owner, world.hostile)
    )
    assert owners != hostiles
    for name in ("of-owner", "m"):
        refused = world.limited.post(f"/endpoints/{name}/async-invocations", content=b"[1]")
        assert refused.status_code == 403


def session(world):
    created = world.hostile.post("/v1/session")
    assert created.json()["tenant"] == "hostile"
    cookie = {"cookie": created.headers["set-cookie"].partition(";")[0]}
    with world.served.client() as browser:
        assert browser.get(world.path, headers=cookie).status_code == 404
        assert browser.get("/v1/session", headers=cookie).json()["tenant"] == "hostile"
        assert (
            browser.delete("/v1/session", headers={**cookie, "origin": world.served.url}).status_code == 204
        )


def health(world):
    assert world.hostile.get("/v1/health/ready").json() == {"status": "ok"}
    assert world.hostile.get("/v1/health/live").json() == {"status": "ok"}


def failures(world):
    served, path = world.served, "/v1/failures"
    doomed = world.owner.post("/v1/jobs", json={"model": "m", "input": [1], "queue": "doomed"}).json()
    served.fail(served.claim("doomed"), JobFailure(Cause.MODEL, "it raised"))
    assert [group["job_id"] for group in world.owner.get(path).json()["failures"]] == [doomed["id"]]
    assert world.hostile.get(path).json() == {"failures": []}


def job_deliveries(world):
    assert world.owner.get(f"{world.path}/deliveries").json()["deliveries"][0]["id"] == world.delivery
    assert world.hostile.get(f"{world.path}/deliveries").status_code == 404


def redeliver(world):
    path = f"/v1/deliveries/{world.delivery}/redeliver"
    refused, unknown = (world.hostile.post(each) for each in (path, "/v1/deliveries/none/redeliver"))
    assert (refused.status_code, unknown.status_code) == (404, 404)
    assert refused.json()["error"].replace(world.delivery, "none") == unknown.json()["error"]
    assert world.owner.post(path).status_code == 200


def operators_only(method, path):
    def case(world):
        assert world.hostile.request(method, path).status_code == 403

    return case


def bulk(world):
    for action in ("cancel", "retry", "requeue", "delete"):
        everything = world.hostile.post("/v1/jobs/bulk", json={"action": action, "all": True})
        assert (everything.status_code, everything.json()["matched"]) == (200, 0)
        conditions = {"queue": "secret", "correlation_id": "owners-id"}
        body = {"action": action, "filter": conditions, "dry_run": True}
        assert world.hostile.post("/v1/jobs/bulk", json=body).json()["matched"] == 0
        named = {"action": action, "filter": {"tenant": "owner"}}
        assert world.hostile.post("/v1/jobs/bulk", json=named).status_code == 403


def audit(world):
    assert world.hostile.get("/v1/audit").status_code == 403


CASES = {
    "bulk": bulk,
    "audit": audit,
    "list_failures": failures,
    "job_deliveries": job_deliveries,
    "dead_deliveries": operators_only("GET", "/v1/deliveries"),
    "redeliver": redeliver,
    "list_receivers": operators_only("GET", "/v1/receivers"),
    "enable_receiver": operators_only("POST", "/v1/receivers/hook/enable"),
    "get": get_job,
    "find": list_jobs,
    "history": history,
    "events": events,
    "result": result,
    "job_input": job_input,
    "check_published": check_published,
    "cancel": cancel,
    "retry": retry,
    "delete": delete,
    "submit": submit,
    "submit_batch": submit_batch,
    "begin_upload": begin_upload,
    "upload": upload,
    "list_queues": list_queues,
    "get_queue": get_queue,
    "scale": scale,
    "pause_queue": refused_queue_change("pause"),
    "drain_queue": refused_queue_change("drain"),
    "resume_queue": refused_queue_change("resume"),
    "limit_queue": limit_queue,
    "delete_queue": delete_queue,
    "list_endpoints": list_endpoints,
    "get_endpoint": get_endpoint,
    "endpoint_versions": endpoint_versions,
    "set_endpoint": set_endpoint,
    "delete_endpoint": delete_endpoint,
    "list_schedules": list_schedules,
    "get_schedule": refused_schedule("GET", ""),
    "set_schedule": set_schedule,
    "delete_schedule": refused_schedule("DELETE", ""),
    "pause_schedule": refused_schedule("POST", "/pause"),
    "resume_schedule": refused_schedule("POST", "/resume"),
    "run_schedule": refused_schedule("POST", "/run"),
    "list_workers": refused_worker("GET", "/v1/workers"),
    "get_worker": refused_worker("GET", "/v1/workers/{}"),
    "drain_worker": refused_worker("POST", "/v1/workers/{}/drain"),
    "undrain_worker": refused_worker("POST", "/v1/workers/{}/undrain"),
    "list_pools": refused_pool("/v1/pools"),
    "scale_pool": refused_pool("/v1/pools/{}/scale"),
    "list_decisions": refused_pool("/v1/pools/{}/decisions"),
    "receive_s3_events": receive_s3_events,
    "invoke_endpoint_async": invoke_endpoint_async,
    "create_session": session,
    "get_session": session,
    "end_session": session,
    "jobs_live": health,
    "jobs_ready": health,
}
DOCUMENTATION = {"openapi", "docs"}


@for_each("action", list(CASES))
def test_other_tenant_reaches_nothing_by(action, world):
    CASES[action](world)
    assert world.owner.get(world.path).json()["state"] == "pending"


def test_every_route_has_a_case(world):
    actions = {route.action for route in world.served.app.routes}
    assert actions - set(CASES) <= DOCUMENTATION
    assert set(CASES) <= actions


def test_many_urgent_jobs_of_another_tenant_delay_no_job():
    with served_jobs(keys=[OWNER, HOSTILE]) as served:
        with served.client(HOSTILE[0]) as hostile, served.client(OWNER[0]) as owner:
            for number in range(50):
                hostile.post("/v1/jobs", json={"model": "m", "input": [number], "priority": 0})
            job = owner.post("/v1/jobs", json={"model": "m", "input": [1], "priority": 9}).json()
        first, second = served.claim(), served.claim()
        assert job["id"] in (first.id, second.id)
        assert {first.state, second.state} == {JobState.RUNNING}


def test_a_queue_that_one_tenant_fills_accepts_jobs_of_another():
    with served_jobs(keys=[OWNER, HOSTILE]) as served:
        served.ledger.set_queue(QueueSettings("default", pending_max=2))
        job = {"model": "m", "input": [1]}
        with served.client(HOSTILE[0]) as hostile, served.client(OWNER[0]) as owner:
            assert [hostile.post("/v1/jobs", json=job).status_code for _ in range(3)] == [202, 202, 429]
            assert owner.post("/v1/jobs", json=job).status_code == 202
