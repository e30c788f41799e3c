"""A server: models, repository, dataplane and doors, joined."""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import headrace
from headrace.config.model_file import (
    MODEL_FILE,
    ModelsFolder,
    definition_of,
    is_models_folder,
    read_definition,
)
from headrace.core.errors import ConfigError
from headrace.core.model import Model
from headrace.engine.repository import Find, ModelDefinition, ModelRepository
from headrace.engine.settings import ServeSettings
from headrace.server.answers import Answers
from headrace.server.dataplane import Dataplane
from headrace.server.grpc_aio import GrpcAioServer, GrpcAioSettings, Tls
from headrace.server.grpc_http2 import GrpcHttp2Server
from headrace.server.grpc_service import GrpcService
from headrace.server.grpc_streams import StreamDialect, StreamSettings
from headrace.server.listen import HttpListener, Listener, TlsFiles, new_event_loop
from headrace.server.metrics import Metrics, MetricsApp
from headrace.server.observation import Observer, tracing_wanted
from headrace.server.request_log import RequestLog
from headrace.server.rest import RestApp, RestLimits
from headrace.server.security import Access, ApiKey, check_bind, parse_keys
from headrace.server.serving import DrainSettings, Serving

__all__ = [
    "DrainSettings",
    "OpenedServer",
    "RestLimits",
    "ServerOptions",
    "TlsFiles",
    "open_doors",
    "open_repository",
    "open_server",
]

