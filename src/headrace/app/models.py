"""Open models: as the repository of a server, the predictor of a run, or a client of a running server."""

import hashlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import SplitResult, urlsplit

from headrace.client.model_server import ModelServerClient
from headrace.config.model_file import (
    MODEL_FILE,
    ModelsFolder,
    definition_of,
    is_models_folder,
    read_definition,
)
from headrace.core.errors import ConfigError
from headrace.core.model import Model
from headrace.core.predictor import Predictor
from headrace.core.settings import Setting, check
from headrace.engine.engine import Engine
from headrace.engine.repository import FindDefinitions, ModelDefinition, ModelRepository
from headrace.engine.settings import ServeSettings
from headrace.runs.document import IN_FLIGHT_MAX, REQUEST_TIMEOUT_S
from headrace.runs.settings import RunSettings
from headrace.runtimes.load import model_factory

API_KEY_VARIABLE: Final = "HEADRACE_API_KEY"
DEFAULT_URL: Final = "http://localhost:8080"
_URL_EXAMPLES: Final = "http://host:8080, https://host, grpc://host:8081 or grpcs://host:443"

ServedModel = str | type[Model] | Callable[[], Model]
"""A class or factory, or a name: a model file, ``file.py:Class``, ``module:Class`` or a models folder.

A name may have the prefix ``NAME=``.
"""


def open_repository(
    models: Sequence[ServedModel], settings: ServeSettings, model_options: Mapping[str, Any] | None = None
) -> tuple[ModelRepository, bool]:
    """Return the models, and True if they can be loaded and unloaded at run time.

    Only the models of a models folder can.
    """
    definitions: list[ModelDefinition] = []
    find: FindDefinitions | None = None
    for model in models:
        if isinstance(model, str) and is_models_folder(Path(model)):
            path = Path(model)
            if (path / MODEL_FILE).is_file():
                definitions.append(read_definition(path / MODEL_FILE))
                continue
            if find is not None:
                raise ConfigError(f"{model} is a second models folder: put all models into one folder")
            folder = ModelsFolder(path)
            definitions += folder.all()
            find = folder.find
        elif isinstance(model, str):
            definitions.append(definition_of(model, settings, model_options))
        else:
            name = getattr(model, "__name__", type(model).__name__)
            if not name.isidentifier():
                raise ConfigError(f"{model!r} has no name for its URL: give a class or a named function")
            definitions.append(ModelDefinition(name, "1", model, settings=settings))
    if not definitions:
        raise ConfigError("no model to serve: name a model or a folder of models")
    return ModelRepository(definitions, find=find), find is not None


ModelLike = str | type[Model] | Callable[[], Model] | Predictor
"""A model file or folder, ``file.py`` or ``module:Class``; a Model subclass or factory; or a Predictor."""


@dataclass(frozen=True, slots=True)
class PredictorOptions:
    """The number of model instances, or the protocol and limits of requests to an endpoint.

    `model_options` go to the model's runtime or class, for example ``{"method": "predict_proba"}``.
    """

    instances: Annotated[int, Setting("Number of model instances, each in a thread.", least=1)] = 1
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


@dataclass(frozen=True, slots=True)
class OpenedPredictor:
    """A predictor that is not started, and the model identity that ledgers record."""

    predictor: Predictor
    identity: str


def open_predictor(
    model: ModelLike | None,
    endpoint: str | None,
    options: PredictorOptions,
    *,
    finds_broken_model: bool = False,
) -> OpenedPredictor:
    """Return an engine for a model, or a client for an endpoint. Exactly one of both must be given.

    `finds_broken_model` is the engine's.
    """
    if (model is None) == (endpoint is None):
        raise ConfigError("give either a model (--model) or an endpoint (--endpoint)")
    if options.model_options and not isinstance(model, str):
        raise ConfigError("model_options need a model that is named by its file, folder or class")
    if endpoint is not None:
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
    if isinstance(model, str):
        source = model_factory(model, options.model_options)
        engine = Engine(
            source.make,
            name=source.name,
            instances=options.instances,
            fingerprint=source.fingerprint,
            sequences=_SEQUENCE_LIMITS,
            finds_broken_model=finds_broken_model,
        )
        return OpenedPredictor(engine, f"{source.name} sha256:{source.fingerprint}")
    if callable(model):
        name = getattr(model, "__name__", type(model).__name__)
        engine = Engine(
            model,
            name=name,
            instances=options.instances,
            sequences=_SEQUENCE_LIMITS,
            finds_broken_model=finds_broken_model,
        )
        return OpenedPredictor(engine, f"{name} sha256:{_code_fingerprint(model)}")
    assert model is not None
    return OpenedPredictor(model, getattr(model, "name", type(model).__name__))


def open_run_predictor(
    model: ModelLike | None,
    endpoint: str | None,
    options: PredictorOptions | None,
    settings: RunSettings | None,
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
    name = model if isinstance(model, str) else None
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


def _code_fingerprint(code: Callable[..., Any]) -> str:
    """Return the SHA-256 of the source of a class or function.

    Without a source, hash the qualified name.
    """
    try:
        text = inspect.getsource(code)
    except (OSError, TypeError):
        text = repr(getattr(code, "__qualname__", type(code)))
    return hashlib.sha256(text.encode()).hexdigest()


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
