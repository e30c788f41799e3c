"""Batches of submissions: over HTTP, by both clients, and by the service."""

import asyncio
import json
from dataclasses import replace

import pytest

from headrace.core.errors import (
    ConfigError,
    EndpointRefusedError,
    IdempotencyError,
    JobLedgerUnavailableError,
    QueueClosedError,
    UnavailableError,
)
from headrace.jobs.access import Scope
from headrace.jobs.batch import BATCH_JOBS_MAX
from headrace.jobs.client import AsyncClient, Client, core
from headrace.jobs.client.messages import ApiResponse, read_batch_results
from headrace.jobs.job import Job
from headrace.jobs.ledger import JobFilter, QueueSettings
from headrace.jobs.worker_registry import WorkerInfo
from headrace.server.jobs import job_routes
from headrace.storage import Stores
from jobs.service_support import TEST_KEY, key_of, served_jobs

FEW = replace(TEST_KEY, pending_max=3)
CLOSED = {"model": "m", "queue": "closed", "input": [1]}


@pytest.fixture
def served():
    with served_jobs() as made:
        made.ledger.set_queue(QueueSettings("closed", draining=True))
        yield made


@pytest.fixture
def http(served):
    with served.client() as made:
        yield made


def jobs_of(served):
    return served.ledger.find(JobFilter(), limit=10).jobs


def stored_payloads(served):
    return [found.uri for found in served.stores.for_uri("memory://store").list("memory://store/")]


def send(http, *jobs, **members):
    return http.post("/v1/jobs/batch", json={"jobs": list(jobs), **members})


def test_each_job_has_its_own_result_in_order(served, http):
    response = send(
        http,
        {"model": "m", "input": [1], "tags": {"n": "1"}, "idempotency_key": "k"},
        {"model": "m", "input": [1], "colour": "red"},
        "no object",
        CLOSED,
        {"model": "m", "input": [1], "tags": {"n": "1"}, "idempotency_key": "k"},
        {"model": "m", "input": [2], "idempotency_key": "k"},
        {"model": "m", "input_uri": "s3://in/a.csv", "priority": 0},
        {"model": "m", "input_uri": "s3://elsewhere/a.csv"},
    )
    assert response.status_code == 200
    results = response.json()["results"]
    assert [result["status"] for result in results] == [202, 400, 400, 503, 200, 422, 202, 403]
    assert [result.get("type", "") for result in results] == [
        "",
        "DataError",
        "DataError",
        "QueueClosedError",
        "",
        "IdempotencyError",
        "",
        "ForbiddenError",
    ]
    assert "colour" in results[1]["error"]
    assert results[4]["job"]["id"] == results[0]["job"]["id"] == results[5]["job_id"]
    assert results[6]["job"]["priority"] == 0
    assert sorted(job.id for job in jobs_of(served)) == sorted(results[i]["job"]["id"] for i in (0, 6))
    assert served.payload(results[0]["job"]["id"]) == b"[1]"


def test_payloads_of_refused_jobs_are_deleted(served, http):
    (result,) = send(http, CLOSED).json()["results"]
    assert result["status"] == 503
    served.service.stop()  # waits for deletions
    assert stored_payloads(served) == []


def test_all_or_nothing_queues_nothing_after_a_refusal(served, http):
    good = {"model": "m", "input": [1]}
    for bad, status, kind in (
        (CLOSED, 503, "QueueClosedError"),
        ({"model": "m"}, 400, "DataError"),
        ({"model": "m", "input_uri": "s3://elsewhere/a.csv"}, 403, "ForbiddenError"),
    ):
        response = send(http, good, bad, bad, all_or_nothing=True)
        assert (response.status_code, response.json()["type"]) == (status, kind)
        assert response.json()["error"].startswith("nothing was queued, because of jobs[1]: ")
    assert jobs_of(served) == ()
    response = send(http, good, good, all_or_nothing=True)
    assert [result["status"] for result in response.json()["results"]] == [202, 202]
    assert len(jobs_of(served)) == 2
    served.service.stop()
    assert len(stored_payloads(served)) == 2


def test_malformed_batch_is_refused_as_a_whole(http):
    for body, reason in (
        ([], "must be a JSON object"),
        ({}, "jobs: must be a list"),
        ({"jobs": []}, "at least one"),
        ({"jobs": [{}], "all_or_nothing": "yes"}, "true or false"),
        ({"jobs": [{}], "more": 1}, "'more' is not a field of a batch"),
    ):
        response = http.post("/v1/jobs/batch", json=body)
        assert response.status_code == 400, body
        assert reason in response.json()["error"]
    response = send(http, *[{"model": "m", "input": 1}] * (BATCH_JOBS_MAX + 1))
    assert (response.status_code, response.json()["type"]) == (400, "DataError")


def test_batch_that_is_too_large_is_refused(served, http, monkeypatch):
    monkeypatch.setattr(job_routes, "BATCH_BYTES_MAX", 1000)
    assert send(http, {"model": "m", "input": "x" * 1000}).status_code == 413
    assert jobs_of(served) == ()


def test_quota_admits_a_batch_or_none_of_it():
    with served_jobs(anonymous=FEW) as served, served.client() as http:
        jobs = [{"model": "m", "input": [n], "idempotency_key": f"k{n}"} for n in range(4)]
        statuses = [result["status"] for result in send(http, *jobs).json()["results"]]
        assert statuses == [429] * 4
        assert [result["status"] for result in send(http, *jobs[:3]).json()["results"]] == [202] * 3
        # Jobs in the ledger are not checked against the quota again.
        assert [result["status"] for result in send(http, *jobs).json()["results"]] == [200] * 3 + [429]
        response = send(http, *jobs, all_or_nothing=True)
        assert (response.status_code, response.json()["retry_after_s"]) == (429, 10.0)
        served.ledger.cancel(jobs_of(served)[0].id)
        assert send(http, jobs[3]).json()["results"][0]["status"] == 202


