"""Open the predictor of a run or stream: an engine for a model, or a client for an endpoint."""

import hashlib
import inspect
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from math import inf
from typing import Annotated, Any, Final, Literal

from headrace.core.errors import ConfigError
from headrace.core.model import Model
from headrace.core.predictor import Predictor
from headrace.core.settings import Setting, check
from headrace.engine.engine import Engine
from headrace.runs.document import IN_FLIGHT_MAX, REQUEST_TIMEOUT_S
from headrace.runtimes.load import model_factory

ModelLike = str | type[Model] | Callable[[], Model] | Predictor
"""A model file or folder, ``file.py`` or ``module:Class``; a Model subclass or factory; or a Predictor."""

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


@dataclass(frozen=True, slots=True)
class OpenedPredictor:
    """A predictor that is not started, and the model identity that ledgers record."""

    predictor: Predictor
    identity: str


def open_predictor(
    model: ModelLike | None, endpoint: str | None, options: PredictorOptions
) -> OpenedPredictor:
    """Return an engine for a model, or a client for an endpoint. Exactly one of both must be given."""
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
        )
        return OpenedPredictor(engine, f"{source.name} sha256:{source.fingerprint}")
    if callable(model):
        name = getattr(model, "__name__", type(model).__name__)
        engine = Engine(model, name=name, instances=options.instances, sequences=_SEQUENCE_LIMITS)
        return OpenedPredictor(engine, f"{name} sha256:{_code_fingerprint(model)}")
    assert model is not None
    return OpenedPredictor(model, getattr(model, "name", type(model).__name__))


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


def _code_fingerprint(code: Callable[..., Any]) -> str:
    """Return the SHA-256 of the source of a class or function.

    Without a source, hash the qualified name.
    """
    try:
        text = inspect.getsource(code)
    except (OSError, TypeError):
        text = repr(getattr(code, "__qualname__", type(code)))
    return hashlib.sha256(text.encode()).hexdigest()
