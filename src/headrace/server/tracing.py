"""OpenTelemetry spans of requests. Only this module imports opentelemetry.

Each request has one server span, a child of the client's span if the request has a W3C
``traceparent``. Its children ``queue`` and ``predict`` are the times that the engine measured. The
standard ``OTEL_*`` environment variables configure it.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from typing_extensions import override

from headrace.core.errors import ConfigError, MissingExtraError
from headrace.server.observation import Observer, RequestObservation

try:
    from opentelemetry import propagate, trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.propagators.textmap import Getter
    from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
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


class Tracer(Observer):
    """An observer that creates spans. `close` exports the remaining spans after the last request."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("headrace.server")

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


def _start_attributes(observation: RequestObservation) -> dict[str, str]:
    if observation.protocol == "grpc":
        return {"rpc.system.name": "grpc", "rpc.method": observation.path.lstrip("/")}
    return {"http.request.method": observation.method, "url.path": observation.path}


def route(path: str, model: str, version: str) -> str:
    """Return an HTTP path with placeholders for model and version: ``/v2/models/{model}/infer``."""
    parts = path.rstrip("/").split("/") if len(path) > 1 else [path]
    at = 4 if path.startswith("/v2/repository/") else 3
    if model and len(parts) > at:
        parts[at] = "{model}"
    if version and len(parts) > 5 and parts[4] == "versions":
        parts[5] = "{version}"
    return "/".join(parts)


def _name(observation: RequestObservation) -> str:
    if observation.protocol == "grpc":
        return observation.path.lstrip("/")
    known = observation.action != "unknown"
    return (
        f"{observation.method} {route(observation.path, observation.model, observation.version)}"
        if known
        else observation.method
    )


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
        if observation.action != "unknown":
            found["http.route"] = route(observation.path, observation.model, observation.version)
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
