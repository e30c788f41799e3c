"""Build and execute runs and transforms from stores, predictors, runners and the ledger."""

import asyncio
import warnings
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import wraps
from inspect import signature, unwrap
from types import TracebackType
from typing import Any, Literal, ParamSpec, TypeVar, cast

from headrace.app.models import (
    ModelLike,
    PredictorOptions,
    RunningPredictor,
    model_reference,
    open_predictor,
    open_run_predictor,
)
from headrace.app.runners import AnyWorkers, DataRegions, Workers, instance_options, open_runner
from headrace.app.transform_function import accepts_dataframes
from headrace.core.clock import SystemClock
from headrace.core.errors import ConfigError
from headrace.core.predictor import Predictor
from headrace.reports.observation import RunObservation
from headrace.reports.report import Report
from headrace.runs.ledger import Ledger
from headrace.runs.limit import limit_objects
from headrace.runs.objects import check_separate, no_region, output_names, plan_objects, select_infos
from headrace.runs.open_table import is_table, open_table
from headrace.runs.output_settings import OutputFormat, OutputSettings
from headrace.runs.parts import check_folder
from headrace.runs.plan import Plan
from headrace.runs.plan_pages import make_plan
from headrace.runs.records import LEDGER_FOLDER
from headrace.runs.retried_run import finished_identity
from headrace.runs.retry import FailedRecordsRetry
from headrace.runs.run import IfExists, Run, SourceWatcher
from headrace.runs.sample import Trial, schema_of, try_records
from headrace.runs.settings import RunSettings, StreamSettings, TransformSettings
from headrace.runs.table_output import TableOutput
from headrace.storage.local import LocalStore
from headrace.storage.resolve import Stores

ReportFormat = Literal["html"]
"""The format of an additional report, besides ``_report.json``."""
P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class OpenedRun:
    """A run and its predictor or runner. As a context manager it starts them and always stops them.

    ::

        with headrace.open_run("s3://in/", model="m.onnx", output="s3://out/", resume=True) as run:
            for notice in notices:
                report = run.append_notice(notice)
    """

    run: Run
    around: AbstractContextManager[Any]
    stores: Stores
    retry_changed: Callable[[], Report | None]
    """Score the broken objects of a finished transform that have changed; None if there are none."""

    def __enter__(self) -> Run:
        output = self.run.destination
        store = self.stores.for_uri(output)
        if isinstance(store, LocalStore):
            # Killed runs leave temporary files, which no listing shows.
            for folder in (output, f"{output}{LEDGER_FOLDER}/"):
                store.clean(folder)
        self.around.__enter__()
        return self.run

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.around.__exit__(kind, error, trace)


