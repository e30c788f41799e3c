"""Build streams and runs from stores, predictors and the pipeline."""

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

from headrace.app.renamed import accepts_old_names
from headrace.core.clock import SystemClock
from headrace.core.errors import ConfigError
from headrace.core.model import Model
from headrace.core.predictor import Predictor
from headrace.engine.engine import Engine
from headrace.runs.destination import check_folder
from headrace.runs.flow import Flow, open_flow
from headrace.runs.objects import plan_objects
from headrace.runs.part_ledger import LEDGER_FOLDER
from headrace.runs.settings import StreamSettings
from headrace.runs.stream import Stream
from headrace.runs.stream_report import Report
from headrace.runs.stream_run import IfExists, Run
from headrace.runs.watch import SourceWatcher
from headrace.runtimes.load import model_factory
from headrace.storage.local import LocalStore
from headrace.storage.resolve import Stores

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

    instances: int = 1
    protocol: str = "auto"
    endpoint_model: str | None = None
    in_flight_max: int = 16
    timeout_s: float = 60.0
    retry_s: float = 120.0
    model_options: Mapping[str, Any] | None = None


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


def _open_run_predictor(
    model: ModelLike | None,
    endpoint: str | None,
    options: PredictorOptions | None,
    settings: StreamSettings | None,
) -> OpenedPredictor:
    """Return the predictor of a stream or run. Raise ConfigError for sequences at an endpoint.

    A request whose response is lost is sent again. Its steps would then change their states twice.
    """
    if endpoint is not None and settings is not None and settings.mapping.sequence is not None:
        raise ConfigError(
            f"--sequence {settings.mapping.sequence} needs the model itself (--model), not an endpoint: "
            "a request whose response is lost would be sent again and repeat its steps"
        )
    return open_predictor(model, endpoint, options or PredictorOptions())


def add_current_folder_to_path() -> None:
    """Make modules of the current directory importable, after all installed modules.

    ``module:Class`` then works as with ``python -m``.
    """
    if "" not in sys.path:
        sys.path.append("")


def _code_fingerprint(code: Callable[..., Any]) -> str:
    """Return the SHA-256 of the source of a class or function.

    Without a source, hash the qualified name.
    """
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
    """Return the predictions for a source as a stream, to be iterated once.

    ::

        async for outcome in headrace.stream("s3://bucket/day.tar.gz", model="churn.onnx"):
            if outcome.ok:
                ...  # outcome.outputs by name, outcome.record (raw bytes), outcome.position
            else:
                ...  # outcome.position, outcome.why, outcome.raw

    Iterate with ``async for`` or ``for``. Each record yields one outcome (`Prediction` or
    `Failure`), in source order. The source is read from the first iteration on, and only as far
    ahead as the settings allow: a consumer that stops iterating stops the source. `Stream.batches`
    yields whole batches with arrays, without an object for each record.

    Args:
        source: An object, a prefix that ends in ``/``, a glob or ``manifest:URI``, or several of them.
        model: A file (``model.onnx``, ``file.py``, ``file.py:Class``), ``module:Class``, a Model class,
            or a Predictor.
        endpoint: The URL of a served model, instead of `model`.
        settings: Reading, mapping and batching of records; `StreamSettings.output` is ignored.
        options: Model instances, or the protocol and limits of an endpoint.
        stores: The object stores. By default all URI schemes, with credentials from the environment.

    Raises:
        ConfigError: At once, for invalid arguments; MissingExtraError names the extra to install.
        HeadraceError: While iterating, after all earlier outcomes: the model does not load or breaks its
            contract, or the source is empty or no longer reachable.
    """
    opened = _open_run_predictor(model, endpoint, options, settings)
    chosen_settings, chosen_stores = settings or StreamSettings(), stores or Stores()

    def make_flow() -> Flow:
        return open_flow(
            plan_objects(source, chosen_stores, chosen_settings.read),
            chosen_stores,
            opened.predictor,
            chosen_settings,
        )

    return Stream(make_flow, opened.predictor)


@dataclass(frozen=True, slots=True)
class OpenedRun:
    """A run and its predictor. As a context manager it starts the predictor and always stops it.

    ::

        with headrace.open_run("s3://in/", model="m.onnx", output="s3://out/", resume=True) as run:
            for notice in notices:
                report = run.append_notice(notice)
    """

    run: Run
    predictor: Predictor
    stores: Stores

    def __enter__(self) -> Run:
        self._remove_stale_files()
        self.predictor.start()
        return self.run

    def _remove_stale_files(self) -> None:
        """Remove old temporary files of killed runs from a local output; no listing shows them."""
        output = self.run.destination
        store = self.stores.for_uri(output)
        if isinstance(store, LocalStore):
            for folder in (output, f"{output}{LEDGER_FOLDER}/"):
                store.clean(folder)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.predictor.stop(drain=False)


