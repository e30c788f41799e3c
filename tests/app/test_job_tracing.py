"""The tracer of job servers and workers: one for requests and jobs, opened by the environment."""

import http.client
import json
import sys
from urllib.parse import urlsplit

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from app.served import WAIT_S, running
from headrace.app import job_worker, jobs
from headrace.app.job_components import JobComponents
from headrace.app.job_worker import open_worker
from headrace.app.jobs import open_jobs
from headrace.app.server_options import JobLocations, JobsOptions, ServerOptions
from headrace.app.tracing import Tracing, open_tracing
from headrace.core.errors import ConfigError, MissingExtraError
from headrace.jobs.job import NewJob
from headrace.jobs.worker import WorkerSettings
from headrace.server.tracing import Tracer
from integration.command import DOUBLE
from servers.polling import wait_until

VARIABLES = ("OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
TENSOR = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [2.0, 3.0]}
REQUEST = {"inputs": [TENSOR]}


@pytest.fixture
def environ(monkeypatch):
    """An environment that requests no traces."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "double.py"
    path.write_text(DOUBLE)
    return str(path)


@pytest.fixture
def exporter():
    return InMemorySpanExporter()


@pytest.fixture
def traced(exporter, monkeypatch):
    """Let servers and workers use a tracer in memory. Return the list of what was closed."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer, closed = Tracer(provider), []
    tracing = Tracing(tracer, tracer.jobs, lambda: closed.append("tracer"))
    for module in (jobs, job_worker):
        monkeypatch.setattr(module, "open_tracing", lambda: tracing)
    stop = JobComponents.stop

    def stop_components(self, **options):
        stop(self, **options)
        closed.append("components")

    monkeypatch.setattr(JobComponents, "stop", stop_components)
    return closed


def post(url, path, document):
    """Return the JSON body of a response."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=WAIT_S)
    try:
        connection.request("POST", path, json.dumps(document), {"Content-Type": "application/json"})
        response = connection.getresponse()
        assert response.status in (200, 202)
        return json.loads(response.read())
    finally:
        connection.close()


def spans_by_name(exporter):
    return {span.name: span for span in exporter.get_finished_spans()}


@pytest.mark.parametrize("serves_models", [False, True])
def test_job_server_traces_requests_and_jobs(tmp_path, model, exporter, traced, serves_models):
    model_server = ServerOptions(rest_port=0, grpc_port=None, metrics_port=None) if serves_models else None
    options = JobsOptions(port=0, metrics_port=None, model_server=model_server)
    locations = JobLocations.folder(tmp_path / "data")
    with running(lambda: open_jobs([model], locations, options, isolation="inline")) as opened:
        url = opened.addresses["jobs"]
        post(url, "/v1/jobs", {"model": "double", "input": REQUEST})
        wait_until(lambda: "process default" in spans_by_name(exporter))
        if serves_models:
            post(url, "/v2/models/double/infer", REQUEST)
            wait_until(lambda: "POST /v2/models/{model}/infer" in spans_by_name(exporter))
    spans = spans_by_name(exporter)
    request, send, attempt = spans["POST /v1/jobs"], spans["send default"], spans["process default"]
    assert send.parent.span_id == request.context.span_id
    assert attempt.parent.span_id == send.context.span_id
    assert {"queue", "predict"} <= spans.keys()
    assert attempt.attributes["headrace.job.outcome"] == "completed"


def test_job_server_closes_its_tracer_last(tmp_path, traced):
    options = JobsOptions(port=0, metrics_port=None)
    opened = open_jobs([], JobLocations.folder(tmp_path / "data"), options)
    opened.run(opened.serving.stop_threadsafe)
    assert traced == ["components", "tracer"]


def test_worker_traces_jobs_and_closes_its_tracer_last(tmp_path, model, exporter, traced):
    locations = JobLocations.folder(tmp_path / "data")
    settings = WorkerSettings(name="w1", poll_s=0.02)
    opened = open_worker([model], locations, settings=settings, isolation="inline")
    opened.start()
    try:
        uri = f"{tmp_path}/in.json"
        opened.components.stores.for_uri(uri).put(uri, json.dumps(REQUEST).encode())
        opened.components.ledger.submit([NewJob(model="double", input_uri=uri)])
        wait_until(lambda: "process default" in spans_by_name(exporter))
    finally:
        opened.stop()
    spans = spans_by_name(exporter)
    assert spans["process default"].attributes["headrace.job.outcome"] == "completed"
    assert spans["predict"].parent.span_id == spans["process default"].context.span_id
    assert traced == ["components", "tracer"]


def test_without_traces_nothing_is_imported(environ):
    environ.setitem(sys.modules, "headrace.server.tracing", None)
    tracing = open_tracing()
    assert (tracing.requests, tracing.jobs) == (None, None)
    tracing.close()


def test_environment_opens_one_tracer_for_requests_and_jobs(environ):
    environ.setenv("OTEL_TRACES_EXPORTER", "console")
    tracing = open_tracing()
    assert tracing.jobs is tracing.requests.jobs
    tracing.close()


def test_unsupported_exporter_stops_a_worker(environ, tmp_path, model):
    environ.setenv("OTEL_TRACES_EXPORTER", "zipkin")
    with pytest.raises(ConfigError, match="zipkin"):
        open_worker([model], JobLocations.folder(tmp_path / "data"))


def test_traces_without_the_extra_stop_a_job_server(environ, tmp_path):
    environ.setenv("OTEL_TRACES_EXPORTER", "otlp")
    environ.setitem(sys.modules, "opentelemetry", None)
    environ.delitem(sys.modules, "headrace.server.tracing")
    with pytest.raises(MissingExtraError, match="otel"):
        open_jobs([], JobLocations.folder(tmp_path / "data"), JobsOptions(port=0))
