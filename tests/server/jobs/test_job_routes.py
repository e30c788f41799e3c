"""The routes of jobs over HTTP: submit, get, list, wait, cancel, retry, delete, and access."""

import gzip
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

import levels
from cases import for_each
from headrace.jobs.access import Scope
from headrace.jobs.job import JobFailure, JobProgress
from headrace.jobs.ledger import JobFilter
from headrace.jobs.paths import UriAllowList
from headrace.jobs.state import Cause
from headrace.jobs.submission import SubmissionLimits
from headrace.jobs.worker_registry import WorkerInfo
from jobs.service_support import STORE, WAIT_S, key_of, served_jobs

UNKNOWN = "01a2007b-0000-7000-8000-000000000000"


def submit(http, **given):
    document = {"model": "m", "input": [1, 2], **given}
    response = http.post("/v1/jobs", json=document)
    assert response.status_code == 202, response.text
    return response.json()


# Submit


def test_submission_is_accepted_with_its_location(served, http):
    served.ledger.register_worker(WorkerInfo("w", queues=("default",), models=("m",)))
    response = http.post("/v1/jobs", json={"model": "m", "input": {"x": [1]}, "tags": {"a": "b"}})
    job = response.json()
    assert response.status_code == 202
    assert response.headers["location"] == f"/v1/jobs/{job['id']}"
    assert (job["state"], job["model"], job["tags"]) == ("pending", "m", {"a": "b"})
    assert job["input_uri"] == ""
    assert served.payload(job["id"]) == b'{"x":[1]}'
    assert http.get(response.headers["location"]).json() == job


def test_raw_payload_is_stored_unchanged(served, http):
    response = http.post(
        "/v1/jobs",
        params={"model": "m", "priority": 1, "tag": "a=b"},
        content=b"\xff\x00",
        headers={"content-type": "x/y"},
    )
    job = response.json()
    assert (response.status_code, job["content_type"], job["priority"]) == (202, "x/y", 1)
    assert served.payload(job["id"]) == b"\xff\x00"


def test_repeated_submission_with_a_key_makes_one_job(served, http):
    document = {"model": "m", "input": [1, 2]}
    first = http.post("/v1/jobs", json=document, headers={"idempotency-key": "k"})
    again = http.post("/v1/jobs", json={**document, "priority": 5}, headers={"idempotency-key": "k"})
    other = http.post("/v1/jobs", json={**document, "priority": 4}, headers={"idempotency-key": "k"})
    assert [first.status_code, again.status_code, other.status_code] == [202, 200, 422]
    assert again.json()["id"] == first.json()["id"]
    assert other.json()["type"] == "IdempotencyError"
    assert other.json()["job_id"] == first.json()["id"]
    assert len(served.ledger.find(JobFilter()).jobs) == 1


def test_payload_of_a_repeated_submission_is_removed(served, http):
    for _ in range(3):
        http.post("/v1/jobs", json={"model": "m", "input": 1}, headers={"idempotency-key": "k"})
    served.service.stop()
    (kept,) = served.stores.for_uri(STORE).list(f"{STORE}/inputs/")
    (job,) = served.ledger.find(JobFilter()).jobs
    assert kept.uri == job.spec.input_uri


def test_concurrent_submissions_with_one_key_make_one_job(served):
    begin, rounds = threading.Barrier(16), levels.by_level(4, 64, 64)

    def ask(_):
        with served.client() as http:
            begin.wait(WAIT_S)
            headers = {"idempotency-key": "k"}
            return [
                http.post("/v1/jobs", json={"model": "m", "input": 1}, headers=headers) for _ in range(rounds)
            ]

    with ThreadPoolExecutor(16) as pool:
        responses = [response for own in pool.map(ask, range(16)) for response in own]
    assert len(responses) == 16 * rounds
    assert sorted({response.status_code for response in responses}) == [200, 202]
    assert sum(response.status_code == 202 for response in responses) == 1
    assert len({response.json()["id"] for response in responses}) == 1


