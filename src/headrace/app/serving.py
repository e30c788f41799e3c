"""Build a model server: model repository, data plane and listeners."""

import asyncio
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import headrace
from headrace.app.models import ServedModel, open_repository
from headrace.app.server_options import ServerOptions
from headrace.app.service_group import ServiceGroup
from headrace.app.tracing import open_tracing
from headrace.core.errors import ConfigError
from headrace.engine.settings import ServeSettings
from headrace.jobs.access import KEY_CHARS_MIN, Access, ApiKey, Scope, hash_key
from headrace.jobs.access.keys_file import parse_keys
from headrace.scaling.instances import InstanceScaler, RepositoryModels
from headrace.server.application import Guard, WebApp, check_bind
from headrace.server.dataplane import Dataplane
from headrace.server.grpc_aio import GrpcAioServer, GrpcAioSettings
from headrace.server.grpc_asgi import GrpcHttp2Server
from headrace.server.grpc_inference import GrpcStreamSettings
from headrace.server.grpc_service import GrpcService
from headrace.server.listen import HttpListener, TlsFiles, new_event_loop
from headrace.server.listener import DrainSettings, Listener, Serving
from headrace.server.metrics import Metrics, MetricsApp
from headrace.server.observation import Observer, RequestLog, ResponseCounters
from headrace.server.rest import model_app
from headrace.server.rest_inference import RestLimits

__all__ = [
    "DrainSettings",
    "OpenedServer",
    "RestLimits",
    "ServerOptions",
    "TlsFiles",
    "open_listeners",
    "open_server",
]


@dataclass(frozen=True, slots=True)
class OpenedServer:
    """A server with bound ports, built but not started."""

    serving: Serving
    dataplane: Dataplane
    listeners: Mapping[str, Listener]
    observation: "_Observation"
    """The observers of requests; `run` closes them."""

    @property
    def addresses(self) -> dict[str, str]:
        """The addresses by listener name: rest, grpc, metrics.

        The address of a port 0 shows the chosen port once the server runs.
        """
        return {name: listener.address for name, listener in self.listeners.items()}

    def run(self, on_ready: Callable[[], None] | None = None) -> None:
        """Serve until SIGTERM or SIGINT; block meanwhile. Call it in the main thread."""
        try:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.run(self.serving.run(on_ready))
        finally:
            self.observation.close()


def open_server(
    models: Sequence[ServedModel],
    options: ServerOptions | None = None,
    *,
    settings: ServeSettings | None = None,
    model_options: Mapping[str, Any] | None = None,
) -> OpenedServer:
    """Build a server: find the models and bind the ports. Load nothing yet.

    `settings` and `model_options` apply to models without a ``model.toml``. Call it in the event
    loop that runs the server, or before a loop exists. Traces are exported if the ``OTEL_*``
    environment variables request it.

    Raises ConfigError for an unknown model, a port in use, or a public address without access
    control.
    """
    options = options or ServerOptions()
    repository, changeable = open_repository(models, settings or ServeSettings(), model_options)
    # It runs in any case: a range of instances may also be set later.
    scaler = InstanceScaler(RepositoryModels(repository))
    access = Access(_read_keys(options.api_keys))
    guarded = not access.open or (options.tls is not None and options.tls.client_ca is not None)
    check_bind(options.host, guarded=guarded, insecure=options.insecure)
    guard = Guard(access, bound_to=options.host, allow_hosts=options.allow_hosts)
    dataplane = Dataplane(repository, version=headrace.__version__, changeable=changeable)
    observation = _open_observation(options)
    rest = model_app(dataplane, guard=guard, limits=options.limits, observers=observation.observers)
    listeners, counters = open_listeners(rest, dataplane, options, guard, observation.observers)
    metrics: dict[str, Listener] = {}
    if options.metrics_port is not None:
        app = MetricsApp(Metrics(dataplane, counters), guard)
        metrics["metrics"] = HttpListener(app, options.host, options.metrics_port, options.tls)
    serving = Serving(
        ServiceGroup([repository, scaler]),
        dataplane.drain,
        list(listeners.values()),
        stopped_last=list(metrics.values()),
        drain=options.drain,
    )
    return OpenedServer(serving, dataplane, listeners | metrics, observation)