def _accepts_old_names(function: F) -> F:
    """Make a function accept ``if_exists`` for `resume` and `overwrite`, and ``page`` for `report`."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if "if_exists" in kwargs:
            _warn("if_exists", "resume=True or overwrite=True")
            kwargs |= _flags(kwargs.pop("if_exists"))
        if "page" in kwargs:
            _warn("page", 'report="html"')
            kwargs["report"] = "html" if kwargs.pop("page") else None
        return function(*args, **kwargs)

    return cast("F", call)


def _warn(old: str, new: str) -> None:
    # Attribute the warning to the caller of the public function.
    warnings.warn(f"the argument {old} is deprecated: use {new}", DeprecationWarning, stacklevel=3)


def _flags(if_exists: Any) -> dict[str, bool]:
    if if_exists not in ("refuse", "resume", "overwrite"):
        raise ConfigError(f"if_exists must be refuse, resume or overwrite, not {if_exists!r}")
    return {"resume": if_exists == "resume", "overwrite": if_exists == "overwrite"}


@_accepts_old_names
def open_run(
    source: str | Sequence[str],
    *,
    output: str,
    model: ModelLike | None = None,
    endpoint: str | None = None,
    settings: RunSettings | None = None,
    options: PredictorOptions | None = None,
    workers: AnyWorkers | None = None,
    regions: DataRegions | None = None,
    resume: bool = False,
    overwrite: bool = False,
    stores: Stores | None = None,
    report: ReportFormat | None = None,
) -> OpenedRun:
    """Build a run without starting it, for step-by-step use such as event notices.

    The settings select a stream (`StreamSettings`, the default) or a transform
    (`TransformSettings`). Enter the result to get the `Run`. Then call `Run.append_notice` for each
    notice, or `Run.execute` once. Raises ConfigError for invalid arguments.
    """
    if_exists = _if_exists(resume=resume, overwrite=overwrite)
    chosen_stores, chosen_settings = stores or Stores(), settings or StreamSettings()
    chosen_options = options or PredictorOptions()
    table = None
    if is_table(output):
        opened_table = open_table(output, chosen_stores)
        table = TableOutput(opened_table, source, chosen_stores, resume=resume, overwrite=overwrite)
        output, chosen_settings = table.destination, table.settings(chosen_settings)
        if_exists = _if_exists(resume=table.resumes, overwrite=False)
    if not chosen_settings.per_object:
        check_folder(output, chosen_stores, chosen_settings)
        if workers is None and regions is not None:
            raise ConfigError("regions need workers: a stream without workers reads its source in order")
    elif workers is None:
        workers = Workers()
    if workers is not None:
        chosen_options = instance_options(workers, chosen_options)
    opened = open_run_predictor(model, endpoint, chosen_options, chosen_settings, chosen_stores)
    runner, region_of = None, no_region
    around: AbstractContextManager[Any] = RunningPredictor(opened.predictor)
    if workers is not None:
        chosen_regions = regions or DataRegions()
        runner, around = open_runner(
            workers,
            opened,
            destination=output,
            model=model,
            endpoint=endpoint,
            settings=chosen_settings,
            options=chosen_options,
            stores=chosen_stores,
            locality=chosen_regions.locality,
        )
        region_of = chosen_regions.region_of(chosen_stores)
    run = Run(
        source,
        output,
        stores=chosen_stores,
        predictor=opened.predictor if runner is None else None,
        runner=runner,
        settings=chosen_settings,
        model_identity=opened.identity,
        if_exists=if_exists,
        model_reference=model_reference(model, endpoint, chosen_options),
        observation=RunObservation() if report == "html" else None,
        region_of=region_of,
        table=table,
    )

    def retry_changed() -> Report | None:
        # The files of a table do not change after their commit.
        if not chosen_settings.per_object or table is not None:
            return None
        again = open_predictor(model, endpoint, chosen_options, chosen_stores)
        retry = FailedRecordsRetry(
            run.destination,
            stores=chosen_stores,
            predictor=again.predictor,
            model_identity=again.identity,
            only_changed=True,
            write_page=report == "html",
        )
        if not retry.has_changed_objects():
            return None
        with RunningPredictor(again.predictor):
            return retry.execute()

    return OpenedRun(run, around, chosen_stores, retry_changed)


def _if_exists(*, resume: bool, overwrite: bool) -> IfExists:
    """Return the action for an existing run. Raise ConfigError for both flags."""
    if resume and overwrite:
        raise ConfigError("resume and overwrite cannot be combined: give one of them")
    return "resume" if resume else "overwrite" if overwrite else "refuse"


def execute(opened: OpenedRun, around: AbstractContextManager[Any] | None = None) -> Report:
    """Load the model, execute the run and unload the model.

    If the run is a finished transform, its broken objects are scored if they have changed since. The
    context manager `around` is entered meanwhile.
    """
    with opened as run, around or nullcontext():
        report = run.execute()
    retried = opened.retry_changed() if run.was_finished and report.objects_broken else None
    return retried or report


def _executed(open_it: Callable[P, OpenedRun]) -> Callable[P, Coroutine[Any, Any, Report]]:
    """Return an async function that opens a run and executes it in a thread. A cancellation drains it."""

    @wraps(open_it)
    async def call(*args: P.args, **kwargs: P.kwargs) -> Report:
        opened = open_it(*args, **kwargs)
        execution = asyncio.ensure_future(asyncio.to_thread(execute, opened))
        try:
            return await asyncio.shield(execution)
        except asyncio.CancelledError:
            opened.run.drain()
            await asyncio.wait([execution])
            raise

    return _returns_report(call)


def _blocking(function: Callable[P, Coroutine[Any, Any, Report]]) -> Callable[P, Report]:
    """Return a function of `_executed` for callers without an event loop. It has the same arguments."""
    open_it: Callable[P, OpenedRun] = unwrap(function)

    @wraps(open_it)
    def call(*args: P.args, **kwargs: P.kwargs) -> Report:
        return execute(open_it(*args, **kwargs))

    name = open_it.__name__
    call.__name__ = call.__qualname__ = f"{name}_sync"
    call.__doc__ = f"Run `{name}` for callers without an event loop; block until everything is committed."
    return _returns_report(call)


def _returns_report(function: Callable[P, R]) -> Callable[P, R]:
    """Show the return type of the function instead of that of the wrapped one, for ``help``."""
    shown: Any = function
    shown.__signature__ = signature(function).replace(return_annotation=Report)
    return function


@_accepts_old_names
@_executed
def run(
    source: str | Sequence[str],
    *,
    output: str,
    model: ModelLike | None = None,
    endpoint: str | None = None,
    settings: StreamSettings | None = None,
    options: PredictorOptions | None = None,
    workers: AnyWorkers | None = None,
    regions: DataRegions | None = None,
    resume: bool = False,
    overwrite: bool = False,
    stores: Stores | None = None,
    report: ReportFormat | None = None,
) -> OpenedRun:
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
        workers: Workers in threads or processes, or `RayWorkers` or `BeamWorkers`. Each worker writes the
            parts of its tasks. Without them, the parts follow the order of the source.
        regions: As for `transform`; needs workers.
        resume: Continue an earlier run at the output to identical bytes, or return the report of a
            finished run. Without `resume` and `overwrite`, an earlier run is an error.
        overwrite: Delete an earlier run at the output first.
        stores: As for `stream`.
        report: "html" also writes ``_report.html``: a summary with plots of throughput and predictions.

    Raises:
        ConfigError: Invalid arguments; OutputExistsError if the output holds a run.
        ResumeRefusedError: The model, source or settings differ from those of the run to resume.
        TooManyFailuresError: More records failed than `StreamSettings.failures` allows.
        BrokenModelError: The model raised the same exception for every row of its first batches, and
            `StreamSettings.failures` sets no `on_error`.
        HeadraceError: The run failed. Committed parts stay, and the run can be resumed.
    """
    return open_run(
        source,
        output=output,
        model=model,
        endpoint=endpoint,
        settings=settings,
        options=options,
        workers=workers,
        regions=regions,
        resume=resume,
        overwrite=overwrite,
        stores=stores,
        report=report,
    )


