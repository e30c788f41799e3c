"""The spans of submissions, attempts, publications and notifications, by a tracer that records them."""

import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field

import pytest

from cases import for_each
from headrace.core.errors import DataError, JobLedgerUnavailableError, QueueClosedError, StoppedError
from headrace.core.predictor import RequestTimes
from headrace.jobs.job import (
    Cancelled,
    Completed,
    Expired,
    Failed,
    Job,
    JobFailure,
    NewJob,
    Released,
    ResultRef,
    Settlement,
)
from headrace.jobs.kinds import StopReason
from headrace.jobs.ledger import ClaimRequest, QueueSettings
from headrace.jobs.notify import Delivered, Disabled, Notification, Refused, RetryLater, WebhookTarget
from headrace.jobs.notify.deliverer import Deliverer
from headrace.jobs.payloads import Publication
from headrace.jobs.shared_calls import Submitter
from headrace.jobs.state import Cause, JobState
from headrace.jobs.tracing import AttemptSpan, SpanKind, TimedSpan, publication_span, read_traceparent
from headrace.jobs.worker import WorkerSettings
from headrace.jobs.worker.worker import Worker
from headrace.storage import Stores
from headrace.testing import ManualWallClock, MemoryJobLedger
from jobs.memory_outbox import MemoryOutbox
from jobs.worker.scripted_kind import WAIT_S, ScriptedKind

CLIENT = f"00-{'a' * 32}-{'b' * 16}-01"


@dataclass
class Recorded:
    """A span that a `RecordingTracer` created."""

    name: str
    kind: SpanKind
    parent: str
    began_ns: int
    attributes: dict
    traceparent: str
    ended_ns: int | None = None
    error: object = None
    ended: threading.Event = field(default_factory=threading.Event)

    def end(self, at_ns, attributes, error):
        assert self.ended_ns is None, "a span ended twice"
        self.ended_ns, self.error = at_ns, error
        self.attributes |= attributes
        self.ended.set()


class RecordingTracer:
    """A tracer that keeps its spans, in the order of their begin."""

    def __init__(self):
        self.spans = []

    def start(self, name, kind, parent, at_ns, attributes):
        made = Recorded(
            name, kind, parent, at_ns, dict(attributes), f"00-{'a' * 32}-{len(self.spans):016x}-01"
        )
        self.spans.append(made)
        return made

    def named(self, name):
        return [span for span in self.spans if span.name == name]


@pytest.fixture
def tracer():
    return RecordingTracer()


@pytest.fixture
def ledger():
    made = MemoryJobLedger(ManualWallClock())
    made.start()
    yield made
    made.stop()


# Submissions


@pytest.fixture
def submitter(ledger, tracer):
    made = Submitter(ledger, waiting_max=1, tracer=tracer)
    made.start()
    yield made
    made.stop()


def test_submitted_job_has_the_context_of_its_span(ledger, tracer, submitter):
    job = submitter.submit(NewJob(model="m", trace=CLIENT)).result(WAIT_S).job
    (span,) = tracer.spans
    assert (span.name, span.kind, span.parent) == ("send default", SpanKind.PRODUCER, CLIENT)
    assert ledger.get(job.id).spec.trace == span.traceparent
    assert span.ended.wait(WAIT_S)
    assert (span.attributes["messaging.message.id"], span.error) == (job.id, None)


def test_repeated_submission_names_the_first_job(ledger, tracer, submitter):
    twice = [
        submitter.submit(NewJob(model="m", idempotency_key="k", body_digest="d")).result(WAIT_S).job
        for _ in range(2)
    ]
    assert all(span.ended.wait(WAIT_S) for span in tracer.spans)
    seen = [(s.attributes["headrace.job.id"], s.attributes["headrace.job.created"]) for s in tracer.spans]
    assert seen == [(twice[0].id, True), (twice[0].id, False)]
    assert ledger.get(twice[0].id).spec.trace == tracer.spans[0].traceparent


def test_refused_submission_ends_its_span_with_the_error(ledger, tracer, submitter):
    ledger.set_queue(QueueSettings("default", draining=True))
    with pytest.raises(QueueClosedError):
        submitter.submit(NewJob(model="m")).result(WAIT_S)
    (span,) = tracer.spans
    assert span.ended.wait(WAIT_S)
    assert span.error.type == "QueueClosedError"


def test_jobs_of_a_batch_have_spans(ledger, tracer, submitter):
    ledger.set_queue(QueueSettings("closed", draining=True))
    jobs = [NewJob(model="m", trace=CLIENT), NewJob(model="m", queue="closed")]
    submitter.submit_together(jobs, [(), ()], all_or_nothing=True)
    assert [span.error.type for span in tracer.spans] == ["QueueClosedError"] * 2
    tracer.spans.clear()
    reply, _ = submitter.submit_together(jobs, [(), ()], all_or_nothing=False)
    queued, refused = tracer.spans
    assert (queued.error, refused.error.type) == (None, "QueueClosedError")
    assert ledger.get(reply.job.id).spec.trace == queued.traceparent
    ledger.unavailable = True
    with pytest.raises(JobLedgerUnavailableError):
        submitter.submit_together(jobs[:1], [()], all_or_nothing=False)
    assert tracer.spans[-1].error.type == "JobLedgerUnavailableError"
    ledger.unavailable = False