@dataclass(frozen=True, slots=True)
class _Observation:
    observers: Sequence[Observer] | None
    close: Callable[[], None]


def _open_observation(options: ServerOptions) -> _Observation:
    tracing = open_tracing()
    observers = [] if tracing.requests is None else [tracing.requests]
    if options.access_log:
        # The request log comes last, so that it ends first and knows the trace id.
        observers.append(RequestLog())
    return _Observation(observers or None, tracing.close)


def _read_keys(path: Path | None) -> dict[bytes, ApiKey]:
    if path is None:
        return {}
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot read the API keys: {error}") from error
    return parse_old_keys(text, str(path)) if is_old_key_file(text) else parse_keys(text, str(path))


def open_listeners(
    rest: WebApp,
    dataplane: Dataplane,
    options: ServerOptions,
    guard: Guard,
    observers: Sequence[Observer] | None = None,
) -> tuple[dict[str, Listener], list[ResponseCounters]]:
    """Return the listeners of models by name, and the counters of their responses.

    Raises:
        ConfigError: A port is in use, or no port is wanted.
    """
    listeners: dict[str, Listener] = {}
    counters: list[ResponseCounters] = []
    if options.rest_port is not None:
        counters.append(rest.response_counters)
        listeners["rest"] = HttpListener(
            rest, options.host, options.rest_port, options.tls, direct=rest.direct
        )
    if options.grpc_port is not None:
        streams = GrpcStreamSettings(options.stream_dialect)
        service = GrpcService(dataplane, access=guard.access, streams=streams, observers=observers)
        counters.append(service.response_counters)
        listeners["grpc"] = _grpc_listener(service, options, options.grpc_port)
    if not listeners:
        raise ConfigError("no port to listen on: leave the REST or the gRPC port open")
    return listeners, counters


def _grpc_listener(service: GrpcService, options: ServerOptions, port: int) -> Listener:
    tls = options.tls
    if options.grpc_carrier == "asgi":
        if tls is not None:
            raise ConfigError("the asgi gRPC carrier has no TLS: use --grpc-carrier grpcio")
        bytes_max = options.limits.body_bytes_max
        return GrpcHttp2Server(service, options.host, port, message_bytes_max=bytes_max)
    settings = GrpcAioSettings(
        host=options.host,
        port=port,
        tls=tls,
        message_bytes_max=options.limits.body_bytes_max,
    )
    return GrpcAioServer(service, settings)


_SCOPES: Final = {"infer": Scope.INFER, "admin": Scope.MODELS}


def is_old_key_file(text: str) -> bool:
    """Return True if the first line that is no comment has the form ``ROLE NAME KEY``."""
    lines = (line.split() for line in text.splitlines())
    first = next((words for words in lines if words and not words[0].startswith("#")), None)
    return first is not None and len(first) > 2 and first[1] != "="


def parse_old_keys(text: str, where: str) -> dict[bytes, ApiKey]:
    """Return the keys of lines ``ROLE NAME KEY`` by their digests, and warn that the format is deprecated.

    Raises:
        ConfigError: A line is malformed.
    """
    # A FutureWarning, because the reader of this warning wrote a file, not Python.
    warnings.warn(
        f"{where}: lines ROLE NAME KEY are deprecated: replace each by the lines that "
        "'headrace keys new NAME --scope infer' prints (for the role admin: --scope models)",
        FutureWarning,
        stacklevel=2,
    )
    keys: dict[bytes, ApiKey] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 3 or words[0] not in _SCOPES:
            raise ConfigError(f"{where}, line {number}: must be ROLE NAME KEY with the role infer or admin")
        role, name, key = words
        if len(key) < KEY_CHARS_MIN:
            raise ConfigError(
                f"{where}: API key {name!r} is too short: at least {KEY_CHARS_MIN} characters are needed"
            )
        keys[hash_key(key)] = ApiKey(name, name, frozenset({_SCOPES[role]}))
    return keys