def test_batch_needs_the_scope():
    reader = key_of("reader", Scope.READ)
    with served_jobs(keys=[reader]) as served, served.client(reader[0]) as http:
        assert send(http, {"model": "m", "input": 1}).status_code == 403
        assert jobs_of(served) == ()


def test_jobs_have_warnings_and_are_announced(served, http):
    served.ledger.register_worker(WorkerInfo("w", queues=("default",), models=("m",)))
    served.ledger.set_queue(QueueSettings("night"))
    unserved, unknown, known = send(
        http,
        {"model": "m", "queue": "night", "input": 1},
        {"model": "n", "input": 1},
        {"model": "m", "input": 1},
    ).json()["results"]
    assert "no worker has served queue night" in unserved["job"]["warnings"][0]
    assert (unknown["status"], unknown["type"]) == (404, "ModelNotFoundError")
    assert known["job"]["warnings"] == []


class FailingStores(Stores):
    """Stores that cannot write the payload ``[13]``."""

    def for_uri(self, uri):
        store = super().for_uri(uri)

        class Failing(type(store)):
            def put(self, uri, data, *args, **options):
                if data == b"[13]":
                    raise UnavailableError(uri, "the store does not respond")
                return super().put(uri, data, *args, **options)

        store.__class__ = Failing
        return store


def test_payload_that_is_not_stored_costs_its_job():
    with served_jobs(stores=FailingStores()) as served, served.client() as http:
        jobs = [{"model": "m", "input": [n]} for n in (12, 13, 14)]
        assert [result["status"] for result in send(http, *jobs).json()["results"]] == [202, 503, 202]
        assert send(http, *jobs, all_or_nothing=True).status_code == 503
        assert len(jobs_of(served)) == 2
        served.service.stop()
        assert len(stored_payloads(served)) == 2


def test_unavailable_ledger_refuses_the_whole_batch(served, http):
    served.ledger.unavailable = True
    assert send(http, {"model": "m", "input": 1}).status_code == 503
    served.ledger.unavailable = False
    assert jobs_of(served) == ()


def test_client_returns_jobs_and_errors_in_order(served, tmp_path, monkeypatch):
    monkeypatch.setattr(core, "BATCH_JOBS", 2)
    rows = tmp_path / "rows.csv"
    rows.write_bytes(b"1,2\n")
    submissions = [
        {"model": "m", "input": [1], "idempotency_key": "k"},
        {"model": "m", "input": [1], "queue": "closed"},
        {"model": "m", "input": rows},
        {"model": "m", "input": [2], "idempotency_key": "k"},
        {"model": "m", "input": [3]},
    ]
    with Client(served.url) as client:
        first, closed, uploaded, conflict, last = client.submit_batch(iter(submissions))
        assert isinstance(closed, QueueClosedError)
        assert isinstance(conflict, IdempotencyError)
        assert [job.state for job in (first, uploaded, last)] == ["pending"] * 3
        assert served.payload(uploaded.id) == b"1,2\n"
        with pytest.raises(QueueClosedError, match=r"because of jobs\[0\]"):
            client.submit_batch(submissions[1:3] + submissions[1:3], all_or_nothing=True)
        with pytest.raises(ConfigError, match="'colour' is not an argument of submit"):
            client.submit_batch([{"model": "m", "input": 1, "colour": "red"}])
        assert client.submit_batch([]) == []


def test_client_splits_batches_by_size(served, monkeypatch):
    monkeypatch.setattr(core, "BATCH_BYTES", 300)
    sizes = []
    send_batch = core.ApiOperations._send_batch

    async def counted(self, documents, *args, **options):
        sizes.append(len(documents))
        return await send_batch(self, documents, *args, **options)

    monkeypatch.setattr(core.ApiOperations, "_send_batch", counted)

    async def run():
        async with AsyncClient(served.url) as client:
            return await client.submit_batch({"model": "m", "input": "x" * 100} for _ in range(3))

    jobs = asyncio.run(run())
    assert all(isinstance(job, Job) for job in jobs)
    assert (sizes, len(jobs_of(served))) == ([1, 1, 1], 3)


def test_lost_response_is_repeated_without_doubling(served):
    lost = []

    class Losing(type(served.ledger)):
        def submit(self, jobs, *, all_or_nothing=False):
            replies = super().submit(jobs, all_or_nothing=all_or_nothing)
            if not lost:
                lost.append(len(jobs))
                raise JobLedgerUnavailableError("the connection broke after the commit")
            return replies

    served.ledger.__class__ = Losing
    with Client(served.url) as client:
        jobs = client.submit_batch({"model": "m", "input": [n]} for n in range(3))
    assert lost == [3]
    assert sorted(job.id for job in jobs) == sorted(job.id for job in jobs_of(served))


def test_results_that_are_no_results_are_refused():
    for body in ({}, {"results": 1}, {"results": [1]}, {"results": [{"status": 202, "job": {}}]}):
        with pytest.raises(EndpointRefusedError):
            read_batch_results(ApiResponse(200, {}, json.dumps(body).encode(), "http://api"))