@for_each(
    ("requested", "status", "kind", "why"),
    [
        ({"json": {"model": "m", "input": 1, "priority": 2**31}}, 400, "DataError", "priority: must be"),
        ({"json": {"model": "m", "input": 1, "delay_s": 251e9}}, 400, "DataError", "delay_s: must be"),
        ({"content": b"{"}, 400, "DataError", "the body is not JSON"),
        (
            {"content": b"x", "headers": {"content-type": "text/csv"}},
            400,
            "DataError",
            "content type 'text/csv'",
        ),
        (
            {"json": {"model": "m", "input": 1}, "params": {"priority": 1}},
            400,
            "DataError",
            "priority: a submission as JSON takes no query",
        ),
        (
            {"json": {"model": "m", "input_uri": "s3://elsewhere/k"}},
            403,
            "ForbiddenError",
            (
                "the input 's3://elsewhere/k' is not permitted; permitted inputs: 's3://in', 's3://out': "
                "start headrace up with --allow-input s3://elsewhere/"
            ),
        ),
        ({"json": {"model": "m", "input_uri": "file:///etc/passwd"}}, 400, "ConfigError", ""),
        ({"json": {"model": "m", "input_uri": "http://169.254.169.254/"}}, 400, "ConfigError", ""),
        ({"json": {"model": "m", "input_uri": "s3://in/../out/k"}}, 400, "ConfigError", ""),
        (
            {"json": {"model": "m", "input": 1, "output_uri": "s3://elsewhere"}},
            403,
            "ForbiddenError",
            "the output",
        ),
        (
            {"json": {"model": "m", "input": 1, "notify": [{"kind": "x"}]}},
            400,
            "DataError",
            "notify: this server",
        ),
        (
            {"json": {"model": "m", "upload": UNKNOWN, "content_type": "a/b"}},
            404,
            "ResourceNotFoundError",
            "no upload",
        ),
        ({"params": {"model": "m"}, "content": b"x" * (9 << 20)}, 413, "LimitError", ""),
        ({"json": {"model": "m", "input": "x" * (2 << 20)}}, 413, "LimitError", "a payload of"),
    ],
)
def test_invalid_submission_is_refused_and_leaves_nothing(refused, requested, status, kind, why):
    response = refused.post("/v1/jobs", **requested)
    assert (response.status_code, response.json()["type"]) == (status, kind), response.text
    assert response.json()["error"].startswith(why)
    assert response.json()["request_id"] == response.headers["x-request-id"]


def test_size_limit_applies_to_the_decompressed_body(http):
    bomb = gzip.compress(b" " * (16 << 20))
    response = http.post("/v1/jobs", content=bomb, headers={"content-encoding": "gzip"})
    assert (response.status_code, response.json()["type"]) == (413, "LimitError")


def test_full_queue_responds_429_with_retry_after(http):
    http.patch("/v1/queues/default", json={"pending_max": 1})
    submit(http)
    response = http.post("/v1/jobs", json={"model": "m", "input": 1})
    assert (response.status_code, response.json()["type"]) == (429, "QueueFullError")
    assert int(response.headers["retry-after"]) >= 1


def test_draining_queue_responds_503_with_retry_after(http):
    http.post("/v1/queues/default/drain")
    response = http.post("/v1/jobs", json={"model": "m", "input": 1})
    assert (response.status_code, response.json()["type"]) == (503, "QueueClosedError")
    assert int(response.headers["retry-after"]) >= 1


def test_unavailable_ledger_responds_503_with_retry_after(served, http):
    job = submit(http)
    served.ledger.stop()
    for response in (
        http.post("/v1/jobs", json={"model": "m", "input": 1}),
        http.get(f"/v1/jobs/{job['id']}"),
        http.get("/v1/jobs"),
        http.get("/v1/queues/default/scale"),
        http.get("/v1/health/ready"),
    ):
        assert (response.status_code, response.json()["type"]) == (503, "JobLedgerUnavailableError")
        assert int(response.headers["retry-after"]) >= 1
    assert http.get("/v1/health/live").status_code == 200


# Get


@for_each("job_id", [UNKNOWN, "x", "..", "%2e%2e", "1" * 2000, "01a2007b-0000-7000-8000-00000000000g"])
@for_each("what", ["", "/history", "/result", "/events"])
def test_unknown_job_responds_404(refused, job_id, what):
    assert refused.get(f"{refused.base_url}/v1/jobs/{job_id}{what}").status_code == 404


