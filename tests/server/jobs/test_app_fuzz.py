"""The job API conforms to its OpenAPI document: schemathesis generates valid and invalid requests.

They are those of the command `schemathesis run`: examples, boundary values, missing and repeated
parts, other methods, requests without a key, and random values.
"""

import re
import secrets

import pytest
import schemathesis
from schemathesis import engine
from schemathesis.config import SchemathesisConfig
from schemathesis.engine.events import FatalError, NonFatalError, ScenarioFinished
from schemathesis.hooks import unregister

import levels
from headrace.jobs.access import Scope
from headrace.jobs.pools import ScalingDecision
from headrace.jobs.worker_registry import WorkerInfo
from jobs.service_support import ALLOWED_URIS, key_of, served_jobs
from server.jobs.test_job_routes import submit

pytestmark = pytest.mark.slow

KEY = key_of("shop", *Scope, inputs=ALLOWED_URIS, outputs=ALLOWED_URIS)
OPERATIONS = 54
SEED = 20
WAIT_S = 0.01
REFUSALS = ["400", "401", "403", "404", "405", "409", "413", "422", "429"]
CHECKS = {
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "positive_data_acceptance",
    "unsupported_method",
    "allow_header_conformance",
    "ignored_auth",
    "max_response_time",
}

BATCH_MEMBERS = ("model", "input", "input_uri", "upload", "content_type", "priority", "idempotency_key")
BATCH = r"(nothing was queued, because of jobs\[\d+\]: )?"
# Schemes have rules of their own, and the operator permits folders.
ADDRESS = r"['\"].*['\"]: "
REFUSED_FOR_MEANING = [
    (re.compile(operation), re.compile(reason, re.DOTALL))
    for operation, reason in (
        # `options` and `notify` depend on the kind and on the server.
        ("POST /v1/jobs(/batch)?", f"{BATCH}((in|out)put_uri: |options: |notify: |{ADDRESS})"),
        ("POST /v1/jobs(/batch)?", f"{BATCH}input: must be a string for content_type"),
        ("POST /v1/jobs|POST /v1/schedules/{schedule}/run", "the idempotency key .* with another body"),
        # `filter` states nothing, or states in which no job can be changed so.
        ("POST /v1/jobs/bulk", r"filter: it has no condition|filter: \w+ applies to jobs that are"),
        # A size may have a unit, and the schema bounds the digits.
        ("PUT /v1/endpoints/{endpoint}", r"endpoints\.\S+payload_bytes_max must be .* not '[1-9]\d{3,}"),
        # The kind decides what an endpoint needs.
        ("PUT /v1/endpoints/{endpoint}", r"endpoints\.\S+: (model: .* not ''$|output_uri: a )"),
        ("PUT /v1/endpoints/{endpoint}", rf"(endpoints\.\S+: )?(output_uri: |options\b|notify: |{ADDRESS})"),
        # The job is checked as a submission, but as a template it may be any object.
        ("PUT /v1/schedules/{schedule}", "cron: |time_zone: |job: "),
        ("POST /v1/events/s3", "not an event notice|the notice's|a record of the notice"),
    )
]
"""The reasons for which requests that fit their schema are refused, by operation: no schema can say them."""


@pytest.fixture(scope="module")
def served():
    """Serve an API with keys, and with one of each thing that a path names."""
    with served_jobs(keys=[KEY]) as opened, opened.client(KEY[0]) as http:
        opened.ledger.register_worker(WorkerInfo("w", queues=("default",)))
        opened.ledger.control_pool("p", "c", 60_000)
        opened.ledger.record_decision(ScalingDecision("p", "c", 1, 2, "2 jobs are due", {"due": 2}))
        yield opened, http


def names_of(opened, http):
    """Return names for the parameters of paths: of jobs in several states, and of other things."""
    jobs = [submit(http)["id"] for _ in range(5)]
    for _ in jobs[:2]:
        opened.complete(opened.claim())
    opened.claim()
    http.post(f"/v1/jobs/{jobs[3]}/cancel")
    http.put("/v1/endpoints/e", json={"model": "m"})
    http.put("/v1/schedules/s", json={"cron": "0 2 * * *", "job": {"model": "m", "input": [1]}})
    upload = http.post("/v1/uploads").json()["id"]
    return {
        "job_id": jobs,
        "upload_id": [upload],
        "endpoint": ["e"],
        "schedule": ["s"],
        "worker": ["w"],
        "pool": ["p"],
    }


