"""The application: its OpenAPI holds, its probes answer without a key, and no route escapes its keys."""

import re

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from headrace.jobs.access import Scope
from headrace.jobs.intake_fields import FIELDS
from headrace.jobs.job import Progress
from jobs.desk_support import key_of, served_jobs
from server.jobs.test_job_routes import UNKNOWN, submit

FREE = {"/v1/health/live", "/v1/health/ready"}


@pytest.fixture(scope="module")
def described():
    """An API with a job of each kind of state, and its description."""
    with served_jobs() as served, served.client() as http:
        for _ in range(4):
            submit(http)
        served.complete(served.claim())
        served.tell(served.claim(), Progress(1, None, "records"))
        http.post(f"/v1/jobs/{submit(http)['id']}/cancel")
        document = http.get("/openapi.json").json()
        yield served, document


def cases(document, url):
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=url)
    return schema


def test_whatever_fits_the_description_is_answered_as_it_says(described):
    """Requests made from OpenAPI, right and wrong: no 5xx, no answer that is not described, no traceback."""
    served, document = described
    schema = cases(document, served.url)
    asked = []
    for result in schema.get_all_operations():
        operation = result.ok()
        if operation.path.endswith("/events"):
            continue  # a stream, which ends when its job does
        asked.append(operation.label)
        _ask(operation)
    assert len(asked) == 20, asked


def _ask(operation):
    @settings(max_examples=25, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy())
    def ask(case):
        if case.query and "wait" in case.query:
            case.query.pop("wait")
        answer = case.call(timeout=20)
        assert answer.status_code < 500, answer.text
        assert "Traceback" not in answer.text
        # What fits the schema may still be nobody's upload, or a place that this key may not name.
        case.validate_response(answer, excluded_checks=[positive_data_acceptance])

    ask()


def test_every_route_but_probes_asks_for_a_key(described):
    """A new route fails here until it asks."""
    _, document = described
    with served_jobs(keys=[key_of("shop", Scope.ADMIN)]) as guarded, guarded.client() as http:
        assert http.get("/openapi.json").json()["security"] == [{"key": []}]
        for path, operations in document["paths"].items():
            url = path.replace("{job_id}", UNKNOWN).replace("{upload_id}", UNKNOWN).replace("{queue}", "q")
            for method in operations:
                answer = http.request(method, url, json={"pending_max": 1})
                assert answer.status_code == (200 if path in FREE else 401), (method, path)


def test_the_description_names_what_is_read_by_hand(described):
    _, document = described
    fields = document["components"]["schemas"]["SubmissionModel"]["properties"]
    assert set(fields) == {*FIELDS, "input", "upload"}
    body = document["paths"]["/v1/jobs"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/SubmissionModel"}
    assert "HTTPValidationError" not in str(document)
    references = set(re.findall(r"#/components/schemas/(\w+)", str(document)))
    assert references <= set(document["components"]["schemas"])


def test_no_page_loads_scripts_from_elsewhere(described):
    served, _ = described
    with served.client() as http:
        assert http.get("/docs").status_code == 404
        assert http.get("/redoc").status_code == 404
