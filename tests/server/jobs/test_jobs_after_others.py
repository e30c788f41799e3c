"""Jobs that come after others, over HTTP and with a worker."""

from contextlib import contextmanager

from cases import for_each
from headrace.core.errors import ModelInputError
from headrace.jobs.client import Client
from headrace.jobs.ledgers.sqlite import SqliteJobLedger
from headrace.jobs.state import Cause, JobState
from headrace.jobs.worker import WorkerSettings
from headrace.jobs.worker.worker import Worker
from jobs.service_support import served_jobs
from jobs.worker.scripted_kind import ScriptedKind
from server.jobs.test_job_routes import UNKNOWN, submit


def test_job_is_blocked_until_another_has_completed(served, http):
    first = submit(http)
    job = submit(http, after=[first["id"]])
    assert (job["state"], job["after"]) == ("blocked", [first["id"]])
    assert [each["id"] for each in http.get("/v1/jobs?state=blocked").json()["jobs"]] == [job["id"]]
    queue = http.get("/v1/queues/default").json()
    assert (queue["queued"], queue["blocked"]) == (1, 1)
    served.complete(served.claim())
    assert http.get(f"/v1/jobs/{job['id']}").json()["state"] == "pending"
    (entry,) = http.get(f"/v1/jobs/{job['id']}/history").json()["history"]
    assert (entry["event"], entry["attempt"]) == ("unblocked", 0)


def test_failed_prerequisite_is_named(served, http):
    first = submit(http)
    job = submit(http, after=[first["id"]])
    http.post(f"/v1/jobs/{first['id']}/cancel")
    ended = http.get(f"/v1/jobs/{job['id']}").json()
    assert (ended["state"], ended["failure"]["cause"]) == ("failed", "prerequisite")
    assert first["id"] in ended["failure"]["message"]
    refused = http.post(f"/v1/jobs/{job['id']}/retry")
    assert (refused.status_code, refused.json()["job_id"]) == (409, first["id"])


def test_raw_submission_names_jobs_in_its_query(served, http):
    first = submit(http)
    query = {"model": "m", "after": f'["{first["id"]}"]'}
    job = http.post("/v1/jobs", params=query, content=b"1,2", headers={"content-type": "text/csv"}).json()
    assert (job["state"], job["after"]) == ("blocked", [first["id"]])


def test_other_prerequisites_are_another_job_for_a_key(served, http):
    first, second = submit(http), submit(http)
    headers, document = {"idempotency-key": "k"}, {"model": "m", "input": 1, "after": [first["id"]]}
    assert http.post("/v1/jobs", json=document, headers=headers).status_code == 202
    assert http.post("/v1/jobs", json=document, headers=headers).status_code == 200
    other = http.post("/v1/jobs", json={**document, "after": [second["id"]]}, headers=headers)
    assert (other.status_code, other.json()["type"]) == (422, "IdempotencyError")


@for_each(
    ("after", "status", "kind"),
    [
        ([UNKNOWN], 404, "JobNotFoundError"),
        (["x"], 400, "DataError"),
        ("x", 400, "DataError"),
        ([UNKNOWN, UNKNOWN], 400, "DataError"),
        ([f"{UNKNOWN[:-2]}{number:02}" for number in range(65)], 413, "LimitError"),
    ],
)
def test_impossible_prerequisites_are_refused(after, status, kind, served, http):
    response = http.post("/v1/jobs", json={"model": "m", "input": 1, "after": after})
    assert (response.status_code, response.json()["type"]) == (status, kind)


def test_job_after_a_cancelled_one_is_refused(served, http):
    first = submit(http)
    http.post(f"/v1/jobs/{first['id']}/cancel")
    response = http.post("/v1/jobs", json={"model": "m", "input": 1, "after": [first["id"]]})
    assert (response.status_code, response.json()["job_id"]) == (409, first["id"])


@contextmanager
def working(ledger, kind):
    worker = Worker(ledger, {"infer": kind}, WorkerSettings(name="w", concurrency=4, poll_s=0.05))
    worker.start()
    try:
        yield
    finally:
        worker.stop(drain=False)


def test_worker_runs_jobs_one_after_another(tmp_path):
    """A chain and its fork run in order; a failure ends what comes after it, and a retry goes on."""
    ledger, kind = SqliteJobLedger(tmp_path / "jobs.db"), ScriptedKind()
    with served_jobs(ledger=ledger) as served, working(ledger, kind), Client(served.url) as client:
        first = client.submit("m", [1])
        left, right = (client.submit("m", [1], after=[first.id]) for _ in range(2))
        last = client.submit("m", [1], after=[left.id, right.id])
        assert {job.state for job in (left, right, last)} == {JobState.BLOCKED}
        running = kind.next()
        assert running.id == first.id
        assert kind.none_began()
        running.finish()
        both = {each.id: each for each in (kind.next(), kind.next())}
        both[left.id].finish()
        assert client.wait(left.id).state is JobState.COMPLETED
        both[right.id].fail(ModelInputError("m", "a wrong column"))
        ended = client.wait(last.id)
        assert (ended.state, ended.failure.cause) == (JobState.FAILED, Cause.PREREQUISITE)
        assert client.bulk("retry", state=["failed"])["changed"] == 2
        for job in (right, last):
            running = kind.next()
            assert running.id == job.id
            running.finish()
        assert client.wait(last.id).state is JobState.COMPLETED
