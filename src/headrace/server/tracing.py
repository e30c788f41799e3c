"""OpenTelemetry spans of requests and jobs. Only this module imports opentelemetry.

Each request has one server span, a child of the client's span if the request has a W3C
``traceparent``. Its children ``queue`` and ``predict`` are the times that the engine measured.
`headrace.jobs.tracing` describes the spans of jobs. The standard ``OTEL_*`` environment variables
configure all of them.
"""

import logging
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from typing_extensions import override

from headrace.core.errors import ConfigError, MissingExtraError
from headrace.jobs.tracing import Attributes, JobTracer, SpanError, SpanKind, StartedSpan
from headrace.server.observation import Observer, RequestObservation

try:
    from opentelemetry import propagate, trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.propagators.textmap import Getter
    from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as _error:
    raise MissingExtraError("otel", "traces") from _error

_EXPORTERS: Final[Mapping[str, Callable[[], SpanExporter]]] = {
    "otlp": OTLPSpanExporter,
    # The default would be the standard output at the time of the import.
    "console": lambda: ConsoleSpanExporter(out=sys.stdout),
}

Lookup = Callable[[str], str | None]


class _Headers(Getter[Lookup]):
    """A getter of trace context from HTTP headers or gRPC metadata, by name."""

    def get(self, carrier: Lookup, key: str) -> list[str] | None:
        value = carrier(key.lower())
        return None if value is None else [value]

    def keys(self, carrier: Lookup) -> list[str]:
        del carrier
        return []


_HEADERS: Final = _Headers()
_TRACE_CONTEXT: Final = TraceContextTextMapPropagator()

_log = logging.getLogger("headrace.server")


class Tracer(Observer):
    """An observer that creates spans. `close` exports the remaining spans after the last request.

    `jobs` is the tracer of the jobs of the same process.
    """

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("headrace.server")
        self.jobs: Final[JobTracer] = SdkJobTracer(provider)

    def begin(self, observation: RequestObservation) -> None:
        """Open the span. The observation has its `trace_id` from then on."""
        parent = propagate.extract(observation.header, getter=_HEADERS)
        # Samplers need the attributes at the start of the span.
        observation.span = span = self._tracer.start_span(
            observation.method,
            context=parent,
            kind=trace.SpanKind.SERVER,
            attributes=_start_attributes(observation),
            start_time=observation.began_ns,
        )
        context = span.get_span_context()
        if context.is_valid:
            observation.trace_id = trace.format_trace_id(context.trace_id)
            observation.traceparent = traceparent_of(context)

    @override
    def end(self, observation: RequestObservation) -> None:
        span: trace.Span | None = observation.span
        if span is None:
            return
        if span.is_recording():
            span.update_name(_name(observation))
            span.set_attributes(_attributes(observation))
            self._children(observation, span)
            if observation.first_item_s is not None:
                span.add_event("first item", timestamp=observation.epoch_ns(observation.first_item_s))
            if observation.fault:
                why = "" if observation.failure is None else observation.failure[1].why
                span.set_status(trace.Status(trace.StatusCode.ERROR, why))
        span.end(observation.epoch_ns(observation.ended_s))

    def _children(self, observation: RequestObservation, span: trace.Span) -> None:
        times = observation.times
        if times.arrived_s is None or times.began_s is None or times.ended_s is None:
            return  # the request was never called, or the times are unknown
        context = trace.set_span_in_context(span)
        for name, began_s, ended_s in (
            ("queue", times.arrived_s, times.began_s),
            ("predict", times.began_s, times.ended_s),
        ):
            child = self._tracer.start_span(name, context=context, start_time=observation.epoch_ns(began_s))
            child.end(observation.epoch_ns(ended_s))

    def close(self) -> None:
        """Export the remaining spans, within ``OTEL_BSP_EXPORT_TIMEOUT``, and stop."""
        self._provider.shutdown()


class SdkJobTracer(JobTracer):
    """A tracer of jobs with the spans of the SDK. The ledger's context is W3C, whatever clients use."""

    def __init__(self, provider: TracerProvider) -> None:
        self._tracer = provider.get_tracer("headrace.jobs")

    @override
    def start(
        self, name: str, kind: SpanKind, parent: str, at_ns: int, attributes: Attributes
    ) -> StartedSpan:
        # Also without a parent this is a context of its own: the span is no child of one that is
        # current in this thread.
        context = _TRACE_CONTEXT.extract({"traceparent": parent})
        try:
            span = self._tracer.start_span(
                name, context, trace.SpanKind[kind.name], attributes=attributes, start_time=at_ns
            )
        except Exception:  # noqa: BLE001 - a sampler of an extension must not harm the job
            _log.exception("a span could not be created")
            span = trace.INVALID_SPAN
        return _SdkSpan(span)


