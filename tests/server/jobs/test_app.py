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


def test_openapi_document_has_manually_parsed_models(described):
    _, document = described
    fields = document["components"]["schemas"]["SubmissionDocument"]["properties"]
    assert set(fields) == {*FIELDS, "input", "upload"}
    body = document["paths"]["/v1/jobs"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/SubmissionDocument"}
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
