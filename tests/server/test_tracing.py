"""Spans of a real server, in the SDK's in-memory exporter and over OTLP."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Sampler
from opentelemetry.trace import SpanKind, StatusCode

from cases import for_each
from headrace.core import Model
from headrace.core.errors import ConfigError, PredictError
from headrace.jobs.tracing import SpanError
from headrace.jobs.tracing import SpanKind as JobSpanKind
from headrace.server.errors import status_of
from headrace.server.observation import RequestObservation
from headrace.server.tracing import Tracer, exporters, tracer_from
from headrace.testing import EchoModel, HeldModel, PickyModel
from server.support_observe import WAIT_S, EndCounter, definition, infer, serving, value

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"


def traced(**settings):
    """Return a tracer, and a function that returns its finished spans."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False, **settings)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return Tracer(provider), exporter.get_finished_spans


class Words(Model):
    async def predict_stream(self, requests):
        async for request in requests:
            for i in range(3):
                yield [float(i)]
            if request.inputs[0].data[0, 0] == 7.0:
                raise ValueError("no more words")


@pytest.mark.parametrize("isolation", ["inline", "thread"])
def test_request_span_is_a_child_of_the_clients(isolation):
    tracer, spans = traced()
    ended = EndCounter()
    with serving(definition(EchoModel, isolation=isolation), observers=[ended, tracer]) as served:
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1"}
        response = served.request("/v2/models/m/versions/1/infer", infer(1.0, 2.0, id="r-1"), headers)
        ended.wait()
    assert response.status == 200
    queue, predict, server = spans()
    assert (queue.name, predict.name) == ("queue", "predict")
    assert server.name == "POST /v2/models/{model}/versions/{version}/infer"
    assert server.kind is SpanKind.SERVER
    assert format(server.context.trace_id, "032x") == TRACE
    assert format(server.parent.span_id, "016x") == PARENT
    assert server.context.trace_state.get("vendor") == "1"
    assert {queue.parent.span_id, predict.parent.span_id} == {server.context.span_id}
    assert server.start_time <= queue.start_time <= queue.end_time == predict.start_time
    assert predict.start_time <= predict.end_time <= server.end_time
    assert server.status.status_code is StatusCode.UNSET
    assert dict(server.attributes) == {
        "http.request.method": "POST",
        "url.path": "/v2/models/m/versions/1/infer",
        "http.route": "/v2/models/{model}/versions/{version}/infer",
        "http.response.status_code": 200,
        "headrace.request.id": "r-1",
        "headrace.model.name": "m",
        "headrace.model.version": "1",
        "headrace.rows": 2,
    }


def test_queue_span_covers_the_wait():
    """A request waits for the call of another one; its queue span is as long as that wait."""
    tracer, spans = traced()
    ended, model = EndCounter(), HeldModel()
    with serving(
        definition(model, isolation="thread", max_batch_rows=1), observers=[ended, tracer]
    ) as served:
        threads = []
        for calls in (1, 2):
            thread = threading.Thread(target=served.request, args=("/v2/models/m/infer", infer(1.0)))
            thread.start()
            threads.append(thread)
            if calls == 1:
                model.wait_for_calls(1)
        served.scrape_until(lambda f: value(f, "headrace_queue_requests", model="m", version="1") == 1)
        model.release(1)
        model.wait_for_calls(2)
        model.release(1)
        for thread in threads:
            thread.join(WAIT_S)
        ended.wait(2)
    by_trace = {}
    for span in spans():
        by_trace.setdefault(span.context.trace_id, {})[span.name] = span
    first, second = sorted(by_trace.values(), key=lambda one: one["predict"].start_time)
    assert second["queue"].start_time < first["predict"].end_time <= second["predict"].start_time


@pytest.fixture
def picky():
    tracer, spans = traced()
    ended = EndCounter()
    with serving(definition(PickyModel([7.0])), observers=[ended, tracer]) as served:
        yield served, ended, spans


@for_each(
    ("path", "body", "name", "ends"),
    [
        (
            "/v2/models/m/infer",
            infer(7.0),
            "POST /v2/models/{model}/infer",
            (500, StatusCode.ERROR, "PredictError"),
        ),
        ("/v2/models/m/infer", b"{", "POST /v2/models/{model}/infer", (400, StatusCode.UNSET, "DataError")),
        ("/v2/models/x", None, "GET /v2/models/{model}", (404, StatusCode.UNSET, "ModelNotFoundError")),
        ("/made/up/by/anybody", None, "GET", (404, StatusCode.UNSET, None)),
        ("/v2/health/live", None, "GET /v2/health/live", (200, StatusCode.UNSET, None)),
    ],
)
def test_error_spans_have_bounded_names(picky, path, body, name, ends):
    served, ended, spans = picky
    served.request(path, body)
    ended.wait()
    server = spans()[-1]
    attributes = server.attributes
    received = (
        attributes["http.response.status_code"],
        server.status.status_code,
        attributes.get("error.type"),
    )
    assert server.name == name
    assert received == ends


def test_stream_span_has_items_and_first_item_event():
    tracer, spans = traced()
    ended = EndCounter()
    with serving(definition(Words), observers=[ended, tracer]) as served:
        for first in (1.0, 7.0):
            assert served.request("/v2/models/m/infer_stream", infer(first)).status == 200
        ended.wait(2)
    whole, broken = spans()
    for span in (whole, broken):
        assert span.attributes["headrace.stream.items"] == 3
        assert [event.name for event in span.events] == ["first item"]
        assert span.start_time < span.events[0].timestamp <= span.end_time
    assert whole.status.status_code is StatusCode.UNSET
    assert broken.status.status_code is StatusCode.ERROR
    assert "no more words" in broken.status.description
    assert broken.attributes["http.response.status_code"] == 200