def test_submission_that_is_not_accepted_ends_its_span(ledger, tracer):
    with pytest.raises(StoppedError):
        Submitter(ledger, tracer=tracer).submit(NewJob(model="m"))
    assert tracer.spans[0].error.type == "StoppedError"


def test_span_that_could_not_be_created_leaves_the_clients_context(ledger, tracer, submitter, monkeypatch):
    monkeypatch.setattr(Recorded, "traceparent", property(lambda _: "", lambda *_: None), raising=False)
    job = submitter.submit(NewJob(model="m", trace=CLIENT)).result(WAIT_S).job
    assert job.spec.trace == CLIENT


# Attempts


def running_job(**values):
    spec = NewJob(model="m", queue="q", trace=CLIENT)
    fields = {"attempt": 3, "crashes": 1, "worker": "w1", "due_at_ms": 1_000, "started_at_ms": 5_000}
    return Job("j", JobState.RUNNING, spec, **{**fields, **values})


@for_each(
    ("outcome", "name", "error"),
    [
        (Completed(ResultRef("memory://r")), "completed", None),
        (Failed(JobFailure(Cause.OOM, "no memory"), 5), "failed", "oom"),
        (Released(), "released", None),
        (Cancelled(), "cancelled", None),
        (Expired(), "expired", "expired"),
    ],
)
def test_attempt_ends_with_its_outcome(outcome, name, error):
    tracer = RecordingTracer()
    AttemptSpan(tracer, running_job()).end(Settlement("j", 1, outcome))
    attempt, wait = tracer.spans
    assert (attempt.name, attempt.kind, attempt.parent) == ("process q", SpanKind.CONSUMER, CLIENT)
    assert attempt.attributes["headrace.job.outcome"] == name
    assert (attempt.attributes["headrace.job.attempt"], attempt.attributes["headrace.job.crashes"]) == (3, 1)
    assert (attempt.error and attempt.error.type) == error
    assert (wait.name, wait.parent) == ("queue", attempt.traceparent)
    assert (wait.began_ns, wait.ended_ns, attempt.began_ns) == (1_000_000_000, 5_000_000_000, 5_000_000_000)


def test_attempt_that_was_due_after_its_claim_waited_for_nothing(tracer):
    """The due time may be in the future of a job whose worker has another clock."""
    AttemptSpan(tracer, running_job(due_at_ms=9_000))
    (wait,) = tracer.named("queue")
    assert wait.began_ns == wait.ended_ns == 5_000_000_000


def test_call_before_the_claim_has_no_negative_duration(tracer):
    span, times = AttemptSpan(tracer, running_job()), RequestTimes()
    times.began_s, times.ended_s = 2.0, 1.0
    span.add_call(times)
    (call,) = tracer.named("predict")
    assert call.began_ns == call.ended_ns == 5_000_000_000


def test_request_without_a_call_has_no_span(tracer):
    AttemptSpan(tracer, running_job()).add_call(RequestTimes())
    assert tracer.named("predict") == []


def test_span_follows_the_monotonic_clock(tracer, monkeypatch):
    """The time of day may be set back while a span is open."""
    span = TimedSpan(tracer, "a", SpanKind.INTERNAL, "", {})
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    span.end()
    (recorded,) = tracer.spans
    assert recorded.ended_ns >= recorded.began_ns > 0


def submit(ledger, **fields):
    return ledger.submit([NewJob(model="m", input_uri="memory://in/a", trace=CLIENT, **fields)])[0].job.id


@pytest.fixture
def kind():
    return ScriptedKind()


@pytest.fixture
def worker(ledger, kind, tracer):
    made = Worker(ledger, {"infer": kind}, WorkerSettings(name="w1", poll_s=0.02), tracer=tracer, seed=1)
    made.start()
    yield made
    made.stop(drain=False)


def test_worker_traces_each_attempt_once(ledger, kind, tracer, worker):
    submit(ledger)
    kind.began.get(timeout=WAIT_S).finish()
    (span,) = tracer.named("process default")
    assert span.ended.wait(WAIT_S)
    assert (span.parent, span.attributes["headrace.job.outcome"]) == (CLIENT, "completed")
    assert span.attributes["messaging.client.id"] == "w1"


