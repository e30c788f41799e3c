"""A job server that also serves its models: one application, one file of keys."""

import http.client
import json
import shutil
import sqlite3
import threading
from contextlib import closing
from math import inf
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import grpc
import pytest

from app.served import WAIT_S, running
from cases import for_each
from headrace.app import jobs
from headrace.app.job_components import JobLocations
from headrace.app.jobs import JobsOptions, open_jobs
from headrace.app.server_options import ServerOptions
from headrace.core.errors import ConfigError
from headrace.jobs.access import PENDING_MAX_DEFAULT, Scope, hash_key, new_key
from headrace.jobs.access.keys_file import key_lines
from headrace.jobs.ledger import JobFilter
from server.support_observe import samples, value

MODEL = """\
from headrace import Model


class Twice(Model):
    def predict(self, x):
        return x * 2
"""
TENSOR = {"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [2.0]}
BODY = json.dumps({"inputs": [TENSOR]}).encode()


def call(url: str, method: str, path: str, body: bytes | None = None, **headers: str):
    """Return the status and the JSON body of a response."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=WAIT_S)
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


@pytest.fixture
def keys(tmp_path):
    """Write a file with a key for models, one for jobs, and one for another model."""
    keys = {name: new_key() for name in ("web", "shop", "scraper", "ops", "other")}
    scopes = {
        "web": [Scope.INFER],
        "shop": [Scope.SUBMIT, Scope.READ],
        "scraper": [Scope.MONITOR],
        "ops": [Scope.MODELS],
        "other": [Scope.INFER],
    }
    text = "".join(key_lines(name, hash_key(key), scopes=scopes[name]) for name, key in keys.items())
    (tmp_path / "jobs.toml").write_text(f'{text}models = ["another"]\n')
    return {name: {"Authorization": f"Bearer {key}"} for name, key in keys.items()}


@pytest.fixture
def server(tmp_path, keys):
    (tmp_path / "twice.py").write_text(MODEL)
    options = JobsOptions(
        port=0,
        metrics_port=0,
        config=tmp_path / "jobs.toml",
        model_server=ServerOptions(rest_port=0, grpc_port=0, metrics_port=None),
    )
    locations = JobLocations.folder(tmp_path / "data")
    with running(
        lambda: open_jobs([str(tmp_path / "twice.py")], locations, options, isolation="thread")
    ) as opened:
        yield opened


def test_both_addresses_serve_models_and_jobs_with_the_same_keys(server, keys):
    infer, jobs = "/v2/models/twice/infer", "/v1/jobs"
    for listener in ("jobs", "rest"):
        url = server.addresses[listener]
        assert call(url, "POST", infer, BODY)[0] == 401
        assert call(url, "GET", jobs)[0] == 401
        status, document = call(url, "POST", infer, BODY, **keys["web"])
        assert (status, document["outputs"][0]["data"]) == (200, [4.0])
        assert call(url, "GET", jobs, **keys["shop"]) == (200, {"jobs": [], "next_after": ""})
        assert call(url, "GET", jobs, **keys["web"])[0] == 403
        assert call(url, "POST", infer, BODY, **keys["shop"])[0] == 403
        status, refused = call(url, "POST", infer, BODY, **keys["other"])
        assert (status, refused["type"]) == (403, "ForbiddenError")
        paths = call(url, "GET", "/openapi.json")[1]["paths"]
        assert {"/v1/jobs", "/v2/models/{model_name}/infer"} <= paths.keys()


def test_both_addresses_change_the_number_of_instances(server, keys):
    path = "/v2/models/twice/instances"
    for count, listener in ((2, "jobs"), (3, "rest")):
        url, body = server.addresses[listener], json.dumps({"instances": count}).encode()
        assert call(url, "PUT", path, body, **keys["web"])[0] == 403
        status, document = call(url, "PUT", path, body, **keys["ops"])
        assert (status, document["instances"], document["ready"]) == (200, count, count)
        assert call(url, "GET", path, **keys["scraper"]) == (200, document)
        status, document = call(url, "POST", "/v2/models/twice/infer", BODY, **keys["web"])
        assert (status, document["outputs"][0]["data"]) == (200, [4.0])


def test_metrics_port_has_models_jobs_and_the_worker(server, keys):
    address = urlsplit(server.addresses["metrics"])
    request = Request(f"http://{address.netloc}/metrics", headers=keys["scraper"])
    with urlopen(request, timeout=WAIT_S) as response:
        found = samples(response.read().decode())
    assert value(found, "headrace_model_ready", model="twice", version="1") == 1
    assert value(found, "headrace_ledger_up") == 1
    assert value(found, "headrace_deliveries", state="dead") == 0
    assert value(found, "headrace_worker_slots", worker=server.worker.settings.name) == 8


def test_metrics_of_all_tenants_need_the_scope_monitor(server, keys):
    """Before, a tenant that reached the port could count the jobs of the others."""
    url = f"http://{urlsplit(server.addresses['metrics']).netloc}/metrics"
    for headers, status in (({}, 401), (keys["shop"], 403), ({"Authorization": "Bearer hr_x"}, 401)):
        with pytest.raises(HTTPError) as refused:
            urlopen(Request(url, headers=headers), timeout=WAIT_S)
        assert refused.value.code == status
        assert b"headrace_" not in refused.value.read()


def test_job_api_alone_has_metrics_of_jobs_but_no_worker(tmp_path):
    options = JobsOptions(port=0, metrics_port=0)
    with running(lambda: open_jobs([], JobLocations.folder(tmp_path / "data"), options)) as opened:
        call(opened.addresses["jobs"], "POST", "/v1/jobs", json.dumps({"model": "m", "input": 1}).encode())
        with urlopen(f"{opened.addresses['metrics']}/metrics", timeout=WAIT_S) as response:
            found = samples(response.read().decode())
    group = {"queue": "default", "model": "m", "tenant": ""}
    assert value(found, "headrace_jobs_arrived_total", event="submitted", **group) == 1
    assert value(found, "headrace_jobs_due", queue="default") == 1
    assert value(found, "headrace_answers_total", action="submit", door="rest", status="202") == 1
    assert not any(name.startswith("headrace_worker_") for name, _ in found)


def test_no_response_names_the_store_or_the_database(tmp_path):
    """Before, jobs showed the addresses of their payloads and results in headrace's own store."""
    (tmp_path / "twice.py").write_text(MODEL)
    locations = JobLocations.folder(tmp_path / "data")
    good, bad = {"inputs": [TENSOR]}, {"inputs": [{**TENSOR, "name": "unknown"}]}
    bodies = []
    with running(
        lambda: open_jobs(
            [str(tmp_path / "twice.py")],
            locations,
            JobsOptions(port=0, metrics_port=None),
            isolation="thread",
        )
    ) as opened:
        url = opened.addresses["jobs"]

        def ask(method, path, document=None):
            body = None if document is None else json.dumps(document).encode()
            status, found = call(url, method, path, body)
            bodies.append(json.dumps(found))
            return status, found

        upload = ask("POST", "/v1/uploads")[1]
        assert ask("PUT", upload["url"], good)[0] == 201
        submissions = [
            {"input": good},
            {"input": bad, "attempts_max": 1},
            {"upload": upload["id"], "content_type": "application/json"},
        ]
        ids = [ask("POST", "/v1/jobs", {"model": "twice", **each})[1]["id"] for each in submissions]
        states = [ask("GET", f"/v1/jobs/{job_id}?wait=20")[1]["state"] for job_id in ids]
        assert states == ["completed", "failed", "completed"]
        shutil.rmtree(tmp_path / "data" / "objects" / "attempts")
        assert ask("GET", f"/v1/jobs/{ids[0]}/result")[0] == 410
        assert ask("GET", f"/v1/jobs/{ids[1]}/result")[0] == 409
        for path in ("history", "published"):
            ask("GET", f"/v1/jobs/{ids[1]}/{path}")
        for path in (
            "/v1/jobs",
            "/v1/queues",
            "/v1/queues/default/scale",
            "/v1/health/ready",
            "/openapi.json",
        ):
            ask("GET", path)
        ask("DELETE", f"/v1/jobs/{ids[0]}")
    assert len(bodies) > 12
    assert [body for body in bodies if str(tmp_path) in body or "jobs.db" in body] == []


def test_due_schedule_submits_its_job_with_the_key_that_set_it(tmp_path, keys, monkeypatch):
    monkeypatch.setattr(jobs, "_SCHEDULES_S", 0.01)
    options = JobsOptions(port=0, metrics_port=None, config=tmp_path / "jobs.toml")
    settings = {"cron": "* * * * *", "job": {"model": "m", "input": [1]}}
    with running(lambda: open_jobs([], JobLocations.folder(tmp_path / "data"), options)) as opened:
        url, ledger = opened.addresses["jobs"], opened.components.ledger
        watch = ledger.watch()
        body = json.dumps(settings).encode()
        assert call(url, "PUT", "/v1/schedules/s", body, **keys["shop"])[0] == 200
        with closing(sqlite3.connect(tmp_path / "data" / "jobs.db")) as database, database:
            database.execute("UPDATE headrace_schedule SET next_at_ms = next_at_ms - 60000")
        while not (found := ledger.find(JobFilter(tags={"schedule": "s"})).jobs):
            assert watch.wait(WAIT_S)
        watch.close()
    assert [job.spec.submitted_by for job in found] == ["shop"]


def test_webhook_secret_without_an_encryption_key_is_refused(tmp_path):
    (tmp_path / "ledger").mkdir()
    locations = JobLocations(f"sqlite:///{tmp_path}/ledger/jobs.db", f"{tmp_path}/objects/")
    hook = {"webhook": "https://h.example/", "secret": "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="}
    with running(lambda: open_jobs([], locations, JobsOptions(port=0, metrics_port=None))) as opened:
        url = opened.addresses["jobs"]
        for notify, expected in (
            ([hook], 400),
            ([{"webhook": hook["webhook"], "format": "cloudevents-binary"}], 202),
        ):
            job = json.dumps({"model": "m", "input": 1, "notify": notify}).encode()
            status, document = call(url, "POST", "/v1/jobs", job)
            assert status == expected, document
            assert expected != 400 or "--encryption-key FILE" in document["error"]


def test_default_deadline_is_an_option(tmp_path):
    job = json.dumps({"model": "m", "input": 1, "delay_s": 5}).encode()
    for number, (options, expected) in enumerate(
        (({}, 7 * 86_400 + 5), ({"default_deadline_s": 60}, 65), ({"default_deadline_s": inf}, None))
    ):
        locations = JobLocations.folder(tmp_path / str(number))
        with running(
            lambda at=locations, more=options: open_jobs(
                [], at, JobsOptions(port=0, metrics_port=None, **more)
            )
        ) as opened:
            assert call(opened.addresses["jobs"], "POST", "/v1/jobs", job)[1]["deadline_s"] == expected


@for_each(
    ("options", "config", "limit"),
    [
        ({"pending_max": 2}, None, 2),
        ({}, "[anyone]\npending_max = 1", 1),
        ({}, "[queues.q]", PENDING_MAX_DEFAULT),
    ],
)
def test_waiting_jobs_without_keys_are_limited_by_a_setting(tmp_path, options, config, limit):
    job = json.dumps({"model": "m", "input": 1}).encode()
    path = tmp_path / "jobs.toml"
    path.write_text(config or "")
    used = JobsOptions(port=0, metrics_port=None, config=config and path, **options)
    locations = JobLocations.folder(tmp_path / f"data-{limit}")
    with running(lambda: open_jobs([], locations, used)) as opened:
        assert opened.pending_max == limit
        for number in range(min(limit, 3) + (limit < 3)):
            status, document = call(opened.addresses["jobs"], "POST", "/v1/jobs", job)
            expected = (202, None) if number < limit else (429, "QueueFullError")
            assert (status, document.get("type")) == expected


def test_limit_of_waiting_jobs_with_a_settings_file_is_refused(tmp_path):
    (tmp_path / "jobs.toml").write_text("")
    options = JobsOptions(port=0, metrics_port=None, config=tmp_path / "jobs.toml", pending_max=5)
    with pytest.raises(ConfigError, match=r"--pending-max cannot be used with --config: set pending_max of"):
        open_jobs([], JobLocations.folder(tmp_path / "data"), options)


def test_models_of_a_job_server_are_scaled_until_it_stops(tmp_path):
    (tmp_path / "twice.py").write_text(MODEL)
    locations, options = JobLocations.folder(tmp_path / "data"), JobsOptions(port=0, metrics_port=None)

    def scalers():
        return [t for t in threading.enumerate() if t.name == "headrace-instances"]

    for models, count in (([str(tmp_path / "twice.py")], 1), ([], 0)):
        with running(lambda models=models: open_jobs(models, locations, options, isolation="thread")):
            assert len(scalers()) == count
        assert scalers() == []


def test_stop_ends_the_threads_of_the_job_api(tmp_path):
    def threads():
        return [t for t in threading.enumerate() if t.name.startswith("headrace-jobs-api")]

    before = threads()
    locations = JobLocations.folder(tmp_path / "data")
    with running(lambda: open_jobs([], locations, JobsOptions(port=0, metrics_port=None))) as opened:
        assert call(opened.addresses["jobs"], "GET", "/v1/jobs")[0] == 200
        assert len(threads()) > len(before)
    assert set(threads()) <= set(before)


def test_keys_of_the_file_protect_grpc(server, keys):
    address = server.addresses["grpc"].removeprefix("grpc://")
    with grpc.insecure_channel(address) as channel:
        metadata_of_server = channel.unary_unary("/inference.GRPCInferenceService/ServerMetadata")
        with pytest.raises(grpc.RpcError) as refused:
            metadata_of_server(b"", timeout=WAIT_S)
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        key = (("authorization", keys["web"]["Authorization"]),)
        assert b"headrace" in metadata_of_server(b"", metadata=key, timeout=WAIT_S)


def test_foreign_hosts_and_pages_can_neither_read_nor_submit_jobs(tmp_path):
    """Before, a page with the name evil.example got 200 for GET and 202 for POST on loopback."""
    job = json.dumps({"model": "m", "input": 1}).encode()
    locations = JobLocations.folder(tmp_path / "data")
    with running(lambda: open_jobs([], locations, JobsOptions(port=0, metrics_port=None))) as opened:
        url = opened.addresses["jobs"]
        port = urlsplit(url).port
        page = {"Host": f"localhost:{port}", "Origin": f"http://localhost:{port + 1}"}
        for headers in (
            {"Host": f"evil.example:{port}"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
            {"Sec-Fetch-Site": "same-site", **page},
        ):
            assert call(url, "GET", "/v1/jobs", **headers)[0] == 403, headers
            assert call(url, "POST", "/v1/jobs", job, **headers)[0] == 403, headers
        assert call(url, "POST", "/v1/jobs", job, **page)[0] == 403
        assert call(url, "GET", "/v1/jobs")[1]["jobs"] == []
        own = {"Sec-Fetch-Site": "same-origin", "Host": page["Host"], "Origin": f"http://{page['Host']}"}
        assert call(url, "POST", "/v1/jobs", job, **own)[0] == 202


def test_session_of_a_browser_calls_jobs_and_models(server, keys):
    for listener in ("jobs", "rest"):
        url = server.addresses[listener]
        address = urlsplit(url)
        connection = http.client.HTTPConnection(address.hostname, address.port, timeout=WAIT_S)
        connection.request("POST", "/v1/session", headers=keys["web"])
        response = connection.getresponse()
        assert json.loads(response.read())["name"] == "web"
        cookie = response.headers["set-cookie"].partition(";")[0]
        connection.close()
        page = {"Cookie": cookie, "Origin": f"http://{address.netloc}"}
        status, document = call(url, "POST", "/v2/models/twice/infer", BODY, **page)
        assert (status, document["outputs"][0]["data"]) == (200, [4.0])
        assert call(url, "GET", "/v1/jobs", Cookie=cookie)[0] == 403, "the key may not read jobs"
        assert call(url, "POST", "/v2/models/twice/infer", BODY, Cookie=cookie)[0] == 403


def test_foreign_host_is_refused_by_all_routes(server, keys):
    for listener in ("jobs", "rest"):
        for path in ("/v1/health/live", "/v2/health/live", "/docs"):
            status, document = call(server.addresses[listener], "GET", path, Host="evil.example")
            assert (status, "--allow-host" in document["error"]) == (403, True)


@for_each(
    ("model_server", "why"),
    [
        (ServerOptions(rest_port=0, api_keys=Path("keys.toml")), "put all keys into its config file"),
        (ServerOptions(host="0.0.0.0", rest_port=0), "reachable from other machines"),
    ],
)
def test_models_have_no_access_rules_of_their_own(tmp_path, model_server, why):
    (tmp_path / "twice.py").write_text(MODEL)
    options = JobsOptions(port=0, metrics_port=None, model_server=model_server)
    with pytest.raises(ConfigError, match=why):
        open_jobs([str(tmp_path / "twice.py")], JobLocations.folder(tmp_path / "data"), options)