def test_unsampled_request_keeps_its_trace_id():
    tracer, spans = traced(sampler=ALWAYS_OFF)
    seen = RequestObservation(
        "rest", "GET", "/", began_s=0.0, header={"traceparent": f"00-{TRACE}-{PARENT}-00"}.get
    )
    tracer.begin(seen)
    tracer.end(seen)
    assert spans() == ()
    assert seen.trace_id == TRACE


@for_each("parent", ["", "nonsense", f"00-{'0' * 32}-{PARENT}-01", "é"])
def test_malformed_traceparent_is_ignored(parent):
    tracer, spans = traced()
    seen = RequestObservation("rest", "GET", "/", began_s=0.0, header={"traceparent": parent}.get)
    tracer.begin(seen)
    tracer.end(seen)
    (span,) = spans()
    assert span.parent is None
    assert seen.trace_id == format(span.context.trace_id, "032x")


def test_tracer_serves_grpc():
    """A gRPC listener sets metadata as headers, the full method name as path, and the code by name."""
    tracer, spans = traced()
    metadata = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    path = "/inference.GRPCInferenceService/ModelInfer"
    seen = RequestObservation("grpc", "POST", path, began_s=0.0, header=metadata.get)
    tracer.begin(seen)
    seen.action, seen.model, seen.version, seen.status = "ModelInfer", "m", "3", "INTERNAL"
    error = PredictError("m", "it broke")
    seen.on_error(error, status_of(error))
    tracer.end(seen)
    (span,) = spans()
    assert span.name == path[1:]
    assert span.parent.span_id == int(PARENT, 16)
    assert span.attributes["rpc.system.name"] == "grpc"
    assert span.attributes["rpc.method"] == path[1:]
    assert span.attributes["rpc.response.status_code"] == "INTERNAL"
    assert span.attributes["headrace.model.version"] == "3"
    assert span.status.status_code is StatusCode.ERROR
    assert not any(name.startswith("http.") for name in span.attributes)


class _Collector(HTTPServer):
    """A collector that accepts OTLP over HTTP."""

    def __init__(self):
        self.taken = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                collector.taken.append(
                    (self.path, dict(self.headers), ExportTraceServiceRequest.FromString(body))
                )
                self.send_response(200)
                self.end_headers()

            def log_message(self, *args):
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()


def test_otel_environment_exports_spans_to_a_collector(monkeypatch):
    collector = _Collector()
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.server_port}",
        "OTEL_EXPORTER_OTLP_HEADERS": "api-key=abc",
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment=test",
    }
    for name, text in environment.items():
        monkeypatch.setenv(name, text)
    ended = EndCounter()
    try:
        tracer = tracer_from(environment, "1.2.3")
        with serving(definition(EchoModel), observers=[ended, tracer]) as served:
            assert served.request("/v2/models/m/infer", infer(1.0)).status == 200
            ended.wait()
        tracer.close()
    finally:
        collector.shutdown()
        collector.server_close()
    ((path, headers, exported),) = collector.taken
    assert path == "/v1/traces"
    assert headers["api-key"] == "abc"
    (spans,) = exported.resource_spans
    resource = {a.key: a.value.string_value for a in spans.resource.attributes}
    assert resource["service.name"] == "headrace"
    assert resource["service.version"] == "1.2.3"
    assert resource["deployment.environment"] == "test"
    names = [span.name for scope in spans.scope_spans for span in scope.spans]
    assert sorted(names) == ["POST /v2/models/{model}/infer", "predict", "queue"]


@pytest.mark.parametrize("variable", ["OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"])
def test_environment_sets_the_service_name(monkeypatch, variable):
    text = "mine" if variable == "OTEL_SERVICE_NAME" else "service.name=mine"
    monkeypatch.setenv(variable, text)
    tracer = tracer_from({variable: text, "OTEL_TRACES_EXPORTER": ""}, "1")
    assert tracer._provider.resource.attributes["service.name"] == "mine"
    tracer.close()


@for_each(
    ("environment", "received"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "zipkin"),
        ({"OTEL_TRACES_EXPORTER": "otlp,jaeger"}, "jaeger"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "http/protobuf"),
        ({"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"}, "http/protobuf"),
    ],
)
def test_unsupported_exporters_are_refused(environment, received):
    with pytest.raises(ConfigError, match=received):
        exporters(environment)


def test_console_exporter_is_supported():
    assert [type(one) for one in exporters({"OTEL_TRACES_EXPORTER": "console"})] == [ConsoleSpanExporter]


def test_job_span_without_a_parent_begins_a_trace():
    """It is no child of a span that happens to be current in the thread."""
    tracer, spans = traced()
    with trace.use_span(tracer._tracer.start_span("current"), end_on_exit=True):
        tracer.jobs.start("send q", JobSpanKind.PRODUCER, "", 1_000, {}).end(2_000, {}, None)
    sent = spans()[0]
    assert (sent.name, sent.parent, sent.start_time, sent.end_time) == ("send q", None, 1_000, 2_000)


class BrokenSampler(Sampler):
    def should_sample(self, *args, **kwargs):
        raise RuntimeError("a broken extension")

    def get_description(self):
        return "broken"


def test_broken_sampler_harms_no_job():
    tracer, spans = traced(sampler=BrokenSampler())
    span = tracer.jobs.start("send q", JobSpanKind.PRODUCER, f"00-{TRACE}-{PARENT}-01", 1_000, {})
    span.end(2_000, {"a": 1}, SpanError("model", "no"))
    assert (span.traceparent, spans()) == ("", ())