def described(opened, http):
    """Return the OpenAPI document with names that exist, so that requests find what they name."""
    document = http.get("/openapi.json").json()
    names = names_of(opened, http)
    for path in document["paths"].values():
        for parameter in path.get("parameters", ()):
            if parameter["name"] in names:
                known = {"type": "string", "enum": names[parameter["name"]]}
                parameter["schema"] = {"anyOf": [known, parameter["schema"]]}
    # Only a key with endpoints may leave out the model.
    schemas = document["components"]["schemas"]
    schemas["SubmissionDocument"]["required"] = schemas["BatchJobDocument"]["required"] = ["model"]
    if not levels.soaking():
        # The other members are tested in single submissions, and have the same parser.
        members = schemas["BatchJobDocument"]["properties"]
        schemas["BatchJobDocument"]["properties"] = {name: members[name] for name in BATCH_MEMBERS}
    return document


def before_call(context, case, kwargs):
    """Wait only briefly, and name the model in the query only if the body is a payload."""
    wait = (case.query or {}).get("wait")
    if isinstance(wait, int | float) and WAIT_S < wait <= 60:
        case.query["wait"] = WAIT_S
    if case.operation.label == "POST /v1/jobs":
        case.query = {"model": "m"} if case.media_type != "application/json" else {}


def is_expected(failure, case, response) -> bool:
    """Return True for a refusal of REFUSED_FOR_MEANING, and for the two other exceptions below."""
    label = case.operation.label
    try:
        body = response.json()
    except ValueError:
        return False
    match type(failure).__name__:
        case "RejectedPositiveData":
            return any(
                operation.fullmatch(label) and reason.match(body["error"])
                for operation, reason in REFUSED_FOR_MEANING
            )
        case "AcceptedNegativeData":
            # Each job of a batch has a status of its own.
            return label == "POST /v1/jobs/batch" and any(
                result["status"] in (400, 413) for result in body["results"]
            )
        case "ServerError":
            # An earlier request has drained the queue.
            return body["type"] == "QueueClosedError"
    return False


def test_requests_and_responses_conform_to_the_openapi_document(served):
    """No request causes a 5xx, an undocumented response, or a status that does not fit its validity."""
    opened, http = served
    seed = secrets.randbits(32) if levels.soaking() else SEED
    config = SchemathesisConfig.from_dict(
        {
            "seed": seed,
            "base-url": opened.url,
            "headers": {"Authorization": f"Bearer {KEY[0]}"},
            "continue-on-failure": True,
            "request-timeout": 20,
            "generation": {
                "max-examples": levels.by_level(2, 3, 200),
                "deterministic": not levels.soaking(),
                "no-shrink": True,
            },
            "phases": {"stateful": {"enabled": False}},
            "checks": {
                "max_response_time": 15.0,
                "negative_data_rejection": {"expected-statuses": REFUSALS},
            },
            "output": {"sanitization": {"enabled": False}},
        }
    )
    schema = schemathesis.openapi.from_dict(described(opened, http), config=config)
    # The stream of events ends only with its job.
    schema = schema.exclude(path_regex="/events$")
    schemathesis.hook(before_call)
    try:
        operations, checks, failures = _run(schema)
    finally:
        unregister(before_call)
    assert not failures, f"seed {seed}\n\n" + "\n\n".join(failures)
    assert len(operations) == OPERATIONS, operations
    assert checks >= CHECKS, CHECKS - checks


def _run(schema):
    """Return the operations and the checks that ran, and the failures as text, one of each kind."""
    operations, checks, failures = set(), set(), {}
    for event in engine.from_schema(schema).execute():
        match event:
            case FatalError() | NonFatalError():
                failures[str(event.id)] = str(getattr(event, "info", None) or event.exception)
            case ScenarioFinished():
                operations.add(event.recorder.label)
                for case_id, found in event.recorder.checks.items():
                    checks.update(check.name for check in found)
                    for check in found:
                        if check.failure_info is not None:
                            failures |= _failure(event.recorder, case_id, check)
            case _:
                pass
    return operations, checks, list(failures.values())


def _failure(recorder, case_id, check):
    case, response = recorder.cases[case_id].value, recorder.interactions[case_id].response
    if response is None or is_expected(check.failure_info.failure, case, response):
        return {}
    failure = check.failure_info.failure
    text = f"{recorder.label}: {failure.title}\n{failure.message}\n{response.status_code} {response.text}"
    return {(recorder.label, check.name, response.text[:40]): f"{text}\n{check.failure_info.code_sample}"}
