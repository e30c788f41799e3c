"""Streams and runs: stores, predictors and pipelines, joined."""

import asyncio
import hashlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import inf
from types import TracebackType
from typing import Any, Final

from headrace.core.clock import SystemClock
from headrace.core.errors import ConfigError
from headrace.core.model import Model
from headrace.core.predictor import Predictor
from headrace.engine.engine import Engine
from headrace.pipeline.flow import Flow, open_flow
from headrace.pipeline.ledger import LEDGER_FOLDER
from headrace.pipeline.plan import plan_objects
from headrace.pipeline.report import Report
from headrace.pipeline.run import IfExists, Run
from headrace.pipeline.settings import StreamSettings
from headrace.pipeline.stream import Stream
from headrace.pipeline.watch import Watch
from headrace.runtimes.load import model_factory
from headrace.storage.local import LocalStore
from headrace.storage.resolve import Stores

ModelLike = str | type[Model] | Callable[[], Model] | Predictor
"""A model file or folder, ``file.py``, ``module:Class``; a Model subclass or a function that makes one; or a Predictor."""

_SEQUENCE_LIMITS: Final[Mapping[str, Any]] = {
    "idle_ms": inf,
    "time_ms_max": None,
    "evict_idle_ms": None,
    "live_max": 1 << 31,
    "requests_max": 1 << 31,
    "interleave": False,
}
"""Of an engine that a run has for itself. No state goes by time, since a source may pause for as long as it likes, and how many may
live the pipeline says: it counts them in the order of the source."""


@dataclass(frozen=True, slots=True)
class PredictorOptions:
    """How many instances of a model here, or how an endpoint elsewhere is asked.

    `model_options` are for the runtime or class that a model's name leads to, such as ``{"method": "predict_proba"}``.
    """

    instances: int = 1
    protocol: str = "auto"
    endpoint_model: str | None = None
    in_flight_max: int = 16
    timeout_s: float = 60.0
    retry_s: float = 120.0
    model_options: Mapping[str, Any] | None = None


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
    if options.model_options and not isinstance(model, str):
        raise ConfigError("model_options are for a model that is named by its file, folder or class")
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


def _opened_for(
    model: ModelLike | None,
    endpoint: str | None,
    options: PredictorOptions | None,
    settings: StreamSettings | None,
) -> OpenedPredictor:
    """What a stream or run asks. Raises ConfigError for sequences at an endpoint.

    What is asked there again, since its answer was lost, may have been done already: a step that is done twice makes
    another state.
    """
    if endpoint is not None and settings is not None and settings.mapping.sequence is not None:
        raise ConfigError(
            f"--sequence {settings.mapping.sequence} needs the model itself (--model), not an endpoint: a request whose answer "
            "is lost on the way would be asked again, and its steps be done twice"
        )
    return open_predictor(model, endpoint, options or PredictorOptions())


def see_modules_here() -> None:
    """For ``module:Class``: as ``python -m`` has it, but behind what is installed."""
    if "" not in sys.path:
        sys.path.append("")


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
    """Predictions to the caller: iterate what comes with ``async for`` or ``for``, once.

    ::

        async for outcome in headrace.stream("s3://bucket/day.tar.gz", model="churn.onnx"):
            if outcome.ok:
                ...  # outcome.outputs by name, outcome.record (raw bytes), outcome.position
            else:
                ...  # outcome.position, outcome.why, outcome.raw

    One outcome a record (`Prediction` or `Failure`), in source order. Nothing is read before the first is asked for,
    and no more than the settings' bounds ahead of what was taken: a caller that stops asking stops the source. `Stream.batches`
    gives whole batches with arrays, for callers who cannot afford an object a record.

    Args:
        source: An object, a prefix that ends in ``/``, a glob or ``manifest:URI``, or several of them.
        model: A file (``model.onnx``, ``file.py``, ``file.py:Class``), ``module:Class``, a Model class, or a Predictor.
        endpoint: The URL of a model served elsewhere, instead of `model`.
        settings: How records are read, mapped and batched; `StreamSettings.output` has no meaning here.
        options: Instances, or how an endpoint is asked.
        stores: Where objects are; by default everything that a URI can name, with credentials from the environment.

    Raises:
        ConfigError: At once, for what cannot be; MissingExtraError names the extra to install.
        HeadraceError: While iterating, after all outcomes before: the model does not load or breaks its contract, the
            source is empty, or cannot be reached any more.
    """
    opened = _opened_for(model, endpoint, options, settings)
    used, where = settings or StreamSettings(), stores or Stores()

    def make_flow() -> Flow:
        return open_flow(plan_objects(source, where, used.read), where, opened.predictor, used)

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
        self._tidy()
        self.predictor.start()
        return self.run

    def _tidy(self) -> None:
        """On a disk, killed runs leave temporary files, which nobody lists; old ones go."""
        output = self.run.destination
        store = self.stores.for_uri(output)
        if isinstance(store, LocalStore):
            for folder in (output, f"{output}{LEDGER_FOLDER}/"):
                store.clean(folder)

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
    opened = _opened_for(model, endpoint, options, settings)
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
    """What `run` does, for callers without an event loop; blocks until all is written."""
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
    """Score a source and write the predictions below `output`; returns when all of it is committed.

    ::

        report = await headrace.run("s3://bucket/in/", model="churn.onnx", output="s3://bucket/out/")

    Written are parts (``part-00000.csv``, …) in source order, ``part-*.failed.jsonl`` where records failed, and a
    ledger in ``_headrace/``. Every object appears whole or not at all. Records in = rows out + failed is counted from
    the ledger before this returns; failed records do not raise, see `Report.exit_code`. Cancelling drains, as
    Ctrl-C does the command: what was read is delivered, and ``if_exists="resume"`` goes on.

    Args:
        source: As for `stream`.
        output: A folder or prefix; anything else in it is left alone.
        model: As for `stream`.
        endpoint: As for `stream`.
        settings: How records are read, mapped, batched and written.
        options: As for `stream`.
        if_exists: What to do where a run was written before: "refuse"; "resume", which goes on where it stopped, to
            the same bytes, or returns its report when it is finished; "overwrite", which deletes it first.
        stores: As for `stream`.

    Raises:
        ConfigError: For what cannot be; OutputExistsError when the output is there.
        ResumeRefusedError: The model, the source or the settings are not those of the run to resume.
        HeadraceError: The run broke. What was committed stays, and can be resumed.
    """
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