@_accepts_old_names
@accepts_dataframes
@_executed
def transform(
    source: str | Sequence[str],
    destination: str,
    *,
    model: ModelLike | None = None,
    endpoint: str | None = None,
    settings: TransformSettings | None = None,
    options: PredictorOptions | None = None,
    workers: AnyWorkers | None = None,
    regions: DataRegions | None = None,
    resume: bool = False,
    overwrite: bool = False,
    stores: Stores | None = None,
    report: ReportFormat | None = None,
) -> OpenedRun:
    """Score every object of a source and write one predictions file for each of them.

    ::

        report = await headrace.transform("s3://bucket/in/", "s3://bucket/out/", model="churn.onnx")
        frame = headrace.transform(frame, model="churn.onnx")

    The second form takes a table of pandas, polars or pyarrow, or a Hugging Face dataset. It returns the
    same kind with the outputs as new columns, without ``await``: see docs/dataframes.md. The text below is
    about objects.

    The object ``in/day/a.csv`` becomes ``out/day/a.csv.out``, with its records in order. Failed
    records go to ``out/day/a.csv.out.failed`` with position, reason and bytes. Outputs appear whole
    or not at all.

    Before `transform` returns, it checks from the ledger in ``out/_headrace/`` that, for every
    object and for the run, records in = rows out + failed (+ suppressed). Failed records do not
    raise an error; see `Report.exit_code`. Cancellation drains, as Ctrl-C does for the
    command: finished tasks stay, and ``resume=True`` continues the run.

    Args:
        source: An object, a prefix that ends in ``/``, a glob or ``manifest:URI``, or several of them.
        destination: A folder or prefix outside the source. Other objects in it are not changed.
        model: As for `stream`. Workers outside this process need the name of a model, no class or object.
        endpoint: The URL of a served model, instead of `model`.
        settings: Reading, splitting, mapping, batching and writing of objects, and the failure policy.
        options: The protocol and limits of an endpoint, or the model's own options.
        workers: The number of instances in threads or processes; or `RayWorkers` or `BeamWorkers`, which
            send the tasks to other machines.
        regions: The regions of data and workers. By default regions are ignored.
        resume: Continue an earlier transform at the destination to identical bytes, or return the
            report of a finished one. Without `resume` and `overwrite`, an earlier transform is an error.
        overwrite: Delete an earlier transform at the destination first.
        stores: The object stores. By default all URI schemes, with credentials from the environment.
        report: "html" also writes ``_report.html``: a summary with plots of throughput and predictions.

    Raises:
        ConfigError: Invalid arguments; OutputExistsError if the destination holds a transform.
        ResumeRefusedError: The model, source or settings differ from those of the transform to resume.
        TooManyFailuresError: More records failed than `TransformSettings.failures` allows.
        BrokenModelError: The model raised the same exception for every row of its first batches, and
            `TransformSettings.failures` sets no `on_error`.
        HeadraceError: The run failed. Committed outputs stay, and the run can be resumed.
    """
    return open_run(
        source,
        output=destination,
        model=model,
        endpoint=endpoint,
        settings=settings or TransformSettings(),
        options=options,
        workers=workers,
        regions=regions,
        resume=resume,
        overwrite=overwrite,
        stores=stores,
        report=report,
    )


