"""The spans of jobs: one trace from the client's span, by the API and a worker, to the webhook."""

from dataclasses import dataclass, replace

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from headrace.app.job_worker import ServedModels
from headrace.core import Model
from headrace.engine.repository import ModelRepository
from headrace.jobs.access import ANONYMOUS_KEY
from headrace.jobs.kinds.runners import InferKind
from headrace.jobs.ledgers.sqlite import SqliteJobLedger
from headrace.jobs.notify.deliverer import Deliverer
from headrace.jobs.notify.notifiers import WebhookNotifier
from headrace.jobs.outbound import OutboundPolicy, parse_network
from headrace.jobs.outbound.client import OutboundClient
from headrace.jobs.paths import JobPaths, UriAllowList
from headrace.jobs.payloads import Publication
from headrace.jobs.worker import WorkerSettings
from headrace.jobs.worker.worker import Worker
from headrace.server.jobs.sagemaker import SageMakerSettings
from headrace.server.tracing import Tracer
from headrace.testing import ManualWallClock
from jobs.service_support import STORE, served_jobs
from server.support_observe import EndCounter, definition
from servers.polling import wait_until
from servers.receiver import Receiver, Reply

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"
SAMPLED = f"00-{TRACE}-{PARENT}-01"
JOB_ID = "headrace.job.id"


class Unsteady(Model):
    """A model that raises in its first call."""

    def __init__(self):
        self.calls = 0

    def predict(self, x):
        self.calls += 1
        if self.calls == 1:
            raise ValueError("a bad start")
        return x


@dataclass
class World:
    """A server and its parts, with one tracer for all of them."""

    served: object
    wall: ManualWallClock
    tracer: Tracer | None
    ended: EndCounter
    exporter: InMemorySpanExporter
    receiver: Receiver
    out: str

    def submit(self, traceparent=SAMPLED, **fields):
        """Submit a job by HTTP. Return its id."""
        document = {"model": "m", "input": {"x": [[1.0]]}, **fields}
        with self.served.client() as http:
            headers = {"traceparent": traceparent} if traceparent else {}
            response = http.post("/v1/jobs", json=document, headers=headers)
        assert response.status_code == 202, response.text
        self.ended.wait()
        return response.json()["id"]

    def spans(self, name=None):
        """Return the finished spans, by their begin."""
        found = sorted(self.exporter.get_finished_spans(), key=lambda span: span.start_time)
        return [span for span in found if name in (None, span.name)]

    def run_to_end(self, job_id):
        """Run the job in a worker, and deliver its notification."""
        served, tracer = self.served, None if self.tracer is None else self.tracer.jobs
        repository = ModelRepository([definition(Unsteady)])
        paths = JobPaths(STORE)
        publication = Publication(served.ledger, served.stores, tracer=tracer)

        def ended(attempt, settlement):
            publication.publish_or_record(attempt.job)

        kinds = {"infer": InferKind(ServedModels(repository), served.stores, paths)}
        settings = WorkerSettings(name="w1", poll_s=0.02)
        worker = Worker(served.ledger, kinds, settings, ended=ended, tracer=tracer, seed=1)
        policy = OutboundPolicy(True, frozenset({self.receiver.port}), (parse_network("127.0.0.1"),))
        with OutboundClient(policy) as client:
            deliverer = Deliverer(served.ledger.outbox, WebhookNotifier(client), tracer=tracer, seed=1)
            repository.start()
            worker.start()
            try:
                wait_until(lambda: served.ledger.get(job_id).failure is not None)
                self.wall.advance(3_600_000)
                wait_until(lambda: served.ledger.get(job_id).state.ended)
                deliverer.start()
                self.receiver.wait_for(1)
            finally:
                worker.stop(drain=True)
                repository.stop(drain=False)
                deliverer.stop()


@pytest.fixture
def receiver():
    with Receiver() as made:
        yield made


