"""Schedules over HTTP and by the clients."""

import asyncio

import pytest

from cases import for_each
from headrace.core.errors import DataError, ForbiddenError, ResourceNotFoundError
from headrace.jobs.access import Scope
from headrace.jobs.client import AsyncClient, Client
from headrace.jobs.paths import UriAllowList
from jobs.service_support import key_of, served_jobs

WEB = key_of("web", tenant="shop", inputs=UriAllowList(prefixes=("s3://in",)))
READER = key_of("reader", Scope.READ, tenant="shop")
OPS = key_of("ops", Scope.OPERATE)
JOB = {"model": "m", "input_uri": "s3://in/{time:%Y}.csv", "notify": [{"webhook": "https://h.example/"}]}
SETTINGS = {"cron": "0 2 * * *", "time_zone": "Europe/Berlin", "job": JOB}
PATH = "/v1/schedules/nightly"


@pytest.fixture
def served():
    with served_jobs(keys=[WEB, READER, OPS], prepare_notify=dict) as made:
        yield made


@pytest.fixture
def web(served):
    with served.client(WEB[0]) as http:
        yield http


def test_schedule_is_set_shown_and_deleted(served, web):
    made = web.put(PATH, json=SETTINGS)
    assert made.status_code == 200, made.text
    shown = web.get(PATH).json()
    assert shown == made.json()
    assert (shown["name"], shown["tenant"], shown["version"], shown["changed_by"]) == (
        "nightly",
        "shop",
        1,
        "web",
    )
    assert shown["settings"] == {**SETTINGS, "overlap": "allow"}
    assert (len(shown["next_times"]), shown["next_times"][0][11:19]) == (5, "02:00:00")
    (listed,) = web.get("/v1/schedules").json()["schedules"]
    assert ("job" in listed["settings"], listed["next_times"]) == (False, shown["next_times"][:1])
    assert web.put(PATH, json=SETTINGS).json()["version"] == 1
    assert web.put(PATH, json={**SETTINGS, "overlap": "skip"}).json()["version"] == 2
    assert web.delete(PATH).status_code == 204
    assert [web.request(method, PATH).status_code for method in ("GET", "DELETE")] == [404, 404]


def test_readers_see_no_notification_targets(served, web):
    web.put(PATH, json=SETTINGS)
    with served.client(READER[0]) as reader, served.client(OPS[0]) as ops:
        job = reader.get(PATH).json()["settings"]["job"]
        assert job == {name: value for name, value in JOB.items() if name != "notify"}
        assert reader.post(f"{PATH}/run").status_code == 403
        assert ops.get(PATH).status_code == 404
        assert ops.get(PATH, params={"tenant": "shop"}).json()["settings"]["job"] == JOB
        assert [each["tenant"] for each in ops.get("/v1/schedules").json()["schedules"]] == ["shop"]


def test_operator_pauses_resumes_and_deletes_for_a_tenant(served, web):
    web.put(PATH, json=SETTINGS)
    with served.client(OPS[0]) as ops:
        paused = ops.post(f"{PATH}/pause", params={"tenant": "shop"}).json()
        assert (paused["paused"], paused["next_at_ms"], paused["next_times"]) == (True, None, [])
        assert web.put(PATH, json={**SETTINGS, "cron": "1 1 * * *"}).json()["paused"]
        resumed = ops.post(f"{PATH}/resume", params={"tenant": "shop"}).json()
        assert (resumed["paused"], resumed["changed_by"]) == (False, "web")
        assert ops.put(PATH, json=SETTINGS).status_code == 403
        assert ops.delete(PATH, params={"tenant": "shop"}).status_code == 204


