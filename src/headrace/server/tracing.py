"""Spans of requests for OpenTelemetry. The one door to opentelemetry.

One server span a request, child of the caller's where it sent a W3C ``traceparent``; below it ``queue`` and ``predict``, made of the
times that the engine measured. Configured by the usual ``OTEL_*`` environment.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from headrace.core.errors import ConfigError, MissingExtraError
from headrace.server.observation import Observation

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
    # Not the default, which is what standard output was when it was imported.
    "console": lambda: ConsoleSpanExporter(out=sys.stdout),
}

Lookup = Callable[[str], str | None]


class _Headers(Getter[Lookup]):
    """Reads a caller's context from HTTP headers, or gRPC metadata, by name."""

    def get(self, carrier: Lookup, key: str) -> list[str] | None:
        value = carrier(key.lower())
        return None if value is None else [value]

    def keys(self, carrier: Lookup) -> list[str]:
        del carrier
        return []


_HEADERS: Final = _Headers()


class Tracer:
    """An `Observer` that makes spans. `close` it once no request is left: what was not yet exported is, then."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("headrace.server")

    def begin(self, seen: Observation) -> None:
        """Open the span; from then on `trace_id` is known."""
        parent = propagate.extract(seen.header, getter=_HEADERS)
        # What a sampler may look at must be there from the start.
        seen.span = span = self._tracer.start_span(
            seen.method,
            context=parent,
            kind=trace.SpanKind.SERVER,
            attributes=_head(seen),
            start_time=seen.began_ns,
        )
        context = span.get_span_context()
        if context.is_valid:
            seen.trace_id = trace.format_trace_id(context.trace_id)

    def end(self, seen: Observation) -> None:
        """Fill the span in, make its children, and close it."""
        span: trace.Span | None = seen.span
        if span is None:
            return
        if span.is_recording():
            span.update_name(_name(seen))
            span.set_attributes(_attributes(seen))
            self._children(seen, span)
            if seen.first_item_s is not None:
                span.add_event("first item", timestamp=seen.epoch_ns(seen.first_item_s))
            if seen.fault:
                why = "" if seen.failure is None else seen.failure[1].why
                span.set_status(trace.Status(trace.StatusCode.ERROR, why))
        span.end(seen.epoch_ns(seen.ended_s))

    def _children(self, seen: Observation, span: trace.Span) -> None:
        times = seen.times
        if times.asked_s is None or times.began_s is None or times.ended_s is None:
            return  # it never came to its call, or nobody knows when
        context = trace.set_span_in_context(span)
        for name, began_s, ended_s in (
            ("queue", times.asked_s, times.began_s),
            ("predict", times.began_s, times.ended_s),
        ):
            child = self._tracer.start_span(name, context=context, start_time=seen.epoch_ns(began_s))
            child.end(seen.epoch_ns(ended_s))

    def close(self) -> None:
        """Export what is left, for as long as ``OTEL_BSP_EXPORT_TIMEOUT`` allows, and stop."""
        self._provider.shutdown()


def _head(seen: Observation) -> dict[str, str]:
    if seen.door == "grpc":
        return {"rpc.system.name": "grpc", "rpc.method": seen.path.lstrip("/")}
    return {"http.request.method": seen.method, "url.path": seen.path}


def route(path: str, model: str, version: str) -> str:
    """An HTTP path with places for the model and the version in it: ``/v2/models/{model}/infer``."""
    parts = path.rstrip("/").split("/") if len(path) > 1 else [path]
    at = 4 if path.startswith("/v2/repository/") else 3
    if model and len(parts) > at:
        parts[at] = "{model}"
    if version and len(parts) > 5 and parts[4] == "versions":
        parts[5] = "{version}"
    return "/".join(parts)


def _name(seen: Observation) -> str:
    if seen.door == "grpc":
        return seen.path.lstrip("/")
    known = seen.action != "unknown"
    return f"{seen.method} {route(seen.path, seen.model, seen.version)}" if known else seen.method


def _attributes(seen: Observation) -> dict[str, Any]:
    found: dict[str, Any] = {
        "headrace.request.id": seen.body_id or seen.request_id,
        "headrace.model.name": seen.model,
        "headrace.model.version": seen.version,
        "headrace.client": seen.client,
    }
    found = {name: value for name, value in found.items() if value}
    if seen.model:
        found["headrace.rows"] = seen.rows
    if seen.streamed:
        found["headrace.stream.items"] = seen.items
    if seen.door == "grpc":
        found["rpc.response.status_code"] = str(seen.status)
    else:
        found["http.response.status_code"] = seen.status
        if seen.action != "unknown":
            found["http.route"] = route(seen.path, seen.model, seen.version)
    if seen.failure is not None:
        found["error.type"] = seen.failure[0]
    return found


def exporters(environment: Mapping[str, str]) -> Iterable[SpanExporter]:
    """What ``OTEL_TRACES_EXPORTER`` names, a list with commas; OTLP over HTTP by default.

    ConfigError for exporters, and protocols of OTLP, that are not here.
    """
    names = [
        n.strip() for n in environment.get("OTEL_TRACES_EXPORTER", "otlp").lower().split(",") if n.strip()
    ]
    unknown = [n for n in names if n not in _EXPORTERS]
    if unknown:
        raise ConfigError(
            f"OTEL_TRACES_EXPORTER: {', '.join(unknown)} cannot be had here: use otlp, console or none"
        )
    protocol = environment.get(
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", environment.get("OTEL_EXPORTER_OTLP_PROTOCOL", "")
    )
    if "otlp" in names and protocol not in ("", "http/protobuf"):
        raise ConfigError(
            f"OTEL_EXPORTER_OTLP_PROTOCOL: traces leave as http/protobuf, not {protocol}: unset it, and give the "
            "collector's HTTP endpoint, such as http://localhost:4318"
        )
    return [_EXPORTERS[name]() for name in names]


def tracer_from(environment: Mapping[str, str], version: str) -> Tracer:
    """The tracer that the environment asks for; see `headrace.server.observation.tracing_wanted` for whether it does.

    Sampler, batches, resource, headers and time-outs are the SDK's own, which reads the process's ``OTEL_*`` variables. The
    service is called headrace unless they name it. ConfigError.
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