GrpcCarrier = Literal["grpcio", "asgi"]


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Where a server listens, who may ask, and how it leaves. A port of None is not opened, 0 takes a free one."""

    host: str = "127.0.0.1"
    rest_port: int | None = 8080
    grpc_port: int | None = 8081
    metrics_port: int | None = 8082
    api_keys: Path | None = None
    """A file with a line ``ROLE NAME KEY`` for each key."""
    tls: TlsFiles | None = None
    insecure: bool = False
    """Whether an address that others reach may be opened without keys or client certificates."""
    limits: RestLimits = field(default_factory=RestLimits)
    """The bound on bodies holds for gRPC messages too."""
    grpc_carrier: GrpcCarrier = "grpcio"
    """What carries gRPC: grpcio, or an ASGI server, which is faster and has limits (docs/adr/0010)."""
    stream_dialect: StreamDialect = "mlserver"
    """In which form gRPC streams are answered, unless the caller says: MLServer's, or Triton's."""
    drain: DrainSettings = field(default_factory=DrainSettings)
    access_log: bool = False
    """Whether every request is logged when it is over; see `headrace.server.request_log`."""


ServedModel = str | type[Model] | Callable[[], Model]
"""A file, ``file.py:Class``, ``module:Class``, a models folder, all with ``NAME=`` before them where wanted; or a class."""


@dataclass(frozen=True, slots=True)
class OpenedServer:
    """A server that is put together, its ports bound, and not started."""

    serving: Serving
    dataplane: Dataplane
    doors: Mapping[str, Listener]
    watch: "_Watch"
    """What is told of requests; closed at the end of `run`."""

    @property
    def addresses(self) -> dict[str, str]:
        """Where it listens, by door: rest, grpc, metrics. Ports that were left open are known once it runs."""
        return {name: door.address for name, door in self.doors.items()}

    def run(self, on_ready: Callable[[], None] | None = None) -> None:
        """Serve until SIGTERM or SIGINT; blocks. In the main thread."""
        try:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.run(self.serving.run(on_ready))
        finally:
            self.watch.close()


def open_server(
    models: Sequence[ServedModel],
    options: ServerOptions | None = None,
    *,
    settings: ServeSettings | None = None,
    model_options: Mapping[str, Any] | None = None,
) -> OpenedServer:
    """Put a server together: find the models, bind the ports. Nothing is loaded yet.

    `settings` and `model_options` are for models that are not in a folder with a ``model.toml`` of their own. Must be
    called in the event loop that it will run in, or before there is one. Traces are made where the process's ``OTEL_*``
    variables ask for them.

    Raises ConfigError for what cannot be: an unknown model, a port that is taken, an open address without a guard.
    """
    used = options or ServerOptions()
    repository, changeable = open_repository(models, settings or ServeSettings(), model_options)
    keys = _keys(used.api_keys)
    guarded = bool(keys) or (used.tls is not None and used.tls.client_ca is not None)
    check_bind(used.host, guarded=guarded, insecure=used.insecure)
    dataplane = Dataplane(repository, version=headrace.__version__, changeable=changeable)
    watch = _watch(used)
    doors, answers = _doors(dataplane, used, Access(keys), watch.observers)
    last: dict[str, Listener] = {}
    if used.metrics_port is not None:
        app = MetricsApp(Metrics(dataplane, answers))
        last["metrics"] = HttpListener(app, used.host, used.metrics_port, used.tls)
    serving = Serving(repository, dataplane, list(doors.values()), last=list(last.values()), drain=used.drain)
    return OpenedServer(serving, dataplane, doors | last, watch)


def open_doors(dataplane: Dataplane, options: ServerOptions) -> dict[str, Listener]:
    """The doors of models alone, for whoever runs them beside something else. ConfigError as `open_server`."""
    keys = _keys(options.api_keys)
    guarded = bool(keys) or (options.tls is not None and options.tls.client_ca is not None)
    check_bind(options.host, guarded=guarded, insecure=options.insecure)
    return _doors(dataplane, options, Access(keys), None)[0]


@dataclass(frozen=True, slots=True)
class _Watch:
    observers: Sequence[Observer] | None = None
    close: Callable[[], None] = lambda: None


def _watch(options: ServerOptions) -> _Watch:
    observers: list[Observer] = []
    close = _Watch().close
    if tracing_wanted(os.environ):
        from headrace.server.tracing import tracer_from  # noqa: PLC0415 - an extra

        tracer = tracer_from(os.environ, headrace.__version__)
        observers.append(tracer)
        close = tracer.close
    if options.access_log:
        # Last, so that it ends first; the trace's id is known from the begin.
        observers.append(RequestLog())
    return _Watch(observers or None, close)


def open_repository(
    models: Sequence[ServedModel], settings: ServeSettings, model_options: Mapping[str, Any] | None = None
) -> tuple[ModelRepository, bool]:
    """The models, and whether they may be loaded and unloaded while they are served: those of a models folder may."""
    definitions: list[ModelDefinition] = []
    find: Find | None = None
    for model in models:
        if isinstance(model, str) and is_models_folder(Path(model)):
            path = Path(model)
            if (path / MODEL_FILE).is_file():
                definitions.append(read_definition(path / MODEL_FILE))
                continue
            if find is not None:
                raise ConfigError("there can be only one models folder: put the models into one")
            folder = ModelsFolder(path)
            definitions += folder.all()
            find = folder.find
        elif isinstance(model, str):
            definitions.append(definition_of(model, settings, model_options))
        else:
            name = getattr(model, "__name__", type(model).__name__)
            if not name.isidentifier():
                raise ConfigError(
                    f"{model!r} has no name that could stand in a URL: give a class or a named function"
                )
            definitions.append(ModelDefinition(name, "1", model, settings=settings))
    if not definitions:
        raise ConfigError("there is nothing to serve: name a model, or a folder of models")
    return ModelRepository(definitions, find=find), find is not None


def _keys(path: Path | None) -> tuple[ApiKey, ...]:
    if path is None:
        return ()
    try:
        return parse_keys(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the API keys in {path} cannot be read: {error}") from error


def _doors(
    dataplane: Dataplane, options: ServerOptions, access: Access, observers: Sequence[Observer] | None
) -> tuple[dict[str, Listener], list[Answers]]:
    doors: dict[str, Listener] = {}
    answers: list[Answers] = []
    if options.rest_port is not None:
        rest = RestApp(dataplane, access=access, limits=options.limits, observers=observers)
        answers.append(rest.answers)
        doors["rest"] = HttpListener(rest, options.host, options.rest_port, options.tls, direct=rest.direct)
    if options.grpc_port is not None:
        streams = StreamSettings(options.stream_dialect)
        service = GrpcService(dataplane, access=access, streams=streams, observers=observers)
        answers.append(service.answers)
        doors["grpc"] = _grpc_door(service, options, options.grpc_port)
    if not doors:
        raise ConfigError("a server needs a door: leave at least one of the ports open")
    return doors, answers


def _grpc_door(service: GrpcService, options: ServerOptions, port: int) -> Listener:
    tls = options.tls
    if options.grpc_carrier == "asgi":
        if tls is not None:
            raise ConfigError("gRPC carried by the ASGI server has no TLS: use grpcio as its carrier")
        bytes_max = options.limits.body_bytes_max
        return GrpcHttp2Server(service, options.host, port, message_bytes_max=bytes_max)
    settings = GrpcAioSettings(
        host=options.host,
        port=port,
        tls=None if tls is None else Tls(tls.certificate, tls.key, tls.client_ca),
        message_bytes_max=options.limits.body_bytes_max,
    )
    return GrpcAioServer(service, settings)