@pytest.fixture
def new_world(tmp_path, receiver):
    """Return a context manager that serves the API with a tracer, or without one."""
    exporter, ended = InMemorySpanExporter(), EndCounter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    wall = ManualWallClock()
    opened, out = [], f"{tmp_path}/out/"
    allowed = UriAllowList.read(["s3://in/", str(tmp_path)])

    def new(tracer):
        ledger = SqliteJobLedger(tmp_path / "jobs.db", wall_ms=wall.now_ms)
        opened.append(
            served_jobs(
                ledger=ledger,
                anonymous=replace(ANONYMOUS_KEY, inputs=allowed, outputs=allowed),
                prepare_notify=lambda entry: entry,
                tracer=None if tracer is None else tracer.jobs,
                observers=[ended] if tracer is None else [ended, tracer],
                sagemaker=SageMakerSettings(out),
            )
        )
        return World(opened[-1].__enter__(), wall, tracer, ended, exporter, receiver, out)

    yield lambda *, traced: new(Tracer(provider) if traced else None)
    for served in opened:
        served.__exit__(None, None, None)


@pytest.fixture
def world(new_world):
    return new_world(traced=True)


def notified(world):
    return [{"webhook": world.receiver.url, "format": "cloudevents-structured"}]


def parents(spans):
    """Return the id of each span's parent, by the id of the span."""
    return {span.context.span_id: span.parent and span.parent.span_id for span in spans}


def test_job_is_one_trace_from_the_client_to_the_webhook(world):
    world.receiver.replies = [Reply(status=200)]
    job_id = world.submit(output_uri=world.out, key="a", notify=notified(world))
    world.run_to_end(job_id)

    spans = world.spans()
    assert {format(span.context.trace_id, "032x") for span in spans} == {TRACE}
    (server,), (send,) = world.spans("POST /v1/jobs"), world.spans("send default")
    first, second = world.spans("process default")
    (publish,), (notify,) = world.spans("publish"), world.spans("notify webhook")
    above = parents(spans)
    assert above[server.context.span_id] == int(PARENT, 16)
    assert above[send.context.span_id] == server.context.span_id
    assert {above[s.context.span_id] for s in (first, second, publish, notify)} == {send.context.span_id}
    for attempt in (first, second):
        below = [s.name for s in spans if above[s.context.span_id] == attempt.context.span_id]
        assert sorted(below) == ["predict", "queue"]
    assert len(spans) == 10
    assert [s.kind for s in (server, send, first, publish, notify)] == [
        SpanKind.SERVER,
        SpanKind.PRODUCER,
        SpanKind.CONSUMER,
        SpanKind.INTERNAL,
        SpanKind.CLIENT,
    ]
    own = [s for s in spans if s.name not in {"POST /v1/jobs", "queue", "predict"}]
    assert {span.attributes[JOB_ID] for span in own} == {job_id}
    assert server.attributes["http.route"] == "/v1/jobs"
    assert dict(send.attributes) == {
        "messaging.system": "headrace",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "default",
        "messaging.message.id": job_id,
        "headrace.job.id": job_id,
        "headrace.job.kind": "infer",
        "headrace.job.created": True,
        "headrace.model.name": "m",
    }
    assert dict(second.attributes) == {
        "messaging.system": "headrace",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "default",
        "messaging.message.id": job_id,
        "messaging.client.id": "w1",
        "headrace.job.id": job_id,
        "headrace.job.kind": "infer",
        "headrace.job.attempt": 2,
        "headrace.job.crashes": 0,
        "headrace.job.outcome": "completed",
        "headrace.model.name": "m",
    }
    assert (first.attributes["headrace.job.attempt"], first.attributes["error.type"]) == (1, "model")
    assert first.status.status_code is StatusCode.ERROR
    assert "a bad start" in first.status.description
    others = [span for span in spans if span is not first]
    assert {span.status.status_code for span in others} == {StatusCode.UNSET}
    (request,) = world.receiver.requests
    sender = format(notify.context.span_id, "016x")
    assert request.headers["traceparent"] == f"00-{TRACE}-{sender}-01"
    assert TRACE not in request.body.decode()


