"""Open models: as the repository of a server, the predictor of a run, or a client of a running server."""

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import cache
from math import inf
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import SplitResult, urlsplit

from headrace.client.model_server import ModelServerClient
from headrace.config.model_argument import ModelArgument, find_model, find_models
from headrace.core.errors import ConfigError
from headrace.core.model import Model
from headrace.core.predictor import Predictor
from headrace.core.settings import Setting, check
from headrace.engine.engine import Engine
from headrace.engine.live_traffic import LiveTraffic
from headrace.engine.repository import FindDefinitions, ModelDefinition, ModelRepository
from headrace.engine.settings import ServeSettings
from headrace.runs.document import IN_FLIGHT_MAX, REQUEST_TIMEOUT_S
from headrace.runs.settings import RunSettings
from headrace.storage.resolve import Stores

API_KEY_VARIABLE: Final = "HEADRACE_API_KEY"
DEFAULT_URL: Final = "http://localhost:8080"
_URL_EXAMPLES: Final = "http://host:8080, https://host, grpc://host:8081 or grpcs://host:443"

ServedModel = ModelArgument
"""A model or a folder of models to serve."""


def open_repository(
    models: Sequence[ServedModel], settings: ServeSettings, model_options: Mapping[str, Any] | None = None
) -> tuple[ModelRepository, bool]:
    """Return the models, and True if they can be loaded and unloaded at run time.

    Only the models of a models folder can.
    """
    definitions: list[ModelDefinition] = []
    find: FindDefinitions | None = None
    for model in models:
        found = find_models(model, options=model_options, settings=settings)
        if find is not None and found.find is not None:
            raise ConfigError(f"{model} is a second models folder: put all models into one folder")
        if not isinstance(model, str | Path) and not found.definitions[0].name.isidentifier():
            raise ConfigError(f"{model!r} has no name for its URL: give a class or a named function")
        definitions += found.definitions
        find = find or found.find
    if not definitions:
        raise ConfigError("no model to serve: name a model or a folder of models")
    return ModelRepository(definitions, find=find, traffic=process_traffic()), find is not None


@cache
def process_traffic() -> LiveTraffic:
    """Return the live traffic of this process, to which all of its engines belong."""
    return LiveTraffic()


ModelLike = ModelArgument | Predictor
"""The model of a run: a MODEL argument, or a Predictor."""


@dataclass(frozen=True, slots=True)
class PredictorOptions:
    """The number of model instances, or the protocol and limits of requests to an endpoint.

    `model_options` go to the model's runtime or class, for example ``{"method": "predict_proba"}``.
    """

    instances: Annotated[
        int | None,
        Setting("Number of model instances.", least=1, default="that of the model.toml, else 1"),
    ] = None
    protocol: Annotated[
        Literal["auto", "oip", "torchserve"],
        Setting("Protocol of the endpoint; auto chooses by URL."),
    ] = "auto"
    endpoint_model: Annotated[
        str | None, Setting("Model name, for an endpoint URL without one.", metavar="NAME")
    ] = None
    in_flight_max: Annotated[int, IN_FLIGHT_MAX] = 16
    timeout_s: Annotated[float, REQUEST_TIMEOUT_S] = 60.0
    retry_s: Annotated[
        float,
        Setting(
            "Seconds for which a failed request to the endpoint or a store is retried.", least=0, most=inf
        ),
    ] = 120.0
    model_options: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        check(self)


_SEQUENCE_LIMITS: Final[Mapping[str, Any]] = {
    "idle_ms": inf,
    "time_ms_max": None,
    "evict_idle_ms": None,
    "live_max": 1 << 31,
    "requests_max": 1 << 31,
    "interleave": False,
}
"""Sequence limits of the engine of a run. States have no time limits, since a source may pause at will.
The pipeline limits the number of live sequences; it counts them in source order."""