def test_lost_attempt_ends_its_span(ledger, kind, tracer, worker):
    submit(ledger)
    running = kind.began.get(timeout=WAIT_S)
    running.attempt.stop(StopReason.LOST)
    (span,) = tracer.named("process default")
    assert span.ended.wait(WAIT_S)
    assert (span.attributes["headrace.job.outcome"], span.error.type) == ("lost", "lost")


def test_released_attempt_is_no_error(ledger, kind, tracer, worker):
    submit(ledger)
    kind.began.get(timeout=WAIT_S)
    worker.stop(drain=False)
    (span,) = tracer.named("process default")
    assert (span.attributes["headrace.job.outcome"], span.error) == ("released", None)


# Publications


def end_job(ledger):
    """Complete a job whose result is to be published. Return the job."""
    submit(ledger, output_uri="memory://out/")
    (job,) = ledger.settle_and_claim([], ClaimRequest("w", ("default",), 1, 60_000)).claimed
    outcome = Completed(ResultRef("memory://store/result", 2))
    ledger.settle_and_claim([Settlement(job.id, job.lease, outcome)])
    return ledger.get(job.id)


def test_failed_publication_is_an_error(ledger, tracer):
    job = end_job(ledger)
    with Stores() as stores:
        Publication(ledger, stores, tracer=tracer).publish_or_record(job)
    (span,) = tracer.named("publish")
    assert (span.parent, span.error.type) == (CLIENT, "input")
    assert "is gone" in span.error.why
    assert span.attributes["headrace.job.id"] == job.id


def test_attempt_that_is_retried_publishes_nothing(ledger, tracer):
    submit(ledger, output_uri="memory://out/")
    (job,) = ledger.settle_and_claim([], ClaimRequest("w", ("default",), 1, 60_000)).claimed
    ledger.settle_and_claim([Settlement(job.id, job.lease, Failed(JobFailure(Cause.MODEL, "no"), 5))])
    with Stores() as stores:
        assert Publication(ledger, stores, tracer=tracer).publish_or_record(job)
    assert tracer.spans == []


def test_publication_span_passes_errors_on(tracer):
    for used in (None, tracer):
        with pytest.raises(DataError), publication_span(used, running_job()):
            raise DataError("no")


# Notifications


class OneResult:
    """A notifier that returns one result, and keeps the notifications."""

    def __init__(self, result):
        self.result = result
        self.sent = []

    def send(self, notification, target):
        self.sent.append(notification)
        return self.result


def deliver(tracer, result, trace=CLIENT):
    outbox, notifier = MemoryOutbox(), OneResult(result)
    outbox.add_receiver(WebhookTarget("hook", "https://hooks.example/"))
    notification = Notification("evt_1", "job.completed", "j", 0, {}, trace)
    outbox.put(notification, "hook")
    deliverer = Deliverer(outbox, notifier, tracer=tracer, seed=1)
    (claim,) = outbox.claim(1, 60_000)
    deliverer._send(claim)
    return notification, notifier.sent[0]


@for_each(
    ("result", "error"),
    [
        (Delivered("HTTP 200"), None),
        (RetryLater("HTTP 500"), "RetryLater"),
        (Refused("no webhook"), "Refused"),
        (Disabled("HTTP 410"), "Disabled"),
    ],
)
def test_delivery_attempt_is_the_parent_of_its_request(result, error):
    tracer = RecordingTracer()
    _, sent = deliver(tracer, result)
    (span,) = tracer.spans
    assert (span.name, span.kind, span.parent) == ("notify webhook", SpanKind.CLIENT, CLIENT)
    assert sent.trace == span.traceparent
    assert (span.error and span.error.type) == error
    assert span.attributes == {
        "headrace.job.id": "j",
        "headrace.notification.type": "job.completed",
        "headrace.receiver.id": "hook",
        "headrace.delivery.attempt": 1,
    }


def test_delivery_without_a_tracer_sends_the_stored_notification():
    stored, sent = deliver(None, Delivered("HTTP 200"))
    assert sent is stored


@for_each(
    ("text", "read"),
    [
        (CLIENT, CLIENT),
        (None, ""),
        ("", ""),
        ("nonsense", ""),
        (CLIENT.upper(), ""),
        (f"{CLIENT}\n", ""),
        (f"{CLIENT}-more", f"{CLIENT}-more"),
    ],
)
def test_malformed_traceparent_is_no_context(text, read):
    assert read_traceparent(text) == read


def test_cancelled_future_ends_the_span(ledger, tracer, submitter):
    """A client that has disconnected may cancel the future before the commit."""
    gate = threading.Event()
    commit = ledger.submit
    ledger.submit = lambda jobs: gate.wait(WAIT_S) and commit(jobs)
    first = submitter.submit(NewJob(model="m"))
    future: Future = first
    assert future.cancel()
    gate.set()
    (span,) = tracer.spans
    assert span.ended.wait(WAIT_S)
    assert span.error.type == "CancelledError"