def test_job_is_submitted_now(served, web):
    web.put(PATH, json=SETTINGS)
    first = web.post(f"{PATH}/run", headers={"idempotency-key": "k"})
    again = web.post(f"{PATH}/run", headers={"idempotency-key": "k"})
    assert (first.status_code, again.status_code) == (202, 200)
    assert first.headers["location"] == f"/v1/jobs/{first.json()['id']}"
    assert first.json()["input_uri"] == "s3://in/2027.csv"
    (listed,) = web.get("/v1/jobs", params={"tag": "schedule=nightly"}).json()["jobs"]
    assert listed["id"] == first.json()["id"]
    assert web.get(PATH).json()["last_job_id"] == ""
    assert web.post("/v1/schedules/none/run").status_code == 404


@for_each(
    ("changes", "status", "message"),
    [
        ({"cron": "61 * * * *"}, 400, "cron: the field minute"),
        ({"cron": 7}, 400, "cron: "),
        ({"time_zone": "Mars/Base"}, 400, "time_zone: "),
        ({"overlap": "queue"}, 400, "overlap: "),
        ({"job": None}, 400, "job: "),
        ({"job": {**JOB, "key": "{time}"}}, 400, "job.key: "),
        ({"job": {**JOB, "upload": "u"}}, 400, "job.upload: "),
        ({"job": {**JOB, "notify": [{"webhook": "https://h.example/", "secret": "s"}]}}, 400, "job.notify: "),
        ({"job": {**JOB, "input_uri": "s3://other/x"}}, 403, "s3://other/"),
        ({"job": {**JOB, "endpoint": "e"}}, 403, "endpoint"),
        ({"job": {**JOB, "options": {"a": "x" * (64 << 10)}}}, 413, "input_uri"),
        ({"paused": True}, 400, "paused"),
    ],
)
def test_invalid_schedule_is_refused(web, changes, status, message):
    response = web.put(PATH, json={**SETTINGS, **changes})
    assert (response.status_code, message in response.json()["error"]) == (status, True), response.text
    assert web.get("/v1/schedules").json() == {"schedules": []}


@for_each("value", [b"1" + b"0" * 40, b"[" * 300 + b"]" * 300, b"[" * 60_000 + b"]" * 60_000])
def test_job_that_json_cannot_hold_is_refused(web, value):
    body = b'{"cron": "* * * * *", "job": {"model": "m", "input": %s}}' % value
    response = web.put(PATH, content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400, response.text


def test_invalid_name_is_refused(web):
    assert web.put("/v1/schedules/a%20b", json=SETTINGS).status_code == 400
    with served_jobs() as plain, plain.client() as http:
        refused = http.put(PATH, json={**SETTINGS, "job": {**JOB, "input_uri": "s3://in/x"}})
        assert "this server has no notifications" in refused.json()["error"]


def test_clients_have_all_operations(served):
    with Client(served.url, api_key=WEB[0]) as client:
        made = client.set_schedule("s", **SETTINGS)
        assert client.schedule("s") == made
        assert [each["name"] for each in client.schedules()] == ["s"]
        assert client.pause_schedule("s")["paused"]
        assert not client.resume_schedule("s")["paused"]
        job = client.run_schedule("s")
        assert job.spec.tags == {"schedule": "s"}
        with pytest.raises(DataError, match=r"^cron: "):
            client.set_schedule("s", **{**SETTINGS, "cron": "* * * *  x"})
        client.delete_schedule("s")
        with pytest.raises(ResourceNotFoundError, match="no schedule 's'"):
            client.delete_schedule("s")

    async def use():
        async with AsyncClient(served.url, api_key=WEB[0]) as client:
            await client.set_schedule("a", **SETTINGS)
            assert (await client.run_schedule("a")).spec.model == "m"
            await client.pause_schedule("a")
            await client.resume_schedule("a")
            assert (await client.schedule("a"))["name"] == "a"
        async with AsyncClient(served.url, api_key=OPS[0]) as client:
            assert [each["name"] for each in await client.schedules(tenant="shop")] == ["a"]
            with pytest.raises(ForbiddenError):
                await client.set_schedule("a", **SETTINGS)
            await client.delete_schedule("a", tenant="shop")

    asyncio.run(use())