class _SdkSpan(StartedSpan):
    def __init__(self, span: trace.Span) -> None:
        self._span = span

    @property
    @override
    def traceparent(self) -> str:
        context = self._span.get_span_context()
        return traceparent_of(context) if context.is_valid else ""

    @override
    def end(self, at_ns: int, attributes: Attributes, error: SpanError | None) -> None:
        self._span.set_attributes(attributes)
        if error is not None:
            self._span.set_attribute("error.type", error.type)
            self._span.set_status(trace.Status(trace.StatusCode.ERROR, error.why))
        self._span.end(at_ns)


def traceparent_of(context: trace.SpanContext) -> str:
    """Return the W3C ``traceparent`` of the children of a span."""
    ids = f"{trace.format_trace_id(context.trace_id)}-{trace.format_span_id(context.span_id)}"
    return f"00-{ids}-{context.trace_flags:02x}"


def _start_attributes(observation: RequestObservation) -> dict[str, str]:
    if observation.protocol == "grpc":
        return {"rpc.system.name": "grpc", "rpc.method": observation.path.lstrip("/")}
    return {"http.request.method": observation.method, "url.path": observation.path}


def _route(observation: RequestObservation) -> str:
    """Return the path with placeholders for its parameters, such as ``/v2/models/{model}/infer``."""
    return observation.route.replace("{model_name}", "{model}").replace("{model_version}", "{version}")


def _name(observation: RequestObservation) -> str:
    if observation.protocol == "grpc":
        return observation.path.lstrip("/")
    return f"{observation.method} {_route(observation)}".rstrip()


def _attributes(observation: RequestObservation) -> dict[str, Any]:
    found: dict[str, Any] = {
        "headrace.request.id": observation.body_id or observation.request_id,
        "headrace.model.name": observation.model,
        "headrace.model.version": observation.version,
        "headrace.client": observation.client,
    }
    found = {name: value for name, value in found.items() if value}
    if observation.model:
        found["headrace.rows"] = observation.rows
    if observation.streamed:
        found["headrace.stream.items"] = observation.items
    if observation.protocol == "grpc":
        found["rpc.response.status_code"] = str(observation.status)
    else:
        found["http.response.status_code"] = observation.status
        if observation.route:
            found["http.route"] = _route(observation)
    if observation.failure is not None:
        found["error.type"] = observation.failure[0]
    return found


def exporters(environment: Mapping[str, str]) -> Iterable[SpanExporter]:
    """Yield the exporters of ``OTEL_TRACES_EXPORTER``, a comma-separated list; the default is otlp.

    Raises:
        ConfigError: An exporter, or an OTLP protocol, is not available.
    """
    names = [
        n.strip() for n in environment.get("OTEL_TRACES_EXPORTER", "otlp").lower().split(",") if n.strip()
    ]
    unknown = [n for n in names if n not in _EXPORTERS]
    if unknown:
        raise ConfigError(
            f"OTEL_TRACES_EXPORTER: unsupported exporter {', '.join(unknown)}: use otlp, console or none"
        )
    protocol = environment.get(
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", environment.get("OTEL_EXPORTER_OTLP_PROTOCOL", "")
    )
    if "otlp" in names and protocol not in ("", "http/protobuf"):
        raise ConfigError(
            f"OTEL_EXPORTER_OTLP_PROTOCOL: unsupported protocol {protocol}: unset it, since traces are "
            "exported as http/protobuf, and set the collector's HTTP endpoint, such as http://localhost:4318"
        )
    return [_EXPORTERS[name]() for name in names]


def tracer_from(environment: Mapping[str, str], version: str) -> Tracer:
    """Return the tracer that the environment configures; see `tracing_wanted`.

    The SDK reads sampler, batches, resource, headers and timeouts from the ``OTEL_*`` variables of
    the process. The service name is headrace unless these variables set another one.

    Raises:
        ConfigError: An exporter, or an OTLP protocol, is not available.
    """
    resource = Resource.create({SERVICE_VERSION: version})
    if not environment.get("OTEL_SERVICE_NAME") and "service.name=" not in environment.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    ):
        resource = resource.merge(Resource({SERVICE_NAME: "headrace"}))
    provider = TracerProvider(resource=resource)
    for exporter in exporters(environment):
        provider.add_span_processor(BatchSpanProcessor(exporter))
    return Tracer(provider)