run_sync = _accepts_old_names(_blocking(run))
transform_sync = _accepts_old_names(accepts_dataframes(_blocking(transform)))


def open_watch(opened: OpenedRun, *, poll_s: float) -> SourceWatcher:
    """Return a watch over the run's source. Start the predictor before `SourceWatcher.serve`."""
    return SourceWatcher(opened.run, poll_s=poll_s, clock=SystemClock())


def retry_failed(
    destination: str,
    *,
    model: ModelLike | None = None,
    endpoint: str | None = None,
    options: PredictorOptions | None = None,
    other_model: bool = False,
    schema: str | None = None,
    stores: Stores | None = None,
    report: ReportFormat | None = None,
    around: Callable[[FailedRecordsRetry, Predictor], AbstractContextManager[Any]] | None = None,
) -> Report:
    """Retry the failed records of a finished run and merge the results into its outputs.

    Blocks until the outputs are committed. Without `model` and `endpoint`, the run's own
    model is opened again by its name and options; `options` replace the recorded ones, and its
    `model_options` each by its name. A different model is refused unless `other_model` is true. `schema`
    is a file with a schema that replaces the run's: records that failed because of it are predicted.
    An existing page is written again if a count changed; with `report` "html", a page is written in any case.
    The context manager that `around` returns is entered meanwhile. Raises as
    `FailedRecordsRetry.execute` does.
    """
    if is_table(destination):
        raise ConfigError(
            f"{destination}: failed records of a table cannot be retried, because its files do not change: "
            "score the repaired objects in a new run"
        )
    chosen_stores = stores or Stores()
    folder = destination.rstrip("/") + "/"
    if model is None and endpoint is None:
        identity = finished_identity(Ledger(chosen_stores.for_uri(folder), folder))
        made: Mapping[str, Any] = identity.get("made_with") or {}
        model, endpoint = made.get("model"), made.get("endpoint")
        if model is None and endpoint is None:
            raise ConfigError(f"{folder}: the ledger does not name the run's model: give it again")
        recorded: Mapping[str, Any] = made.get("options") or {}
        options = _replaced_options(PredictorOptions(**recorded), options)
    opened = open_predictor(model, endpoint, options or PredictorOptions(), chosen_stores)
    retry = FailedRecordsRetry(
        folder,
        stores=chosen_stores,
        predictor=opened.predictor,
        model_identity=opened.identity,
        other_model=other_model,
        schema=schema,
        write_page=report == "html",
    )
    with RunningPredictor(opened.predictor), around(retry, opened.predictor) if around else nullcontext():
        return retry.execute()