def test_wait_ends_with_the_job(served, http):
    job_id = submit(http)["id"]
    run = served.claim()
    received = {}

    def wait():
        with served.client() as waiting:
            received["job"] = waiting.get(f"/v1/jobs/{job_id}", params={"wait": 15}).json()

    thread = threading.Thread(target=wait)
    thread.start()
    served.report_progress(run, JobProgress(1, 2))
    served.complete(run)
    thread.join(WAIT_S)
    assert received["job"]["state"] == "completed"
    assert received["job"]["progress"]["done"] == 1


def test_expired_wait_returns_the_current_state(http):
    job = submit(http)
    assert http.get(f"/v1/jobs/{job['id']}", params={"wait": 0.05}).json()["state"] == "pending"
    assert http.get(f"/v1/jobs/{job['id']}", params={"wait": 61}).status_code == 400


def test_waiting_requests_use_no_threads(served, http):
    """More requests wait than the pool has threads, and the cancel request is not delayed."""
    job_id = submit(http)["id"]

    def wait(_):
        with served.client() as client:
            return client.get(f"/v1/jobs/{job_id}", params={"wait": 19}).json()["state"]

    with ThreadPoolExecutor(60) as pool:
        waiting = [pool.submit(wait, n) for n in range(60)]
        while served.service.follower.followers < 60:
            assert not any(done.done() for done in waiting)
            assert http.get("/v1/health/live").status_code == 200
        assert http.post(f"/v1/jobs/{job_id}/cancel").status_code == 200
        assert {done.result(WAIT_S) for done in waiting} == {"cancelled"}


def test_jobs_are_listed_in_pages_newest_first(http):
    made = [submit(http, queue=f"q{n % 2}", tags={"n": str(n)})["id"] for n in range(7)]
    found, after = [], ""
    while True:
        page = http.get("/v1/jobs", params={"limit": 3, "after": after}).json()
        found += [job["id"] for job in page["jobs"]]
        after = page["next_after"]
        if not after:
            break
    assert sorted(found) == sorted(made)
    assert len(found) == 7
    of_one = http.get("/v1/jobs", params={"queue": "q1", "state": ["pending", "running"]}).json()["jobs"]
    assert {job["id"] for job in of_one} == set(made[1::2])
    assert [job["id"] for job in http.get("/v1/jobs", params={"tag": "n=3"}).json()["jobs"]] == [made[3]]
    assert http.get("/v1/jobs", params={"state": "failed"}).json() == {"jobs": [], "next_after": ""}


@for_each(
    "query",
    [
        "limit=0",
        "limit=501",
        "limit=x",
        "state=done",
        "tag=x",
        "created_from_ms=-1",
        "queue=%00",
        "after=" + "x" * 600,
    ],
)
def test_invalid_list_query_is_refused(refused, query):
    response = refused.get(f"/v1/jobs?{query}")
    assert (response.status_code, response.json()["type"]) == (400, "DataError")


# Changes by operators


def test_only_unfinished_jobs_are_cancelled(served, http):
    job_id = submit(http)["id"]
    assert http.post(f"/v1/jobs/{job_id}/cancel").json()["state"] == "cancelled"
    assert http.post(f"/v1/jobs/{job_id}/cancel").status_code == 200
    submit(http)
    run = served.claim()
    assert http.post(f"/v1/jobs/{run.id}/cancel").json()["cancel_requested"]
    served.complete(run)
    response = http.post(f"/v1/jobs/{run.id}/cancel")
    assert (response.status_code, response.json()["state"]) == (409, "completed")


def test_failed_job_is_retried_and_history_records_it(served, http):
    job_id = submit(http)["id"]
    assert http.post(f"/v1/jobs/{job_id}/retry").status_code == 409
    served.fail(served.claim(), JobFailure(Cause.MODEL, "it raised", "ValueError"))
    failed = http.get(f"/v1/jobs/{job_id}").json()
    assert failed["failure"] == {
        "cause": "model",
        "message": "it raised",
        "error": "ValueError",
        "uri": "",
        "times": 1,
    }
    result = http.get(f"/v1/jobs/{job_id}/result")
    assert (result.status_code, "it raised" in result.json()["error"]) == (409, True)
    assert http.post(f"/v1/jobs/{job_id}/retry").json()["state"] == "pending"
    events = [entry["event"] for entry in http.get(f"/v1/jobs/{job_id}/history").json()["history"]]
    assert events[-1] == "requeued"
    assert "attempt_failed" in events
    served.complete(served.claim())
    assert http.post(f"/v1/jobs/{job_id}/retry").status_code == 409


