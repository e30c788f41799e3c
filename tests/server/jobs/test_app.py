"""The application of the job API: its OpenAPI document, its probes, and keys on every route."""

import re

import pytest

from headrace.jobs.access import Scope
from headrace.jobs.job import JobProgress
from headrace.jobs.submission import FIELDS
from headrace.jobs.worker_registry import WorkerInfo
from jobs.service_support import key_of, served_jobs
from server.jobs.test_job_routes import UNKNOWN, submit

FREE = {"/v1/health/live", "/v1/health/ready"}
LOGOUT = ("delete", "/v1/session")
METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"}


def operations_of(document):
    """Return the path and the method of every operation of an OpenAPI document."""
    return [
        (path, method) for path, item in document["paths"].items() for method in item.keys() - {"parameters"}
    ]


@pytest.fixture(scope="module")
def described():
    """Serve an API with jobs in several states, and return it with its OpenAPI document."""
    with served_jobs() as served, served.client() as http:
        for _ in range(4):
            submit(http)
        served.complete(served.claim())
        served.report_progress(served.claim(), JobProgress(1, None, "records"))
        http.post(f"/v1/jobs/{submit(http)['id']}/cancel")
        served.ledger.register_worker(WorkerInfo("w", queues=("default",)))
        document = http.get("/openapi.json").json()
        yield served, document


def test_every_route_except_probes_requires_a_key(described):
    _, document = described
    with served_jobs(keys=[key_of("shop", Scope.ADMIN)]) as guarded, guarded.client() as http:
        assert http.get("/openapi.json").json()["security"] == [{"key": []}, {"session": []}]
        for path, operations in document["paths"].items():
            url = (
                path.replace("{job_id}", UNKNOWN)
                .replace("{upload_id}", UNKNOWN)
                .replace("{queue}", "q")
                .replace("{endpoint}", "e")
                .replace("{worker}", "w")
            )
            for method in operations.keys() - {"parameters"}:
                response = http.request(method, url, json={"pending_max": 1})
                expected = 204 if (method, path) == LOGOUT else 200 if path in FREE else 401
                assert response.status_code == expected, (method, path)


def test_missing_key_is_reported_before_any_invalid_part(described):
    """An invalid path, query, header or body must not hide from a client that it needs a key."""
    _, document = described
    headers = {"content-type": "application/json", "content-encoding": "none", "idempotency-key": "a b"}
    with served_jobs(keys=[key_of("shop", Scope.ADMIN)]) as guarded, guarded.client() as http:
        for path, method in operations_of(document):
            if path in FREE or (method, path) == LOGOUT:
                continue
            url = re.sub(r"{\w+}", "%00 %F0", path) + "?%00&limit=x&wait=x&version=x&model=%00"
            response = http.request(method, url, content=b"\xff{", headers=headers)
            assert response.status_code == 401, (method, path, response.text)
            assert response.headers["www-authenticate"] == "Bearer"


def test_other_methods_are_refused_with_all_methods_of_the_path(described):
    served, document = described
    with served.client() as http:
        for path in document["paths"]:
            methods = {method.upper() for other, method in operations_of(document) if other == path}
            for method in METHODS - methods:
                response = http.request(method, re.sub(r"{\w+}", "x", path))
                assert response.status_code == 405, (method, path)
                assert set(response.headers["allow"].split(", ")) == methods, (method, path)


def test_whole_numbers_may_be_sent_as_floats(described):
    """JSON has one type of number, and the document says `integer`, so 5.0 must be as good as 5."""
    served, _ = described
    job = {"model": "m", "input": [1.0], "priority": 5.0, "attempts_max": 2.0}
    with served.client() as http:
        submitted = http.post("/v1/jobs", json=job).json()
        assert (submitted["priority"], submitted["attempts_max"]) == (5, 2)
        assert served.payload(submitted["id"]) == b"[1.0]"
        (result,) = http.post("/v1/jobs/batch", json={"jobs": [job]}).json()["results"]
        assert result["job"]["priority"] == 5
        assert http.patch("/v1/queues/wide", json={"pending_max": 205.0}).json()["pending_max"] == 205
        condition = {"queue": "wide", "created_from_ms": 7.0}
        counted = http.post("/v1/jobs/bulk", json={"action": "retry", "limit": 3.0, "filter": condition})
        assert counted.json()["matched"] == 0
        endpoint = http.put("/v1/endpoints/e", json={"model": "m", "running_max": 4.0}).json()
        assert endpoint["settings"]["running_max"] == 4
        assert http.patch("/v1/queues/wide", json={"pending_max": 205.5}).status_code == 400
        assert http.patch("/v1/queues/wide", json={"pending_max": "205"}).status_code == 400


def test_openapi_document_has_manually_parsed_models(described):
    _, document = described
    fields = document["components"]["schemas"]["SubmissionDocument"]["properties"]
    assert set(fields) == {*FIELDS, "input", "upload"}
    body = document["paths"]["/v1/jobs"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body["$ref"] == "#/components/schemas/SubmissionDocument"
    assert body["oneOf"] == [{"required": ["input"]}, {"required": ["upload"]}, {"required": ["input_uri"]}]
    assert "HTTPValidationError" not in str(document)
    references = set(re.findall(r"#/components/schemas/(\w+)", str(document)))
    assert references <= set(document["components"]["schemas"])


def test_no_page_loads_external_scripts(described):
    served, _ = described
    with served.client() as http:
        page = http.get("/docs")
        assert "<script" not in page.text
        assert "script" not in page.headers["content-security-policy"]
        assert "/v1/jobs/{job_id}" in page.text
        assert http.get("/redoc").status_code == 404