def _replaced_options(recorded: PredictorOptions, given: PredictorOptions | None) -> PredictorOptions:
    """Return the given options of a retry with the model's recorded options that they do not replace."""
    if given is None:
        return recorded
    merged = {**(recorded.model_options or {}), **(given.model_options or {})}
    return replace(given, model_options=merged or None)


@dataclass(frozen=True, slots=True)
class DryRun:
    """The plan of a run, the schema of its records, and what the model would receive of a sample."""

    plan: Plan
    trial: Trial


def dry_run(
    source: str | Sequence[str],
    destination: str,
    *,
    model: ModelLike | None = None,
    endpoint: str | None = None,
    settings: RunSettings | None = None,
    options: PredictorOptions | None = None,
    workers: AnyWorkers | None = None,
    stores: Stores | None = None,
    records: int = 3,
) -> DryRun:
    """Read the first records of the source and load the model, but write nothing.

    Raises the errors of `run` and `transform` that occur before the first batch.
    """
    chosen_settings, chosen_stores = settings or TransformSettings(), stores or Stores()
    opened = open_predictor(model, endpoint, options or PredictorOptions(), chosen_stores)
    infos = select_infos(source, chosen_stores, chosen_settings)
    names = output_names(source, infos, chosen_settings) if chosen_settings.per_object else None
    objects = plan_objects(infos, names)
    check_separate(source, destination, objects, chosen_settings.data_type)
    objects = limit_objects(objects, chosen_stores, chosen_settings)
    with RunningPredictor(opened.predictor):
        metadata, infos = opened.predictor.metadata, [planned.info for planned in objects]
        schema = schema_of(infos, chosen_stores, chosen_settings, metadata)
        shown = min(records, chosen_settings.subset.limit or records)
        trial = try_records(infos, chosen_stores, chosen_settings, metadata, schema, count=shown)
    by_tasks = chosen_settings.per_object or workers is not None
    return DryRun(make_plan([objects], chosen_settings, by_tasks=by_tasks), trial)


def inspect_source(
    source: str | Sequence[str],
    *,
    model: ModelLike | None = None,
    endpoint: str | None = None,
    settings: RunSettings | None = None,
    options: PredictorOptions | None = None,
    stores: Stores | None = None,
    records: int = 3,
) -> Trial:
    """Read a sample of the source, and return its schema and the share of records that decode.

    A model is optional: without one, records are checked against the schema. The trial has the first
    `records` records. Raises the errors of `run` that occur before the first batch.
    """
    chosen_settings, chosen_stores = settings or StreamSettings(), stores or Stores()
    infos = select_infos(source, chosen_stores, chosen_settings)
    if model is None and endpoint is None:
        schema = schema_of(infos, chosen_stores, chosen_settings, None)
        return try_records(infos, chosen_stores, chosen_settings, None, schema, count=records)
    opened = open_predictor(model, endpoint, options or PredictorOptions(), chosen_stores)
    with RunningPredictor(opened.predictor):
        metadata = opened.predictor.metadata
    schema = schema_of(infos, chosen_stores, chosen_settings, metadata)
    return try_records(infos, chosen_stores, chosen_settings, metadata, schema, count=records)


TransformReport = Report
"""The old name of `Report`, for one release."""


class TransformOutput:
    """The old name of `OutputSettings`, with ``accept`` for `format`. A call returns OutputSettings."""

    def __new__(cls, accept: OutputFormat = "auto", **settings: Any) -> OutputSettings:
        """Return the settings, with a deprecation warning."""
        warnings.warn(
            "headrace.TransformOutput is deprecated: use headrace.OutputSettings, with format for accept",
            DeprecationWarning,
            stacklevel=2,
        )
        return OutputSettings(format=accept, **settings)
