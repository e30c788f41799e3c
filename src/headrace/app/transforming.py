"""Batch transforms: stores, predictors or worker processes, and the run, joined."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from headrace.app.streaming import ModelLike, PredictorOptions, open_predictor
from headrace.app.transform_work import Started, made_with
from headrace.app.workers import AnyWorkers, DataRegions, Workers, open_runner, used_options
from headrace.core.errors import ConfigError
from headrace.core.predictor import Predictor
from headrace.storage.local import LocalStore
from headrace.storage.resolve import Stores
from headrace.transforms.ledger import TransformLedger
from headrace.transforms.observation import Observation
from headrace.transforms.plan import TransformPlan, make_plan
from headrace.transforms.probe import Seen, first_records
from headrace.transforms.report import TransformReport
from headrace.transforms.retry import Retry, finished_identity
from headrace.transforms.run import IfExists, Transform
from headrace.transforms.settings import TransformSettings


@dataclass(frozen=True, slots=True)
class OpenedTransform:
    """A transform and what it runs on. As a context manager it loads the model, and lets go of it whatever happens."""

    transform: Transform
    runner: AbstractContextManager[Any]
    stores: Stores

    def __enter__(self) -> Transform:
        self._tidy()
        self.runner.__enter__()
        return self.transform

    def _tidy(self) -> None:
        """On a disk, killed runs leave temporary files, which nobody lists; old ones go."""
        store = self.stores.for_uri(self.transform.destination)
        if isinstance(store, LocalStore):
            store.clean(self.transform.destination)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.runner.__exit__(kind, error, trace)


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
    if_exists: IfExists = "refuse",
    stores: Stores | None = None,
    page: bool = False,
) -> OpenedTransform:
    """Put a transform together, without starting anything. Raises ConfigError for what cannot be."""
    where, hands = stores or Stores(), workers or Workers()
    used = used_options(hands, options or PredictorOptions())
    opened = open_predictor(model, endpoint, used)
    chosen, placed = settings or TransformSettings(), regions or DataRegions()
    runner = open_runner(
        hands,
        opened,
        destination=destination,
        model=model,
        endpoint=endpoint,
        settings=chosen,
        options=used,
        stores=where,
        locality=placed.locality,
    )
    made = Transform(
        source,
        destination,
        stores=where,
        runner=runner.runner,
        settings=chosen,
        model_identity=opened.identity,
        if_exists=if_exists,
        made_with=made_with(model, endpoint, used),
        observation=Observation() if page else None,
        region_of=placed.region_of(where),
    )
    return OpenedTransform(made, runner.around, where)


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
    if_exists: IfExists = "refuse",
    stores: Stores | None = None,
    page: bool = False,
) -> TransformReport:
    """What `transform` does, for callers without an event loop; blocks until all is written."""
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
            if_exists=if_exists,
            stores=stores,
            page=page,
        )
    )


def execute(opened: OpenedTransform, around: AbstractContextManager[Any] | None = None) -> TransformReport:
    """Load the model, transform, and let go of it whatever happens; `around` is entered while it runs."""
    with opened as run, around or nullcontext():
        return run.execute()


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
    if_exists: IfExists = "refuse",
    stores: Stores | None = None,
    page: bool = False,
) -> TransformReport:
    """Score every object of a source, and write one predictions file for each; returns when all of it is committed.

    ::

        report = await headrace.transform("s3://bucket/in/", "s3://bucket/out/", model="churn.onnx")

    The object ``in/day/a.csv`` becomes ``out/day/a.csv.out``, its records in order; those that failed, with place, reason
    and bytes, ``out/day/a.csv.out.failed``. Outputs appear whole or not at all. For every object and for the run, records
    in = rows out + failed (+ withheld) is counted from the ledger in ``out/_headrace/`` before this returns; failed
    records do not raise, see `TransformReport.exit_code`. Cancelling drains, as Ctrl-C does the command: what is finished
    stays, and ``if_exists="resume"`` goes on.

    Args:
        source: An object, a prefix that ends in ``/``, a glob or ``manifest:URI``, or several of them.
        destination: A folder or prefix, outside the source; anything else in it is left alone.
        model: As for `stream`. But with threads: a file, a folder or ``module:Class``.
        endpoint: The URL of a model served elsewhere, instead of `model`.
        settings: How objects are read, cut, mapped, batched and written, and what failures cost.
        options: How an endpoint is asked, or the model's own options.
        workers: How many instances, in threads or in processes; or `RayWorkers`, or `BeamWorkers`: then the tasks go to
            other machines, and what is done is still counted from the ledger here.
        regions: Where data and workers are; by default nobody asks.
        if_exists: What to do where a transform was written before: "refuse"; "resume", which goes on where it stopped,
            to the same bytes, or returns its report when it is finished; "overwrite", which deletes it first.
        stores: Where objects are; by default everything that a URI can name, with credentials from the environment.
        page: Whether to write ``_report.html`` too: what was done, on one page, with plots of throughput and predictions.

    Raises:
        ConfigError: For what cannot be; OutputExistsError when the output is there.
        ResumeRefusedError: The model, the source or the settings are not those of the transform to resume.
        TooManyFailuresError: More records failed than `TransformSettings.failures` allows.
        HeadraceError: The run broke. What was committed stays, and can be resumed.
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
        if_exists=if_exists,
        stores=stores,
        page=page,
    )
    working = asyncio.ensure_future(asyncio.to_thread(execute, opened))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        opened.transform.drain()
        await asyncio.wait([working])
        raise


def retry_failed(
    destination: str,
    *,
    model: ModelLike | None = None,
    endpoint: str | None = None,
    options: PredictorOptions | None = None,
    other_model: bool = False,
    stores: Stores | None = None,
    around: Callable[[Retry, Predictor], AbstractContextManager[Any]] | None = None,
) -> TransformReport:
    """Try a finished transform's failed records once more, and merge what comes out into place; blocks until it is written.

    Without `model` and `endpoint` it is the model that the transform was made with, by the same name; another one is
    refused unless `other_model` says that it is meant. `around` is entered while it works. Raises what `Retry.execute` does.
    """
    where = stores or Stores()
    folder = destination.rstrip("/") + "/"
    if model is None and endpoint is None:
        identity = finished_identity(TransformLedger(where.for_uri(folder), folder))
        made: Mapping[str, Any] = identity.get("made_with") or {}
        model, endpoint = made.get("model"), made.get("endpoint")
        if model is None and endpoint is None:
            raise ConfigError(
                f"{folder}: the transform's model was no file or class that can be named: give it again"
            )
        options = options or PredictorOptions(**made["options"])
    opened = open_predictor(model, endpoint, options or PredictorOptions())
    retry = Retry(
        folder,
        stores=where,
        predictor=opened.predictor,
        model_identity=opened.identity,
        other_model=other_model,
    )
    with Started(opened.predictor), around(retry, opened.predictor) if around else nullcontext():
        return retry.execute()


@dataclass(frozen=True, slots=True)
class DryRun:
    """What a transform would do: its plan, its first records, and what the model would be given of each."""

    plan: TransformPlan
    seen: tuple[Seen, ...]


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
    """Look at the source and load the model, but write nothing. Raises what `transform` would raise before it works."""
    opened = open_predictor(model, endpoint, options or PredictorOptions())
    chosen, where = settings or TransformSettings(), stores or Stores()
    plan = make_plan(source, destination, where, chosen)
    with ExitStack() as stack:
        stack.enter_context(Started(opened.predictor))
        seen = first_records(plan, where, chosen, opened.predictor.metadata, count=records)
    return DryRun(plan, tuple(seen))
