"""The composition root: builds stores, predictors and runs, and joins them. It decides nothing."""

import asyncio
import hashlib
import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from headrace.core.clock import SystemClock
from headrace.core.errors import ConfigError
from headrace.core.model import Model
from headrace.core.predictor import Predictor
from headrace.engine.engine import Engine
from headrace.pipeline.flow import Flow
from headrace.pipeline.plan import plan_objects
from headrace.pipeline.report import Report
from headrace.pipeline.run import IfExists, Run
from headrace.pipeline.settings import StreamSettings
from headrace.pipeline.stream import Stream
from headrace.pipeline.watch import Watch
from headrace.runtimes.load import model_factory
from headrace.storage.resolve import Stores

ModelLike = str | type[Model] | Callable[[], Model] | Predictor
"""A model file, ``file.py``, ``module:Class``; a Model subclass or a function that makes one; or a Predictor."""


@dataclass(frozen=True, slots=True)
class PredictorOptions:
    """How many instances of a model here, or how an endpoint elsewhere is asked."""

    instances: int = 1
    protocol: str = "auto"
    endpoint_model: str | None = None
    in_flight_max: int = 16
    timeout_s: float = 60.0
    retry_s: float = 120.0


@dataclass(frozen=True, slots=True)
class OpenedPredictor:
    """A predictor, not started, and what identifies its model to a ledger."""

    predictor: Predictor
    identity: str


def open_predictor(
    model: ModelLike | None, endpoint: str | None, options: PredictorOptions
) -> OpenedPredictor:
    """An engine around a model, or a client of an endpoint; exactly one of both must be given."""
    if (model is None) == (endpoint is None):
        raise ConfigError(
            "give either a model (--model) or an endpoint (--endpoint), not both and not neither"
        )
    if endpoint is not None:
        from headrace.client.endpoint import endpoint_predictor  # noqa: PLC0415 - an extra

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
        source = model_factory(model)
        engine = Engine(
            source.make, name=source.name, instances=options.instances, fingerprint=source.fingerprint
        )
        return OpenedPredictor(engine, f"{source.name} sha256:{source.fingerprint}")
    if callable(model):
        name = getattr(model, "__name__", type(model).__name__)
        engine = Engine(model, name=name, instances=options.instances)
        return OpenedPredictor(engine, f"{name} sha256:{_code_fingerprint(model)}")
    assert model is not None
    return OpenedPredictor(model, getattr(model, "name", type(model).__name__))


def _code_fingerprint(code: Callable[..., Any]) -> str:
    """The sha256 of a class's or function's source; of its name where there is no source to read."""
    try:
        text = inspect.getsource(code)
    except (OSError, TypeError):
        text = repr(getattr(code, "__qualname__", type(code)))
    return hashlib.sha256(text.encode()).hexdigest()


def stream(
    source: str | Sequence[str],
    *,
    model: ModelLike | None = None,
    endpoint: str | None = None,
    settings: StreamSettings | None = None,
    options: PredictorOptions | None = None,
    stores: Stores | None = None,
) -> Stream:
    """See `headrace.stream`."""
    opened = open_predictor(model, endpoint, options or PredictorOptions())
    used, where = settings or StreamSettings(), stores or Stores()

    def make_flow() -> Flow:
        return Flow(plan_objects(source, where, used.read), where, opened.predictor, used)

    return Stream(make_flow, opened.predictor)


@dataclass(frozen=True, slots=True)
class OpenedRun:
    """A run and what it runs on. As a context manager it starts the predictor, and stops it whatever happens.

    ::

        with headrace.open_run("s3://in/", model="m.onnx", output="s3://out/", if_exists="resume") as run:
            for notice in notices:
                report = run.append_notice(notice)
    """

    run: Run
    predictor: Predictor
    stores: Stores

    def __enter__(self) -> Run:
        self.predictor.start()
        return self.run

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.predictor.stop(drain=False)


def open_run(
    source: str | Sequence[str],
    *,
    output: str,
    model: ModelLike | None = None,
    endpoint: str | None = None,
    settings: StreamSettings | None = None,
    options: PredictorOptions | None = None,
    if_exists: IfExists = "refuse",
    stores: Stores | None = None,
) -> OpenedRun:
    """Put a run together, without starting anything: for what is done step by step, such as event notices.

    Enter what comes to get the run, then call `Run.append_notice` for every notice, or `Run.execute` once. Raises
    ConfigError for what cannot be.
    """
    opened = open_predictor(model, endpoint, options or PredictorOptions())
    where = stores or Stores()
    run = Run(
        source,
        output,
        stores=where,
        predictor=opened.predictor,
        settings=settings or StreamSettings(),
        model_identity=opened.identity,
        if_exists=if_exists,
    )
    return OpenedRun(run, opened.predictor, where)


def run_sync(
    source: str | Sequence[str],
    *,
    output: str,
    model: ModelLike | None = None,
    endpoint: str | None = None,
    settings: StreamSettings | None = None,
    options: PredictorOptions | None = None,
    if_exists: IfExists = "refuse",
    stores: Stores | None = None,
) -> Report:
    """See `headrace.run_sync`."""
    opened = open_run(
        source,
        output=output,
        model=model,
        endpoint=endpoint,
        settings=settings,
        options=options,
        if_exists=if_exists,
        stores=stores,
    )
    return execute(opened)


def execute(opened: OpenedRun, around: AbstractContextManager[Any] | None = None) -> Report:
    """Start the predictor, run, and stop it whatever happens; `around` is entered while it runs."""
    with opened as run, around or nullcontext():
        return run.execute()


async def run(
    source: str | Sequence[str],
    *,
    output: str,
    model: ModelLike | None = None,
    endpoint: str | None = None,
    settings: StreamSettings | None = None,
    options: PredictorOptions | None = None,
    if_exists: IfExists = "refuse",
    stores: Stores | None = None,
) -> Report:
    """See `headrace.run`. Cancelling drains: the ledger is left resumable."""
    opened = open_run(
        source,
        output=output,
        model=model,
        endpoint=endpoint,
        settings=settings,
        options=options,
        if_exists=if_exists,
        stores=stores,
    )
    working = asyncio.ensure_future(asyncio.to_thread(execute, opened))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        opened.run.drain()
        await asyncio.wait([working])
        raise


def open_watch(opened: OpenedRun, *, poll_s: float) -> Watch:
    """A watch over the run's source; `serve` it with the predictor started."""
    return Watch(opened.run, opened.stores, poll_s=poll_s, clock=SystemClock())
