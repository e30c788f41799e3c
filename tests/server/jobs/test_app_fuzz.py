"""The job API conforms to its OpenAPI document: schemathesis generates requests."""

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

import levels
from server.jobs.test_app import described

__all__ = ["described"]

pytestmark = pytest.mark.slow


def test_responses_conform_to_the_openapi_document(described):  # a fixture of another module
    """Valid and invalid requests cause no 5xx, no undocumented response and no traceback."""
    served, document = described
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=served.url)
    checked = []
    for result in schema.get_all_operations():
        operation = result.ok()
        if operation.path.endswith("/events"):
            continue  # the stream ends only with its job
        checked.append(operation.label)
        _check(operation)
    assert len(checked) == 51, checked


def _check(operation):
    @settings(max_examples=levels.examples(0.25), suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy())
    def check(case):
        if case.query and "wait" in case.query:
            case.query.pop("wait")
        response = case.call(timeout=20)
        assert response.status_code < 500, response.text
        assert "Traceback" not in response.text
        # A request that fits the schema may still name an unknown upload or a forbidden address.
        case.validate_response(response, excluded_checks=[positive_data_acceptance])

    check()
