"""Build batch transforms from stores, predictors, runners and the ledger."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

from headrace.app.renamed import accepts_old_names
from headrace.app.runners import AnyWorkers, DataRegions, Workers, instance_options, open_runner
from headrace.app.streaming import ModelLike, PredictorOptions, action_if_exists, open_predictor
from headrace.app.transform_worker import RunningPredictor, model_reference
from headrace.core.errors import ConfigError
from headrace.core.predictor import Predictor
from headrace.runs.ledger import TransformLedger
from headrace.runs.observation import RunObservation
from headrace.runs.plan import TransformPlan, make_plan
from headrace.runs.probe import ProbedRecord, first_records
from headrace.runs.report import TransformReport
from headrace.runs.retry import FailedRecordsRetry, finished_identity
from headrace.runs.run import Transform
from headrace.runs.settings import TransformSettings
from headrace.storage.local import LocalStore
from headrace.storage.resolve import Stores

ReportFormat = Literal["html"]
"""The format of an additional report, besides ``_report.json``."""


@dataclass(frozen=True, slots=True)
class OpenedTransform:
    """A transform and its runner. As a context manager it starts the runner and always stops it."""

    transform: Transform
    runner: AbstractContextManager[Any]
    stores: Stores

    def __enter__(self) -> Transform:
        self._remove_stale_files()
        self.runner.__enter__()
        return self.transform

    def _remove_stale_files(self) -> None:
        """Remove old temporary files of killed runs from a local destination.

        No listing shows such files.
        """
        store = self.stores.for_uri(self.transform.destination)
        if isinstance(store, LocalStore):
            store.clean(self.transform.destination)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.runner.__exit__(kind, error, trace)


@accepts_old_names
def open_transform(
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
) -> OpenedTransform:
    """Build a transform without starting it. Raise ConfigError for invalid arguments."""
    if_exists = action_if_exists(resume=resume, overwrite=overwrite)
    chosen_stores, chosen_workers = stores or Stores(), workers or Workers()
    predictor_options = instance_options(chosen_workers, options or PredictorOptions())
    opened = open_predictor(model, endpoint, predictor_options)
    chosen_settings, chosen_regions = settings or TransformSettings(), regions or DataRegions()
    runner = open_runner(
        chosen_workers,
        opened,
        destination=destination,
        model=model,
        endpoint=endpoint,
        settings=chosen_settings,
        options=predictor_options,
        stores=chosen_stores,
        locality=chosen_regions.locality,
    )
    run = Transform(
        source,
        destination,
        stores=chosen_stores,
        runner=runner.runner,
        settings=chosen_settings,
        model_identity=opened.identity,
        if_exists=if_exists,
        model_reference=model_reference(model, endpoint, predictor_options),
        observation=RunObservation() if report == "html" else None,
        region_of=chosen_regions.region_of(chosen_stores),
    )
    return OpenedTransform(run, runner.around, chosen_stores)


@accepts_old_names
def transform_sync(
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
) -> TransformReport:
    """Run `transform` for callers without an event loop; block until all outputs are committed."""
    return execute(
        open_transform(
            source,
            destination,
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
    )


def execute(opened: OpenedTransform, around: AbstractContextManager[Any] | None = None) -> TransformReport:
    """Load the model, execute the transform and unload the model.

    The context manager `around` is entered meanwhile.
    """
    with opened as run, around or nullcontext():
        return run.execute()


@accepts_old_names
async def transform(
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
) -> TransformReport:
    """Score every object of a source and write one predictions file for each of them.

    ::

        report = await headrace.transform("s3://bucket/in/", "s3://bucket/out/", model="churn.onnx")

    The object ``in/day/a.csv`` becomes ``out/day/a.csv.out``, with its records in order. Failed
    records go to ``out/day/a.csv.out.failed`` with position, reason and bytes. Outputs appear whole
    or not at all.

    Before `transform` returns, it checks from the ledger in ``out/_headrace/`` that, for every
    object and for the run, records in = rows out + failed (+ suppressed). Failed records do not
    raise an error; see `TransformReport.exit_code`. Cancellation drains, as Ctrl-C does for the
    command: finished tasks stay, and ``resume=True`` continues the run.

    Args:
        source: An object, a prefix that ends in ``/``, a glob or ``manifest:URI``, or several of them.
        destination: A folder or prefix outside the source. Other objects in it are not changed.
        model: As for `stream`. Workers outside this process need a file, a folder or ``module:Class``.
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
        HeadraceError: The run failed. Committed outputs stay, and the run can be resumed.
    """
    opened = open_transform(
        source,
        destination,
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
    execution = asyncio.ensure_future(asyncio.to_thread(execute, opened))
    try:
        return await asyncio.shield(execution)
    except asyncio.CancelledError:
        opened.transform.drain()
        await asyncio.wait([execution])
        raise


def retry_failed(
    destination: str,
    *,
    model: ModelLike | None = None,
    endpoint: str | None = None,
    options: PredictorOptions | None = None,
    other_model: bool = False,
    stores: Stores | None = None,
    report: ReportFormat | None = None,
    around: Callable[[FailedRecordsRetry, Predictor], AbstractContextManager[Any]] | None = None,
) -> TransformReport:
    """Retry the failed records of a finished transform and merge the results into its outputs.

    Blocks until the outputs are committed. Without `model` and `endpoint`, the transform's own
    model is opened again by its name. A different model is refused unless `other_model` is true.
    An existing page is written again if a count changed; with `report` "html", a page is written in any case.
    The context manager that `around` returns is entered meanwhile. Raises as
    `FailedRecordsRetry.execute` does.
    """
    chosen_stores = stores or Stores()
    folder = destination.rstrip("/") + "/"
    if model is None and endpoint is None:
        identity = finished_identity(TransformLedger(chosen_stores.for_uri(folder), folder))
        made: Mapping[str, Any] = identity.get("made_with") or {}
        model, endpoint = made.get("model"), made.get("endpoint")
        if model is None and endpoint is None:
            raise ConfigError(f"{folder}: the ledger does not name the transform's model: give it again")
        options = options or PredictorOptions(**made["options"])
    opened = open_predictor(model, endpoint, options or PredictorOptions())
    retry = FailedRecordsRetry(
        folder,
        stores=chosen_stores,
        predictor=opened.predictor,
        model_identity=opened.identity,
        other_model=other_model,
        write_page=report == "html",
    )
    with RunningPredictor(opened.predictor), around(retry, opened.predictor) if around else nullcontext():
        return retry.execute()


@dataclass(frozen=True, slots=True)
class DryRun:
    """The plan of a transform, its first records and the model inputs made from each."""

    plan: TransformPlan
    seen: tuple[ProbedRecord, ...]


def dry_run(
    source: str | Sequence[str],
    destination: str,
    *,
    model: ModelLike | None = None,
    endpoint: str | None = None,
    settings: TransformSettings | None = None,
    options: PredictorOptions | None = None,
    stores: Stores | None = None,
    records: int = 3,
) -> DryRun:
    """Read the first records of the source and load the model, but write nothing.

    Raises the errors of `transform` that occur before its first batch.
    """
    opened = open_predictor(model, endpoint, options or PredictorOptions())
    chosen_settings, chosen_stores = settings or TransformSettings(), stores or Stores()
    plan = make_plan(source, destination, chosen_stores, chosen_settings)
    with ExitStack() as stack:
        stack.enter_context(RunningPredictor(opened.predictor))
        seen = first_records(plan, chosen_stores, chosen_settings, opened.predictor.metadata, count=records)
    return DryRun(plan, tuple(seen))