def run_settings(settings: ServeSettings, instances: int | None = None) -> ServeSettings:
    """Return the settings of a model in a run: those of its ``model.toml`` that have a meaning there.

    A run has no clients. So the batch delay, the queue of requests, streams, checkpoints and all
    limits of sequences are left out: a run fills its batches from the source, and repeats the records
    of a sequence to restore the state of the sequence. Instances are in threads unless the model has a
    process of its own.
    """
    return ServeSettings(
        instances=instances or settings.instances,
        isolation="process" if settings.isolation == "process" else "thread",
        max_batch_rows=settings.max_batch_rows,
        call_timeout_s=settings.call_timeout_s,
        cancel_grace_s=settings.cancel_grace_s,
        memory_bytes_max=settings.memory_bytes_max,
        processes_max=settings.processes_max,
        environ_pass=settings.environ_pass,
        sequences=_SEQUENCE_LIMITS,
        warm_up=settings.warm_up,
    )


@dataclass(frozen=True, slots=True)
class OpenedPredictor:
    """A predictor that is not started, and the model identity that ledgers record.

    `local_model` is the MODEL argument by which another process of this machine finds the same model,
    or None.
    """

    predictor: Predictor
    identity: str
    local_model: str | None = None


def open_predictor(
    model: ModelLike | None,
    endpoint: str | None,
    options: PredictorOptions,
    stores: Stores | None = None,
    *,
    finds_broken_model: bool = False,
) -> OpenedPredictor:
    """Return an engine for a model, or a client for an endpoint. Exactly one of both must be given.

    `stores` are those of the URI of a model. `finds_broken_model` is the engine's. Raises as `find_model`.
    """
    if (model is None) == (endpoint is None):
        raise ConfigError("give either a model (--model) or an endpoint (--endpoint)")
    if isinstance(model, str | Path | Model) or callable(model):
        return _open_engine(model, options, stores, finds_broken_model=finds_broken_model)
    if options.model_options:
        raise ConfigError("model_options need a model that is named by its file, folder or class")
    if endpoint is not None:
        return _open_endpoint(endpoint, options)
    assert model is not None
    return OpenedPredictor(model, getattr(model, "name", type(model).__name__))


def _open_engine(
    model: ModelArgument, options: PredictorOptions, stores: Stores | None, *, finds_broken_model: bool
) -> OpenedPredictor:
    asked = ServeSettings(instances=options.instances or 1)
    found = find_model(model, options=options.model_options, settings=asked, stores=stores)
    definition = found.definition
    engine = Engine(
        definition.make,
        name=definition.name,
        fingerprint=definition.fingerprint,
        serving=run_settings(definition.settings, options.instances),
        merge=False,
        finds_broken_model=finds_broken_model,
        traffic=process_traffic(),
    )
    return OpenedPredictor(engine, f"{definition.name} sha256:{definition.fingerprint}", found.local)


def _open_endpoint(endpoint: str, options: PredictorOptions) -> OpenedPredictor:
    from headrace.client.endpoint import endpoint_predictor  # noqa: PLC0415 - optional dependency

    predictor = endpoint_predictor(
        endpoint,
        protocol=options.protocol,
        model=options.endpoint_model,
        in_flight_max=options.in_flight_max,
        timeout_s=options.timeout_s,
        retry_s=options.retry_s,
    )
    return OpenedPredictor(predictor, predictor.url)


def open_run_predictor(
    model: ModelLike | None,
    endpoint: str | None,
    options: PredictorOptions | None,
    settings: RunSettings | None,
    stores: Stores | None = None,
) -> OpenedPredictor:
    """Return the predictor of a stream or run. Raise ConfigError for sequences at an endpoint.

    A request whose response is lost is sent again. Its steps would then change their states twice.
    """
    if endpoint is not None and settings is not None and settings.mapping.sequence is not None:
        raise ConfigError(
            f"--sequence {settings.mapping.sequence} needs the model itself (--model), not an endpoint: "
            "a request whose response is lost would be sent again and repeat its steps"
        )
    return open_predictor(
        model,
        endpoint,
        options or PredictorOptions(),
        stores,
        finds_broken_model=settings is not None and settings.failures.stops_broken_model,
    )


