"""The client's protocol logic against scripted responses, without a network."""

from dataclasses import replace

import orjson
import pytest

from cases import for_each
from headrace.core import errors
from headrace.jobs.client.core import ApiOperations, ApiTransport, iterate, run
from headrace.jobs.client.messages import ApiCall, ApiResponse, ConnectionLostError
from headrace.jobs.job import Job, NewJob, job_document
from headrace.jobs.state import JobState
from headrace.testing import ManualClock

JOB = Job("01a2007b-0000-7000-8000-000000000000", JobState.PENDING, NewJob(model="m"))


def job_response(state=JobState.PENDING, status=200, **headers):
    job = Job(JOB.id, state, JOB.spec)
    return ApiResponse(status, headers, orjson.dumps(job_document(job)), "http://api/")


def problem(status, kind, why="why", **headers):
    return ApiResponse(
        status, headers, orjson.dumps({"error": why, "type": kind, "job_id": JOB.id}), "http://api/"
    )


class Script(ApiTransport):
    """A transport with scripted responses. Pauses advance a manual clock."""

    def __init__(self, *responses, retry_s=10.0):
        self.clock = ManualClock(1.0, auto=True)
        self.core = ApiOperations(
            "http://api", self, api_key="hr_key", retry_s=retry_s, clock=self.clock, draw=lambda: 1.0
        )
        self.responses = list(responses)
        self.calls, self.emitted, self.pauses = [], [], []
        self.open = 0

    def collect(self, values):
        """Run an operation and keep its values, also those before an error."""
        for value in iterate(values):
            self.emitted.append(value)

    async def send(self, call, *, stream=False):
        self.calls.append(call)
        response = self.reply()
        self.open += stream
        return replace(response, stream=self) if stream else response

    async def pause(self, seconds):
        self.pauses.append(seconds)
        self.clock.advance(seconds)

    async def read(self):
        return self.reply()

    async def aclose(self):
        self.open -= 1

    def reply(self):
        reply = self.responses.pop(0)
        if isinstance(reply, ConnectionLostError):
            raise reply
        return reply


def submit(script, **options):
    return run(script.core.submit("m", {"x": 1}, **options))


LOST = ConnectionLostError("connection reset", sent=True)
REFUSED = ConnectionLostError("connection refused", sent=False)


def test_transient_failure_is_retried_with_the_same_key():
    script = Script(
        LOST, problem(503, "JobLedgerUnavailableError"), problem(502, ""), job_response(status=202)
    )
    assert submit(script).id == JOB.id
    assert len({call.headers["idempotency-key"] for call in script.calls}) == 1
    assert all(call.headers["authorization"] == "Bearer hr_key" for call in script.calls)
    assert script.pauses == sorted(script.pauses)


def test_first_retry_of_an_unreachable_server_is_logged_once(caplog):
    submit(Script(REFUSED, LOST, job_response()))
    assert caplog.messages == ["http://api/v1/jobs: connection refused; retrying for up to 10 s"]


def test_submissions_have_distinct_keys():
    keys = set()
    for _ in range(2):
        script = Script(job_response())
        submit(script)
        keys.add(script.calls[0].headers["idempotency-key"])
    assert len(keys) == 2


def test_submission_without_a_key_is_not_repeated_after_it_was_sent():
    script = Script(LOST)
    with pytest.raises(errors.EndpointUnavailableError, match="connection reset"):
        submit(script, idempotency_key="")
    assert len(script.calls) == 1
    assert (
        submit(Script(REFUSED, problem(429, "QueueFullError"), job_response()), idempotency_key="").id
        == JOB.id
    )
    with pytest.raises(errors.EndpointUnavailableError):
        submit(Script(problem(502, "")), idempotency_key="")


def test_retry_after_sets_the_delay():
    script = Script(problem(429, "QueueFullError", **{"retry-after": "3"}), job_response())
    submit(script)
    assert script.pauses == [3.0]


def test_retries_end_after_retry_s_with_the_last_error():
    script = Script(*[problem(429, "QueueFullError", "it is full", **{"retry-after": "4"})] * 10, retry_s=10)
    with pytest.raises(errors.QueueFullError, match="it is full"):
        submit(script)
    assert sum(script.pauses) <= 10
    assert len(script.calls) == 4


@for_each(
    ("response", "kind"),
    [
        (problem(400, "DataError"), errors.DataError),
        (problem(401, "UnauthenticatedError"), errors.UnauthenticatedError),
        (problem(422, "IdempotencyError"), errors.IdempotencyError),
        (problem(503, "QueueClosedError"), errors.QueueClosedError),
        (problem(503, "UncontrolledPoolError"), errors.UncontrolledPoolError),
        (problem(400, "UnknownError"), errors.EndpointRefusedError),
        (ApiResponse(404, {}, b"<html>", "http://api/"), errors.EndpointRefusedError),
        (ApiResponse(200, {}, b"<html>", "http://api/"), errors.EndpointRefusedError),
        (ApiResponse(200, {}, b"{}", "http://api/"), errors.EndpointRefusedError),
        (problem(418, "MissingExtraError"), errors.EndpointRefusedError),
    ],
)
def test_permanent_error_is_raised_at_once(response, kind):
    script = Script(response)
    with pytest.raises(kind) as raised:
        submit(script)
    assert type(raised.value) is kind
    assert script.pauses == []