def test_delete_removes_stored_objects(served, http):
    job = submit(http)
    assert http.delete(f"/v1/jobs/{job['id']}").status_code == 409
    served.complete(served.claim())
    assert http.delete(f"/v1/jobs/{job['id']}").json()["state"] == "completed"
    assert http.get(f"/v1/jobs/{job['id']}").status_code == 404
    assert list(served.stores.for_uri(STORE).list(STORE)) == []


# Models of workers


def test_unknown_model_is_refused_and_an_unserved_queue_is_a_warning(served, http):
    first = http.post("/v1/jobs", json={"model": "chrun", "input": 1})
    assert (first.status_code, len(first.json()["warnings"])) == (202, 1)
    served.ledger.register_worker(WorkerInfo("w", queues=("default",), models=("churn", "churn@1")))
    refused = http.post("/v1/jobs", json={"model": "chrun", "input": 1})
    assert (refused.status_code, refused.json()["type"]) == (404, "ModelNotFoundError")
    assert "did you mean churn?" in refused.json()["error"]
    assert "known models: churn" in refused.json()["error"]
    known = http.post("/v1/jobs", json={"model": "churn@1", "input": 1})
    assert (known.status_code, known.json()["warnings"]) == (202, [])
    other = http.post("/v1/jobs", json={"model": "churn", "input": 1, "queue": "other"}).json()
    assert "no worker has served queue other" in other["warnings"][0]
    assert http.get(f"/v1/jobs/{other['id']}").json()["warnings"] == []


# Access


@pytest.fixture
def guarded(make_ledger):
    keys = {
        "shop": key_of(
            "shop", inputs=UriAllowList(prefixes=("s3://shop",)), pending_max=2, queues=frozenset({"default"})
        ),
        "bank": key_of("bank", models=frozenset({"risk"}), inline_bytes_max=100),
        "looker": key_of("looker", Scope.READ, tenant="shop"),
        "ops": key_of("ops", Scope.OPERATE),
        "admin": key_of("admin", Scope.ADMIN),
    }
    with served_jobs(ledger=make_ledger(), keys=keys.values()) as made:
        texts = {name: text for name, (text, _, _) in keys.items()}
        texts |= {"nobody": "", "stranger": "hr_not-a-key-of-here"}
        with ExitStack() as stack:
            yield {name: stack.enter_context(made.client(text)) for name, text in texts.items()}


def test_missing_or_unknown_key_responds_401(guarded):
    for name in ("nobody", "stranger"):
        for path in ("/v1/jobs", f"/v1/jobs/{UNKNOWN}", "/v1/queues", "/v1/queues/q/scale"):
            response = guarded[name].get(path)
            assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")
        assert guarded[name].post("/v1/jobs", json={}).status_code == 401
        assert guarded[name].get("/v1/health/ready").status_code == 200


def test_job_of_another_tenant_is_invisible(guarded):
    job_id = submit(guarded["shop"])["id"]
    for path in ("", "/history", "/result", "/events"):
        assert guarded["bank"].get(f"/v1/jobs/{job_id}{path}").status_code == 404
    for verb in ("cancel", "retry"):
        assert guarded["bank"].post(f"/v1/jobs/{job_id}/{verb}").status_code == 404
    assert guarded["bank"].get("/v1/jobs", params={"tenant": "shop"}).json()["jobs"] == []
    for name in ("shop", "looker", "ops", "admin"):
        assert [job["id"] for job in guarded[name].get("/v1/jobs").json()["jobs"]] == [job_id]


def test_idempotency_keys_are_separate_per_tenant(guarded):
    headers = {"idempotency-key": "k"}
    one = guarded["shop"].post("/v1/jobs", json={"model": "m", "input": 1}, headers=headers)
    two = guarded["bank"].post("/v1/jobs", json={"model": "risk", "input": 2}, headers=headers)
    assert [one.status_code, two.status_code] == [202, 202]