def action_if_exists(*, resume: bool, overwrite: bool) -> IfExists:
    """Return the action for earlier output. Raise ConfigError for both flags."""
    if resume and overwrite:
        raise ConfigError("resume and overwrite cannot be combined: give one of them")
    return "resume" if resume else "overwrite" if overwrite else "refuse"


@accepts_old_names
def open_run(
    source: str | Sequence[str],
    *,
    output: str,
    model: ModelLike | None = None,
    endpoint: str | None = None,
    settings: StreamSettings | None = None,
    options: PredictorOptions | None = None,
    resume: bool = False,
    overwrite: bool = False,
    stores: Stores | None = None,
) -> OpenedRun:
    """Build a run without starting it, for step-by-step use such as event notices.

    Enter the result to get the `Run`. Then call `Run.append_notice` for each notice, or
    `Run.execute` once. Raises ConfigError for invalid arguments.
    """
    if_exists = action_if_exists(resume=resume, overwrite=overwrite)
    chosen_stores, chosen_settings = stores or Stores(), settings or StreamSettings()
    check_folder(output, chosen_stores, chosen_settings)
    opened = _open_run_predictor(model, endpoint, options, settings)
    run = Run(
        source,
        output,
        stores=chosen_stores,
        predictor=opened.predictor,
        settings=chosen_settings,
        model_identity=opened.identity,
        if_exists=if_exists,
    )
    return OpenedRun(run, opened.predictor, chosen_stores)


@accepts_old_names
def run_sync(
    source: str | Sequence[str],
    *,
    output: str,
    model: ModelLike | None = None,
    endpoint: str | None = None,
    settings: StreamSettings | None = None,
    options: PredictorOptions | None = None,
    resume: bool = False,
    overwrite: bool = False,
    stores: Stores | None = None,
) -> Report:
    """Run `run` for callers without an event loop; block until all predictions are committed."""
    opened = open_run(
        source,
        output=output,
        model=model,
        endpoint=endpoint,
        settings=settings,
        options=options,
        resume=resume,
        overwrite=overwrite,
        stores=stores,
    )
    return execute(opened)


def execute(opened: OpenedRun, around: AbstractContextManager[Any] | None = None) -> Report:
    """Start the predictor, execute the run and stop the predictor.

    The context manager `around` is entered meanwhile.
    """
    with opened as run, around or nullcontext():
        return run.execute()


@accepts_old_names
async def run(
    source: str | Sequence[str],
    *,
    output: str,
    model: ModelLike | None = None,
    endpoint: str | None = None,
    settings: StreamSettings | None = None,
    options: PredictorOptions | None = None,
    resume: bool = False,
    overwrite: bool = False,
    stores: Stores | None = None,
) -> Report:
    """Score a source and write the predictions below `output`.

    ::

        report = await headrace.run("s3://bucket/in/", model="churn.onnx", output="s3://bucket/out/")

    Returns when all predictions are committed. A run writes parts (``part-00000.csv``, …) in source
    order, ``part-*.failed.jsonl`` for failed records, and a ledger in ``_headrace/``. Every object
    appears whole or not at all. Before `run` returns, it checks from the ledger that records in =
    rows out + failed. Failed records do not raise an error; see `Report.exit_code`. Cancellation
    drains, as Ctrl-C does for the command: records that were read are delivered, and
    ``resume=True`` continues the run.

    Args:
        source: As for `stream`.
        output: A folder or prefix. Other objects in it are not changed. The name of a file, such as
            ``out.csv``, is refused unless it is an existing folder or ends in ``/``.
        model: As for `stream`.
        endpoint: As for `stream`.
        settings: Reading, mapping, batching and writing of records.
        options: As for `stream`.
        resume: Continue an earlier run at the output to identical bytes, or return the report of a
            finished run. Without `resume` and `overwrite`, an earlier run is an error.
        overwrite: Delete an earlier run at the output first.
        stores: As for `stream`.

    Raises:
        ConfigError: Invalid arguments; OutputExistsError if the output holds a run.
        ResumeRefusedError: The model, source or settings differ from those of the run to resume.
        HeadraceError: The run failed. Committed parts stay, and the run can be resumed.
    """
    opened = open_run(
        source,
        output=output,
        model=model,
        endpoint=endpoint,
        settings=settings,
        options=options,
        resume=resume,
        overwrite=overwrite,
        stores=stores,
    )
    execution = asyncio.ensure_future(asyncio.to_thread(execute, opened))
    try:
        return await asyncio.shield(execution)
    except asyncio.CancelledError:
        opened.run.drain()
        await asyncio.wait([execution])
        raise


def open_watch(opened: OpenedRun, *, poll_s: float) -> SourceWatcher:
    """Return a watch over the run's source. Start the predictor before `SourceWatcher.serve`."""
    return SourceWatcher(opened.run, opened.stores, poll_s=poll_s, clock=SystemClock())