def test_repeated_deletion_after_a_lost_response_succeeds():
    missing = problem(404, "JobNotFoundError")
    script = Script(LOST, missing)
    run(script.core.delete(JOB.id))
    with pytest.raises(errors.JobNotFoundError):
        run(Script(missing).core.delete(JOB.id))


def test_retry_is_not_repeated_after_it_was_sent():
    script = Script(LOST)
    with pytest.raises(errors.EndpointUnavailableError):
        run(script.core.retry(JOB.id))


def test_wait_repeats_long_polls():
    script = Script(job_response(), job_response(), job_response(JobState.FAILED))
    assert run(script.core.wait(JOB.id, None)).state is JobState.FAILED
    assert [dict(call.params)["wait"] for call in script.calls] == ["25"] * 3
    assert all(call.extra_s == 25 for call in script.calls)


def event(state, mark):
    document = job_document(Job(JOB.id, state, JOB.spec))
    return f"id: {mark}\nevent: state\ndata: ".encode() + orjson.dumps(document) + b"\n\n"


def test_broken_event_stream_resumes_at_its_last_id():
    opened = ApiResponse(200, {}, b"", "http://api/")
    script = Script(
        opened, event(JobState.PENDING, "a"), LOST,
        REFUSED, opened, event(JobState.RUNNING, "b"), None,
        opened, event(JobState.COMPLETED, "c"),
    )  # fmt: skip
    script.collect(script.core.events(JOB.id))
    assert [job.state.value for job in script.emitted] == ["pending", "running", "completed"]
    assert [call.headers.get("last-event-id") for call in script.calls] == [None, "a", "a", "b"]


def test_broken_result_resumes_at_its_byte():
    opened = ApiResponse(200, {"etag": '"t"', "content-length": "6"}, b"", "http://api/")
    script = Script(opened, b"abc", LOST, ApiResponse(206, {}, b"", "http://api/"), b"def", None)
    script.collect(script.core.stream_result(JOB.id))
    assert b"".join(script.emitted) == b"abcdef"
    assert script.open == 0
    assert script.calls[1].headers == {
        "range": "bytes=3-",
        "if-range": '"t"',
        "authorization": "Bearer hr_key",
    }


def test_changed_result_is_an_error():
    opened = ApiResponse(200, {"etag": '"t"', "content-length": "6"}, b"", "http://api/")
    script = Script(opened, b"abc", LOST, opened, b"xyz123", None)
    with pytest.raises(errors.EndpointUnavailableError, match="has changed since"):
        script.collect(script.core.stream_result(JOB.id))
    assert b"".join(script.emitted) == b"abc"
    assert script.open == 0


def test_key_is_sent_to_the_api_only():
    upload = ApiResponse(201, {}, orjson.dumps({"id": "u", "url": "https://bucket/x?sig=1"}), "http://api/")
    script = Script(upload, ApiResponse(200, {}, b"", "https://bucket/x"))
    assert run(script.core.upload(b"payload")) == "u"
    api, store = script.calls
    assert api.headers["authorization"] == "Bearer hr_key"
    assert store == ApiCall(
        "PUT", "https://bucket/x?sig=1", headers={"content-length": "7"}, content=b"payload"
    )


# Pools of workers


def page(*numbers, next_after=""):
    document = {"decisions": [{"number": number} for number in numbers], "next_after": next_after}
    return ApiResponse(200, {}, orjson.dumps(document), "http://api/")


def test_decisions_are_read_until_the_last_page():
    script = Script(
        page(5, 4, next_after="4"), page(next_after="3"), problem(503, "UnavailableError"), page(1)
    )
    script.collect(script.core.decisions("a/b c"))
    assert [decision["number"] for decision in script.emitted] == [5, 4, 1]
    assert {(call.method, call.url) for call in script.calls} == {("GET", "/v1/pools/a%2Fb%20c/decisions")}
    assert [dict(call.params) for call in script.calls] == [
        {"limit": "200", "after": after} for after in ("", "4", "3", "3")
    ]


def test_scale_of_a_pool_is_retried_while_the_ledger_is_unavailable():
    scale = {"pool": "a/b c", "wanted": 0, "active": False, "reason": "why", "at_ms": 5}
    script = Script(
        problem(503, "JobLedgerUnavailableError"), ApiResponse(200, {}, orjson.dumps(scale), "http://api/")
    )
    assert run(script.core.pool_scale("a/b c")) == scale
    assert [(call.method, call.url) for call in script.calls] == [("GET", "/v1/pools/a%2Fb%20c/scale")] * 2


def test_missing_controller_is_an_error_at_once():
    script = Script(problem(503, "UncontrolledPoolError", "pool 'gpu' has no controller"))
    with pytest.raises(errors.UncontrolledPoolError, match=r"^pool 'gpu' has no controller"):
        run(script.core.pool_scale("gpu"))
    assert script.pauses == []


def test_pages_of_decisions_are_fetched_as_needed():
    script = Script(page(5, 4, next_after="4"))
    decisions = iterate(script.core.decisions("gpu"))
    assert [next(decisions)["number"], next(decisions)["number"]] == [5, 4]
    assert len(script.calls) == 1