def test_scopes_and_addresses_of_a_key_are_enforced(guarded):
    job_id = submit(guarded["shop"])["id"]
    looker, shop, bank = guarded["looker"], guarded["shop"], guarded["bank"]
    assert looker.post("/v1/jobs", json={"model": "m", "input": 1}).status_code == 403
    assert looker.post(f"/v1/jobs/{job_id}/cancel").status_code == 403
    assert shop.post("/v1/queues/default/pause").status_code == 403
    assert looker.delete(f"/v1/jobs/{job_id}").status_code == 403
    assert shop.post("/v1/jobs", json={"model": "m", "input": 1, "queue": "night"}).status_code == 403
    assert bank.post("/v1/jobs", json={"model": "m", "input": 1}).status_code == 403
    assert bank.post("/v1/jobs", json={"model": "risk", "input": "x" * 200}).status_code == 413
    assert shop.post("/v1/jobs", json={"model": "m", "input_uri": "s3://shopping/k"}).status_code == 403
    assert shop.post("/v1/jobs", json={"model": "m", "input_uri": "s3://shop/k"}).status_code == 202
    full = shop.post("/v1/jobs", json={"model": "m", "input": 1})
    assert (full.status_code, full.json()["type"]) == (429, "QueueFullError")


def test_submitters_delete_their_jobs_and_operators_cancel_all(guarded):
    shop, bank, ops, admin = (guarded[name] for name in ("shop", "bank", "ops", "admin"))
    one, two = submit(shop)["id"], submit(shop)["id"]
    assert ops.post(f"/v1/jobs/{one}/cancel").json()["state"] == "cancelled"
    assert ops.post(f"/v1/jobs/{one}/retry").json()["state"] == "pending"
    for job_id in (one, two):
        assert shop.post(f"/v1/jobs/{job_id}/cancel").status_code == 200
    assert bank.delete(f"/v1/jobs/{one}").status_code == 404
    assert ops.delete(f"/v1/jobs/{one}").status_code == 403
    assert shop.delete(f"/v1/jobs/{one}").status_code == 200
    assert admin.delete(f"/v1/jobs/{two}").status_code == 200
    assert shop.get(f"/v1/jobs/{one}").status_code == 404


def test_full_queue_still_returns_an_earlier_submission(guarded):
    """A client whose response was lost repeats the submission while the queue is full."""
    shop, headers = guarded["shop"], {"idempotency-key": "k"}
    body = {"model": "m", "input": 1}
    first = shop.post("/v1/jobs", json=body, headers=headers)
    submit(shop)
    assert shop.post("/v1/jobs", json=body).status_code == 429
    assert shop.post("/v1/jobs", json=body, headers={"idempotency-key": "new"}).status_code == 429
    again = shop.post("/v1/jobs", json=body, headers=headers)
    assert (again.status_code, again.json()["id"]) == (200, first.json()["id"])
    assert shop.post("/v1/jobs", json={"model": "m", "input": 2}, headers=headers).status_code == 422


def test_full_queue_still_returns_an_earlier_upload_submission(guarded):
    shop = guarded["shop"]
    upload = shop.post("/v1/uploads").json()
    shop.put(upload["url"], content=b"x")
    body = {"model": "m", "upload": upload["id"], "content_type": "a/b"}
    assert shop.post("/v1/jobs", json=body).status_code == 202
    submit(shop)
    assert shop.post("/v1/jobs", json=body).status_code == 200
    other = guarded["bank"].post("/v1/jobs", json={**body, "model": "risk"})
    assert other.status_code == 404


def test_uploads_belong_to_one_tenant(guarded):
    upload = guarded["shop"].post("/v1/uploads").json()
    assert guarded["shop"].put(upload["url"], content=b"x").status_code == 201
    named = {"model": "risk", "upload": upload["id"], "content_type": "a/b"}
    assert guarded["bank"].put(upload["url"], content=b"y").status_code == 404
    assert guarded["bank"].post("/v1/jobs", json=named).status_code == 404
    assert guarded["shop"].post("/v1/jobs", json=named).status_code == 202


def test_server_wide_limit_is_enforced(make_ledger):
    with (
        served_jobs(ledger=make_ledger(), limits=SubmissionLimits(inline_bytes_max=10)) as made,
        made.client() as http,
    ):
        assert http.post("/v1/jobs?model=m", content=b"x" * 11).status_code == 413
        assert http.post("/v1/jobs?model=m", content=b"x" * 10).status_code == 202