def test_times_of_attempts_are_the_ledgers(world):
    """The ledger's clock is years from this host's. No span ends before it begins."""
    job_id = world.submit(notify=notified(world))
    world.run_to_end(job_id)
    job = world.served.ledger.get(job_id)
    first, second = world.spans("process default")
    waits, calls = world.spans("queue"), world.spans("predict")
    assert second.start_time == job.started_at_ms * 1_000_000
    assert waits[0].start_time == job.created_at_ms * 1_000_000
    assert waits[1].start_time == job.due_at_ms * 1_000_000 < second.start_time
    for attempt, wait, call in zip((first, second), waits, calls, strict=True):
        assert wait.end_time == attempt.start_time <= call.start_time <= call.end_time <= attempt.end_time
    for span in world.spans():
        assert span.start_time <= span.end_time


def test_unsampled_parent_exports_nothing_and_is_passed_on(world):
    job_id = world.submit(f"00-{TRACE}-{PARENT}-00", notify=notified(world))
    world.run_to_end(job_id)
    assert world.spans() == []
    _, trace_id, _, flags = world.receiver.requests[0].headers["traceparent"].split("-")
    assert (trace_id, flags) == (TRACE, "00")


def test_submission_without_a_parent_begins_a_trace(world):
    world.submit("")
    (server,), (send,) = world.spans("POST /v1/jobs"), world.spans("send default")
    assert server.parent is None
    assert send.parent.span_id == server.context.span_id


def test_jobs_of_a_batch_are_children_of_their_request(world):
    jobs = [{"model": "m", "input": {"x": [[1.0]]}}] * 2
    with world.served.client() as http:
        response = http.post("/v1/jobs/batch", json={"jobs": jobs}, headers={"traceparent": SAMPLED})
    assert response.status_code == 200, response.text
    world.ended.wait()
    (request,) = world.spans("POST /v1/jobs/batch")
    sent = world.spans("send default")
    assert [span.parent.span_id for span in sent] == [request.context.span_id] * 2


def test_job_of_a_sagemaker_client_continues_its_trace(world):
    with world.served.client() as http:
        headers = {
            "traceparent": SAMPLED,
            "X-Amzn-SageMaker-InputLocation": "s3://in/a.json",
        }
        response = http.post("/endpoints/m/async-invocations", headers=headers)
    assert response.status_code == 202, response.text
    world.ended.wait()
    (server,) = world.spans("POST /endpoints/{name}/async-invocations")
    (send,) = world.spans("send default")
    assert server.parent.span_id == int(PARENT, 16)
    assert send.parent.span_id == server.context.span_id


def test_routes_of_jobs_have_bounded_names(world):
    job_id = world.submit()
    with world.served.client() as http:
        assert http.get(f"/v1/jobs/{job_id}").status_code == 200
    world.ended.wait()
    (span,) = world.spans("GET /v1/jobs/{job_id}")
    assert span.attributes["http.route"] == "/v1/jobs/{job_id}"


def test_job_without_a_tracer_keeps_the_clients_trace(new_world):
    """Its webhook continues the client's trace, as if headrace forwarded the request."""
    world = new_world(traced=False)
    job_id = world.submit(notify=notified(world))
    assert world.served.ledger.get(job_id).spec.trace == SAMPLED
    world.run_to_end(job_id)
    assert world.receiver.requests[0].headers["traceparent"] == SAMPLED
    assert world.spans() == []


def test_webhook_without_a_trace_has_no_header(new_world):
    world = new_world(traced=False)
    job_id = world.submit("", notify=notified(world))
    world.run_to_end(job_id)
    assert "traceparent" not in world.receiver.requests[0].headers
