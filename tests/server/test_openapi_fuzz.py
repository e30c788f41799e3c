"""The REST server conforms to its OpenAPI document: schemathesis generates requests to real models."""

import json
import re
from math import prod

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import CHECKS, load_all_checks

import levels
from headrace.core.model import Model
from headrace.core.tensor import ModelMetadata
from headrace.engine.settings import INSTANCES_MAX
from headrace.protocols.oip_json import HEADER_LENGTH
from headrace.server.openapi import openapi_document
from server.support import MODEL_ROUTES, serving
from server.test_openapi import DESCRIBED, MODELS

pytestmark = pytest.mark.slow

load_all_checks()

# Two checks of schemathesis are off. A body that fits the schema may be refused, because it may be
# wrong for its model. Nothing is created here, so nothing can exist or be gone afterwards.
CHECKED = [
    CHECKS.get_one(name)
    for name in (
        "status_code_conformance",
        "content_type_conformance",
        "response_headers_conformance",
        "response_schema_conformance",
        "negative_data_rejection",
        "missing_required_header",
        "unsupported_method",
    )
]
REFUSES_INVALID = CHECKS.get_one("negative_data_rejection")
OPAQUE = ModelMetadata("opaque", "1", "python")
DOCUMENT = openapi_document(MODEL_ROUTES, "0", [*DESCRIBED, OPAQUE])
SCHEMA = schemathesis.openapi.from_dict(json.loads(json.dumps(DOCUMENT)))


class Opaque(Model):
    """Returns the parts of each request, one after the other."""

    def handle(self, requests):
        return [b"".join(request.parts.values()) for request in requests]


@pytest.fixture(scope="module")
def server():
    with serving({**MODELS, "opaque": Opaque}) as opened:
        yield opened


def with_valid_inputs(document, model: str):
    """Replace the inputs of a request by valid ones, so that the model is called, too."""
    specs = MODELS[model].inputs
    rows = 1 + len(json.dumps(document)) % 3
    inputs = []
    for at, spec in enumerate(specs):
        shape = [rows, *(max(size, 1) for size in (spec.shape or (-1,))[1:])]
        value = {"BYTES": f"t{at}", "BOOL": True}.get(spec.datatype, at)
        data = [value] * prod(shape)
        inputs.append({"name": spec.name, "shape": shape, "datatype": spec.datatype, "data": data})
    return {**document, "inputs": inputs or document.get("inputs")}


def no_server_failure(ctx, response, case):
    """Allow two failures: a generated timeout of microseconds, and a kind of request that the model lacks."""
    text = json.dumps(case.body) if isinstance(case.body, dict | list) else str(case.body)
    match response.status_code:
        case 504:
            assert "timeout" in text, response.text
        case 501:
            path = case.operation.path
            assert (case.path_parameters["model_name"] == OPAQUE.name) != path.endswith("/handle"), (
                response.text
            )
        case status:
            assert status < 500, response.text


def _limit_instances(body):
    """Replace valid numbers of instances by small ones. A thousand instances slow all later tests."""
    for name in ("instances", "instances_max"):
        number = body.get(name) if isinstance(body, dict) else None
        if type(number) is int and 1 <= number <= INSTANCES_MAX:
            body[name] = 1 + number % 3


called: set[str] = set()


def _fuzz(path: str, method: str):
    """Return the test of one operation.

    Each test has its own name, because pytest-xdist takes one name for one test.
    """

    @SCHEMA.include(path=path, method=method).parametrize()
    @settings(max_examples=levels.examples(0.12), suppress_health_check=list(HealthCheck))
    def test(case, server):
        check_case(case, f"http://127.0.0.1:{server.port}")

    return test


def check_case(case, url: str):
    """Check status, type and body against the document. Invalid requests must be refused."""
    if case.operation.path.endswith("/instances"):
        _limit_instances(case.body)
    response = case.call(base_url=url, timeout=10)
    # With this header the body has raw tensors after the JSON, of which the schema says nothing.
    is_binary = HEADER_LENGTH.lower() in {name.lower() for name in case.headers or ()}
    checks = [check for check in CHECKED if not is_binary or check is not REFUSES_INVALID]
    case.validate_response(response, checks=[no_server_failure, *checks])
    assert "Traceback" not in response.text
    if not re.search(r"/infer(_stream)?$", case.operation.path) or response.request.method != "POST":
        return
    name = (case.path_parameters or {}).get("model_name")
    if isinstance(case.body, dict) and name in MODELS:
        case.body = with_valid_inputs(case.body, name)
        again = case.call(base_url=url, timeout=10)
        # The other generated members may still be invalid.
        case.validate_response(again, checks=[no_server_failure, *CHECKED[:4]])
        if again.status_code == 200:
            called.add(name)


OPERATIONS = [
    (path, method)
    for path, item in openapi_document(MODEL_ROUTES, "0")["paths"].items()
    for method in item
    if method != "parameters"
]
for _path, _method in OPERATIONS:
    _words = re.sub(
        r"[^a-z_]+", "_", f"{_method}{_path}".replace("{model_name}", "m").replace("{model_version}", "v")
    )
    globals()[f"test_responses_conform_to_the_document_{_words}"] = _fuzz(_path, _method)


def test_generated_requests_reached_the_models():
    """Run after the tests above, in the same process: otherwise they would have shown little."""
    if not called:
        pytest.skip("the tests above did not run in this process")
    # The models are drawn at random.
    assert len(called) > len(MODELS) / 2, called