def add_current_folder_to_path() -> None:
    """Make modules of the current directory importable, after all installed modules.

    ``module:Class`` then works as with ``python -m``.
    """
    if "" not in sys.path:
        sys.path.append("")


class RunningPredictor(AbstractContextManager[None]):
    """A context manager that starts a predictor and stops it at exit, without drain."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor

    def __enter__(self) -> None:
        self._predictor.start()

    def __exit__(self, *_: object) -> None:
        self._predictor.stop(drain=False)


def model_reference(
    model: ModelLike | None, endpoint: str | None, options: PredictorOptions
) -> dict[str, Any]:
    """Return the name, endpoint and options that open the same model again.

    The name is None for a model that was given as a class or object.
    """
    name = str(model) if isinstance(model, str | Path) else None
    return {"model": name, "endpoint": endpoint, "options": asdict(options)}


def open_model_server(
    url: str = DEFAULT_URL,
    *,
    api_key: str | None = None,
    timeout_s: float = 60.0,
    environ: Mapping[str, str] | None = None,
) -> ModelServerClient:
    """Return a client of the server at `url`; send nothing yet.

    The client is an async context manager.

    Args:
        url: ``http://``, ``https://``, ``grpc://`` or ``grpcs://``; ``http://`` is the default scheme.
        api_key: The bearer token. Without it, the environment variable HEADRACE_API_KEY is used.
        timeout_s: The timeout of each request in seconds. For a stream it bounds the wait for each item.
        environ: Environment variables that replace those of the process.

    Raises:
        ConfigError: The URL, the API key or the timeout is invalid.
        MissingExtraError: The protocol's optional dependency is not installed.
    """
    if timeout_s <= 0:
        raise ConfigError(f"timeout_s must be above 0, not {timeout_s:g}")
    parts = _parse_url(url)
    key = _api_key(api_key, os.environ if environ is None else environ)
    if parts.scheme in ("grpc", "grpcs"):
        # REST clients do not need gRPC, and gRPC clients do not need aiohttp.
        from headrace.client.model_server_grpc import GrpcServerClient  # noqa: PLC0415

        return GrpcServerClient(parts.netloc, tls=parts.scheme == "grpcs", api_key=key, timeout_s=timeout_s)
    from headrace.client.model_server_rest import RestServerClient  # noqa: PLC0415

    path = parts.path.rstrip("/").removesuffix("/v2")
    return RestServerClient(f"{parts.scheme}://{parts.netloc}{path}", api_key=key, timeout_s=timeout_s)


def _parse_url(url: str) -> SplitResult:
    text = url.strip()
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        _ = parts.port
    except ValueError as error:
        raise ConfigError(f"{url!r} is not a valid URL: {error}") from None
    if parts.scheme not in ("http", "https", "grpc", "grpcs") or not parts.hostname:
        raise ConfigError(f"{url!r} is not the URL of a server: write {_URL_EXAMPLES}")
    if parts.username is not None or parts.password is not None:
        raise ConfigError(f"the URL of {parts.hostname} contains credentials: set {API_KEY_VARIABLE} instead")
    if parts.query or parts.fragment or "/v2/models" in parts.path:
        raise ConfigError(
            f"{url!r} must be the server's root URL, without a model or a query: write {_URL_EXAMPLES}"
        )
    if parts.scheme.startswith("grpc") and parts.port is None:
        raise ConfigError(f"{url!r} has no port: write it as {parts.scheme}://{parts.hostname}:8081")
    return parts


def _api_key(explicit_key: str | None, environ: Mapping[str, str]) -> str | None:
    key = (environ.get(API_KEY_VARIABLE, "") if explicit_key is None else explicit_key).strip()
    if not key:
        return None
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise ConfigError(f"the API key contains spaces or non-ASCII characters: check {API_KEY_VARIABLE}")
    return key
