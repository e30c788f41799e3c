"""What a client says and does with what it hears, without a network: every answer is scripted."""

import orjson
import pytest

from headrace.core import errors
from headrace.jobs.client.answers import Answer
from headrace.jobs.client.orders import order_of
from headrace.jobs.client.talk import Call, Emit, LostError, Open, Pause, Send, Talks
from headrace.jobs.documents import job_document
from headrace.jobs.job import Job, NewJob
from headrace.jobs.state import JobState
from headrace.testing import ManualClock

JOB = Job("01a2007b-0000-7000-8000-000000000000", JobState.PENDING, NewJob(model="m"))


def job_answer(state=JobState.PENDING, status=200, **headers):
    job = Job(JOB.id, state, JOB.spec)
    return Answer(status, headers, orjson.dumps(job_document(job)), "http://api/")


def problem(status, kind, why="why", **headers):
    return Answer(
        status, headers, orjson.dumps({"error": why, "type": kind, "job_id": JOB.id}), "http://api/"
    )


class Script:
    """Plays a talk against answers in order; pauses pass on a manual clock."""

    def __init__(self, *answers, retry_s=10.0):
        self.clock = ManualClock(1.0, auto=True)
        self.talks = Talks("http://api", "hr_key", retry_s, self.clock, lambda: 1.0)
        self.answers = list(answers)
        self.calls, self.emitted, self.pauses = [], [], []

    def play(self, talk):
        """What it returns."""
        reply = None
        try:
            step = next(talk)
            while True:
                reply = self.do(step)
                step = talk.throw(reply) if isinstance(reply, LostError) else talk.send(reply)
        except StopIteration as end:
            return end.value

    def do(self, step):
        if isinstance(step, Pause):
            self.pauses.append(step.seconds)
            self.clock.advance(step.seconds)
            return None
        if isinstance(step, Emit):
            self.emitted.append(step.value)
            return None
        if isinstance(step, Send | Open):
            self.calls.append(step.call)
        return self.answers.pop(0)


def submit(script, **options):
    return script.play(script.talks.submit(order_of("m", {"x": 1}, options)))


LOST = LostError("connection reset", sent=True)
REFUSED = LostError("connection refused", sent=False)


def test_what_may_pass_is_asked_again_with_the_same_key():
    script = Script(LOST, problem(503, "JobLedgerUnavailableError"), problem(502, ""), job_answer(status=202))
    assert submit(script).id == JOB.id
    assert len({call.headers["idempotency-key"] for call in script.calls}) == 1
    assert all(call.headers["authorization"] == "Bearer hr_key" for call in script.calls)
    assert script.pauses == sorted(script.pauses)


def test_two_submissions_have_two_keys():
    keys = set()
    for _ in range(2):
        script = Script(job_answer())
        submit(script)
        keys.add(script.calls[0].headers["idempotency-key"])
    assert len(keys) == 2


def test_without_a_key_what_may_have_arrived_is_not_sent_twice():
    script = Script(LOST)
    with pytest.raises(errors.EndpointUnavailableError, match="connection reset"):
        submit(script, idempotency_key="")
    assert len(script.calls) == 1
    assert (
        submit(Script(REFUSED, problem(429, "QueueFullError"), job_answer()), idempotency_key="").id == JOB.id
    )
    with pytest.raises(errors.EndpointUnavailableError):
        submit(Script(problem(502, "")), idempotency_key="")


def test_how_long_to_wait_is_the_servers_word():
    script = Script(problem(429, "QueueFullError", **{"retry-after": "3"}), job_answer())
    submit(script)
    assert script.pauses == [3.0]


