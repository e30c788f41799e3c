"""Spans of a real server, in the SDK's in-memory exporter, and over OTLP to a real collector's door."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from headrace.core import Model
from headrace.core.errors import ConfigError, PredictError
from headrace.server.errors import status_of
from headrace.server.observation import Observation
from headrace.server.tracing import Tracer, exporters, route, tracer_from
from headrace.testing import EchoModel, HeldModel, PickyModel
from server.support_observe import WAIT_S, Ended, definition, infer, serving, value

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"


def traced(**settings):
    """A tracer, and the spans that it has ended."""
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
def test_a_request_is_a_span_with_its_times_below_the_callers(isolation):
    tracer, spans = traced()
    ended = Ended()
    with serving(definition(EchoModel, isolation=isolation), observers=[ended, tracer]) as served:
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1"}
        answered = served.ask("/v2/models/m/versions/1/infer", infer(1.0, 2.0, id="r-1"), headers)
        ended.wait()
    assert answered.status == 200
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


def test_the_wait_is_in_the_queue_span():
    """A request that waits for another's call: what is measured as its wait is as long as that."""
    tracer, spans = traced()
    ended, model = Ended(), HeldModel()
    with serving(
        definition(model, isolation="thread", max_batch_rows=1), observers=[ended, tracer]
    ) as served:
        threads = []
        for calls in (1, 2):
            thread = threading.Thread(target=served.ask, args=("/v2/models/m/infer", infer(1.0)))
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


@pytest.mark.parametrize(
    ("path", "body", "name", "ends"),
    [
        ("/v2/models/m/infer", infer(7.0), "POST /v2/models/{model}/infer", (500, StatusCode.ERROR, "PredictError")),
        ("/v2/models/m/infer", b"{", "POST /v2/models/{model}/infer", (400, StatusCode.UNSET, "DataError")),
        ("/v2/models/x", None, "GET /v2/models/{model}", (404, StatusCode.UNSET, "ModelNotFoundError")),
        ("/made/up/by/anybody", None, "GET", (404, StatusCode.UNSET, None)),
        ("/v2/health/live", None, "GET /v2/health/live", (200, StatusCode.UNSET, None)),
    ],
)  # fmt: skip
def test_errors_are_told_and_names_are_few(path, body, name, ends):
    tracer, spans = traced()
    ended = Ended()
    with serving(definition(PickyModel([7.0])), observers=[ended, tracer]) as served:
        served.ask(path, body)
        ended.wait()
    server = spans()[-1]
    attributes = server.attributes
    told = (attributes["http.response.status_code"], server.status.status_code, attributes.get("error.type"))
    assert server.name == name
    assert told == ends


def test_a_stream_tells_its_items_and_its_first():
    tracer, spans = traced()
    ended = Ended()
    with serving(definition(Words), observers=[ended, tracer]) as served:
        for first in (1.0, 7.0):
            assert served.ask("/v2/models/m/infer_stream", infer(first)).status == 200
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


def test_what_is_not_sampled_is_not_made_but_keeps_its_trace():
    tracer, spans = traced(sampler=ALWAYS_OFF)
    seen = Observation("rest", "GET", "/", began_s=0.0, header={"traceparent": f"00-{TRACE}-{PARENT}-00"}.get)
    tracer.begin(seen)
    tracer.end(seen)
    assert spans() == ()
    assert seen.trace_id == TRACE


@pytest.mark.parametrize("parent", ["", "nonsense", f"00-{'0' * 32}-{PARENT}-01", "é"])
def test_a_broken_parent_is_no_parent(parent):
    tracer, spans = traced()
    seen = Observation("rest", "GET", "/", began_s=0.0, header={"traceparent": parent}.get)
    tracer.begin(seen)
    tracer.end(seen)
    (span,) = spans()
    assert span.parent is None
    assert seen.trace_id == format(span.context.trace_id, "032x")


def test_the_same_object_serves_grpc():
    """What a gRPC door fills in: metadata as headers, the method's full name as path, the code by its name."""
    tracer, spans = traced()
    metadata = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    path = "/inference.GRPCInferenceService/ModelInfer"
    seen = Observation("grpc", "POST", path, began_s=0.0, header=metadata.get)
    tracer.begin(seen)
    seen.action, seen.model, seen.version, seen.status = "ModelInfer", "m", "3", "INTERNAL"
    error = PredictError("m", "it broke")
    seen.failed(error, status_of(error))
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


@pytest.mark.parametrize(
    ("path", "model", "version", "found"),
    [
        ("/", "", "", "/"),
        ("/v2/health/live", "", "", "/v2/health/live"),
        ("/v2/models/m", "m", "", "/v2/models/{model}"),
        ("/v2/models/m/", "m", "", "/v2/models/{model}"),
        ("/v2/models/infer/infer", "infer", "", "/v2/models/{model}/infer"),
        ("/v2/models/m/versions/3", "m", "3", "/v2/models/{model}/versions/{version}"),
        ("/v2/models/m/infer", "m", "3", "/v2/models/{model}/infer"),
        ("/v2/repository/models/m/load", "m", "", "/v2/repository/models/{model}/load"),
    ],
)
def test_routes_have_places_for_names(path, model, version, found):
    assert route(path, model, version) == found


class _Collector(HTTPServer):
    """Takes OTLP over HTTP."""

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


def test_the_usual_environment_brings_spans_to_a_collector(monkeypatch):
    collector = _Collector()
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.server_port}",
        "OTEL_EXPORTER_OTLP_HEADERS": "api-key=abc",
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment=test",
    }
    for name, text in environment.items():
        monkeypatch.setenv(name, text)
    ended = Ended()
    try:
        tracer = tracer_from(environment, "1.2.3")
        with serving(definition(EchoModel), observers=[ended, tracer]) as served:
            assert served.ask("/v2/models/m/infer", infer(1.0)).status == 200
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
def test_the_service_is_called_what_the_environment_says(monkeypatch, variable):
    text = "mine" if variable == "OTEL_SERVICE_NAME" else "service.name=mine"
    monkeypatch.setenv(variable, text)
    tracer = tracer_from({variable: text, "OTEL_TRACES_EXPORTER": ""}, "1")
    assert tracer._provider.resource.attributes["service.name"] == "mine"
    tracer.close()


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "zipkin"),
        ({"OTEL_TRACES_EXPORTER": "otlp,jaeger"}, "jaeger"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "http/protobuf"),
        ({"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"}, "http/protobuf"),
    ],
)
def test_what_cannot_be_exported_is_refused(environment, told):
    with pytest.raises(ConfigError, match=told):
        exporters(environment)


def test_the_console_can_be_named():
    assert [type(one) for one in exporters({"OTEL_TRACES_EXPORTER": "console"})] == [ConsoleSpanExporter]
