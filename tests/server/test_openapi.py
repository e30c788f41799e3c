"""The document is true: what schemathesis makes of it, real models answer as it says."""

import json
import re
from math import prod

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import CHECKS, load_all_checks

from headrace.core import Model, ModelMetadata, TensorSpec
from headrace.server.openapi import docs_page, openapi_document
from server.support import Any1, Linear, Texts, Typed, Words, serving

load_all_checks()

# Every one that schemathesis has is left on, but for two: what is wrong for one model is right for another, so that a
# body that fits the schema may be refused; and nothing here is created, to be there or gone afterwards.
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


class Numbers(Model):
    """Inputs of several datatypes and shapes, and what comes of them."""

    inputs = (
        TensorSpec("a", "INT64", (-1, 2)),
        TensorSpec("b", "FP64", (-1, -1)),
        TensorSpec("c", "UINT8", (-1,)),
        TensorSpec("d", "BOOL", (-1, 1, 2)),
    )
    outputs = (TensorSpec("sums", "FP64", (-1,)), TensorSpec("flags", "BOOL", (-1, 1, 2)))

    def predict(self, a, b, c, d):
        return {"sums": a.sum(axis=1) + b.sum(axis=1) + c, "flags": d}


MODELS = {"linear": Linear, "numbers": Numbers, "any": Any1, "words": Words, "texts": Texts}
DESCRIBED = [ModelMetadata(n, "1", m.__name__, m.inputs, m.outputs) for n, m in MODELS.items()]
SCHEMA = schemathesis.openapi.from_dict(json.loads(json.dumps(openapi_document("0", DESCRIBED))))


@pytest.fixture(scope="module")
def server():
    with serving(MODELS) as opened:
        yield opened


def mended(document, model: str):
    """A request that fits its model, of the values that were made up for another; so that models are reached too."""
    specs = MODELS[model].inputs
    rows = 1 + len(json.dumps(document)) % 3
    inputs = []
    for at, spec in enumerate(specs):
        shape = [rows, *(max(size, 1) for size in (spec.shape or (-1,))[1:])]
        value = {"BYTES": f"t{at}", "BOOL": True}.get(spec.datatype, at)
        data = [value] * prod(shape)
        inputs.append({"name": spec.name, "shape": shape, "datatype": spec.datatype, "data": data})
    return {**document, "inputs": inputs or document.get("inputs")}


def no_failure_but_honest_ones(ctx, response, case):
    """What is made up may have a timeout of a microsecond, and then it is late; nothing else is a failure of the server."""
    text = json.dumps(case.body) if isinstance(case.body, dict | list) else str(case.body)
    assert response.status_code < 500 or (response.status_code == 504 and "timeout" in text), response.text


reached: set[str] = set()


def _fuzz(path: str, method: str):
    """A test of one operation. Each has a name of its own: what deals out tests to processes takes one name for one test."""

    @SCHEMA.include(path=path, method=method).parametrize()
    @settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
    def test(case, server):
        check_case(case, f"http://127.0.0.1:{server.port}")

    return test


def check_case(case, url: str):
    """No status, no type and no body but those that the document tells; what breaks it is refused."""
    response = case.call(base_url=url, timeout=10)
    case.validate_response(response, checks=[no_failure_but_honest_ones, *CHECKED])
    assert "Traceback" not in response.text
    if not re.search(r"/infer(_stream)?$", case.operation.path) or response.request.method != "POST":
        return
    name = (case.path_parameters or {}).get("model_name")
    if isinstance(case.body, dict) and name in MODELS:
        case.body = mended(case.body, name)
        again = case.call(base_url=url, timeout=10)
        # What was made up besides the inputs may still be wrong.
        case.validate_response(again, checks=[no_failure_but_honest_ones, *CHECKED[:4]])
        if again.status_code == 200:
            reached.add(name)


OPERATIONS = [
    (path, method)
    for path, item in openapi_document("0")["paths"].items()
    for method in item
    if method != "parameters"
]
for _path, _method in OPERATIONS:
    _words = re.sub(
        r"[^a-z_]+", "_", f"{_method}{_path}".replace("{model_name}", "m").replace("{model_version}", "v")
    )
    globals()[f"test_the_server_answers_as_its_document_says_{_words}"] = _fuzz(_path, _method)


def test_models_were_reached_and_not_only_refused():
    """Runs after the tests above, in the same process: otherwise they would have shown little."""
    if not reached:
        pytest.skip("the tests above did not run here")
    # Which ones is drawn by lot.
    assert len(reached) > len(MODELS) / 2, reached


def test_the_document_has_every_route_of_the_protocol():
    """What the application routes is in the document, and the other way round."""
    with serving({"linear": Linear}, started=False) as server:
        app = server.app
        documents = {"/", "/v2/docs", "/v2/docs/dataplane.json", "/docs", "/openapi.json"}
        routed = {(path, method) for path in app._fixed.keys() - documents for method in app._fixed[path]}
        for prefix, routes in (
            ("/v2/models/{model_name}", app._of_model),
            ("/v2/models/{model_name}/versions/{model_version}", app._of_model),
            ("/v2/repository/models/{model_name}", app._of_repository),
            ("/v2/models/{model_name}/sequences", {"{sequence_id}": app._of_sequence}),
            (
                "/v2/models/{model_name}/versions/{model_version}/sequences",
                {"{sequence_id}": app._of_sequence},
            ),
        ):
            routed |= {
                (f"{prefix}/{a}".rstrip("/"), method) for a, methods in routes.items() for method in methods
            }
    told = {
        (path, method.upper())
        for path, item in openapi_document("0")["paths"].items()
        for method in item
        if method != "parameters"
    }
    assert told == routed


def test_models_are_named_where_they_are_known():
    document = openapi_document("0", DESCRIBED)
    name, version = document["paths"]["/v2/models/{model_name}/versions/{model_version}/infer"]["parameters"]
    assert name["schema"]["enum"] == sorted(MODELS)
    assert version["schema"]["enum"] == ["1"]
    body = document["paths"]["/v2/models/{model_name}/infer"]["post"]["requestBody"]
    assert body["content"]["application/json"]["examples"]["linear"]["value"]["inputs"][0]["shape"] == [1, 4]
    assert "enum" not in str(openapi_document("0")["paths"]["/v2/models/{model_name}"]["parameters"])


def test_the_page_shows_how_each_model_is_asked_and_runs_nothing():
    evil = "<script>alert(1)</script>'$(id)"
    large = TensorSpec(evil, "FP32", (-1, 3, 224, 224))
    page = docs_page(
        "0",
        [
            *DESCRIBED,
            ModelMetadata(evil, "1", inputs=(large,)),
            ModelMetadata("typed", None, inputs=Typed.inputs),
        ],
    )
    assert "<script" not in page
    assert "n x 3 x 224 x 224" in page
    assert len(page) < 40_000
    for name in MODELS:
        assert f"<h3>{name}" in page