def test_patience_has_an_end_and_the_last_word_is_told():
    script = Script(*[problem(429, "QueueFullError", "it is full", **{"retry-after": "4"})] * 10, retry_s=10)
    with pytest.raises(errors.QueueFullError, match="it is full"):
        submit(script)
    assert sum(script.pauses) <= 10
    assert len(script.calls) == 4


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (problem(400, "DataError"), errors.DataError),
        (problem(401, "UnauthenticatedError"), errors.UnauthenticatedError),
        (problem(422, "IdempotencyError"), errors.IdempotencyError),
        (problem(503, "QueueClosedError"), errors.QueueClosedError),
        (problem(400, "NotOfOurs"), errors.EndpointRefusedError),
        (Answer(404, {}, b"<html>", "http://api/"), errors.EndpointRefusedError),
        (Answer(200, {}, b"<html>", "http://api/"), errors.EndpointRefusedError),
        (Answer(200, {}, b"{}", "http://api/"), errors.EndpointRefusedError),
        (problem(418, "MissingExtraError"), errors.EndpointRefusedError),
    ],
)
def test_what_does_not_pass_is_raised_at_once(answer, kind):
    script = Script(answer)
    with pytest.raises(kind) as raised:
        submit(script)
    assert type(raised.value) is kind
    assert script.pauses == []


def test_a_deletion_whose_answer_was_lost_is_one():
    gone = problem(404, "JobNotFoundError")
    script = Script(LOST, gone)
    assert script.play(script.talks.delete(JOB.id)) is None
    with pytest.raises(errors.JobNotFoundError):
        Script(gone).play(script.talks.delete(JOB.id))


def test_a_retry_is_not_repeated_where_it_may_have_been_heard():
    script = Script(LOST)
    with pytest.raises(errors.EndpointUnavailableError):
        script.play(script.talks.retry(JOB.id))


def test_waiting_is_one_long_poll_after_another():
    script = Script(job_answer(), job_answer(), job_answer(JobState.FAILED))
    assert script.play(script.talks.wait(JOB.id, None)).state is JobState.FAILED
    assert [dict(call.params)["wait"] for call in script.calls] == ["25"] * 3
    assert all(call.extra_s == 25 for call in script.calls)


def event(state, mark):
    document = job_document(Job(JOB.id, state, JOB.spec))
    return f"id: {mark}\nevent: state\ndata: ".encode() + orjson.dumps(document) + b"\n\n"


def test_a_stream_that_breaks_goes_on_where_it_was():
    opened = Answer(200, {}, b"", "http://api/")
    script = Script(
        opened, event(JobState.PENDING, "a"), LOST,
        REFUSED, opened, event(JobState.RUNNING, "b"), None,
        opened, event(JobState.COMPLETED, "c"),
    )  # fmt: skip
    script.play(script.talks.events(JOB.id))
    assert [job.state.value for job in script.emitted] == ["pending", "running", "completed"]
    assert [call.headers.get("last-event-id") for call in script.calls] == [None, "a", "a", "b"]


def test_a_result_that_breaks_goes_on_at_its_byte():
    opened = Answer(200, {"etag": '"t"', "content-length": "6"}, b"", "http://api/")
    script = Script(opened, b"abc", LOST, Answer(206, {}, b"", "http://api/"), b"def", None)
    script.play(script.talks.result(JOB.id))
    assert b"".join(script.emitted) == b"abcdef"
    assert script.calls[1].headers == {
        "range": "bytes=3-",
        "if-range": '"t"',
        "authorization": "Bearer hr_key",
    }


def test_a_result_that_is_another_one_now_is_an_error():
    opened = Answer(200, {"etag": '"t"', "content-length": "6"}, b"", "http://api/")
    script = Script(opened, b"abc", LOST, opened, b"xyz123", None)
    with pytest.raises(errors.EndpointUnavailableError, match="another one now"):
        script.play(script.talks.result(JOB.id))
    assert b"".join(script.emitted) == b"abc"


def test_a_key_is_told_to_the_api_alone():
    place = Answer(201, {}, orjson.dumps({"id": "u", "url": "https://bucket/x?sig=1"}), "http://api/")
    script = Script(place, Answer(200, {}, b"", "https://bucket/x"))
    assert script.play(script.talks.upload(b"payload")) == "u"
    api, store = script.calls
    assert api.headers["authorization"] == "Bearer hr_key"
    assert store == Call("PUT", "https://bucket/x?sig=1", headers={"content-length": "7"}, content=b"payload")
