"""Who does a transform's work, and where: threads, processes, Ray, Beam; and in which regions workers and data are."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from headrace.app.model_copy import StoredCopy, copy_model
from headrace.app.streaming import ModelLike, OpenedPredictor, PredictorOptions
from headrace.app.transform_work import Started, WorkerOpener, sent_elsewhere, worker_command, worker_job
from headrace.core.errors import ConfigError
from headrace.storage.regions import RegionRules, Regions
from headrace.storage.resolve import Stores
from headrace.transforms.ledger import TransformLedger
from headrace.transforms.locality import Locality, OtherRegions
from headrace.transforms.plan import nowhere
from headrace.transforms.runner import InProcessRunner, Runner
from headrace.transforms.runners.beam import BeamRunner
from headrace.transforms.runners.engines import BeamWorkers, RayWorkers
from headrace.transforms.runners.processes import ProcessRunner
from headrace.transforms.settings import TransformSettings

Isolation = Literal["thread", "process"]


@dataclass(frozen=True, slots=True)
class Workers:
    """How many do the work, and where: `count` instances of the model in threads of this process, or processes.

    A process has its own interpreter, and so reads, decodes and writes beside the others; its model is loaded anew.
    """

    count: int = 1
    isolation: Isolation = "thread"

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        if self.count < 1:
            raise ConfigError(f"workers must be 1 or more, not {self.count}")
        if self.isolation not in {"thread", "process"}:
            raise ConfigError(f"isolation must be thread or process, not {self.isolation!r}")


AnyWorkers = Workers | RayWorkers | BeamWorkers


@dataclass(frozen=True, slots=True)
class DataRegions:
    """In which regions the data is, in which the workers are, and whether these do tasks of others.

    Args:
        rules: What is said of the data; where they say nothing of a bucket, its server is asked.
        region: Where the workers are. On Ray, those whose node does not say so by itself.
        other_regions: "idle": a worker with no task of its own region left takes another's. "never": they are left, for
            a run with workers there to resume.
    """

    rules: RegionRules = field(default_factory=RegionRules)
    region: str | None = None
    other_regions: OtherRegions = "idle"

    @property
    def locality(self) -> Locality:
        """Of one worker."""
        return Locality(self.region, self.other_regions)

    def region_of(self, stores: Stores) -> Callable[[str], str | None]:
        """Says where an object lies, by its URI. Nobody is asked as long as no region was ever spoken of."""
        if self.region is None and not self.rules.rules:
            return nowhere
        return Regions(self.rules, stores.environ).of


@dataclass(frozen=True, slots=True)
class OpenedRunner:
    """A runner, and what is to be entered around its runs."""

    runner: Runner
    around: AbstractContextManager[Any]


def used_options(workers: AnyWorkers, options: PredictorOptions) -> PredictorOptions:
    """How the model is opened in this process: with an instance for each thread."""
    if isinstance(workers, Workers) and workers.isolation == "thread" and workers.count > 1:
        return replace(options, instances=workers.count)
    return options


def _direct(workers: AnyWorkers) -> bool:
    return isinstance(workers, BeamWorkers) and workers.direct


def open_runner(
    workers: AnyWorkers,
    opened: OpenedPredictor,
    *,
    destination: str,
    model: ModelLike | None,
    endpoint: str | None,
    settings: TransformSettings,
    options: PredictorOptions,
    stores: Stores,
    locality: Locality,
) -> OpenedRunner:
    """The runner of these workers, not started. Raises ConfigError for what only this process has, MissingExtraError."""
    if not isinstance(workers, RayWorkers):
        locality.require_region()  # Ray's nodes may say where they are
    if isinstance(workers, Workers) and workers.isolation == "thread":
        return OpenedRunner(InProcessRunner(opened.predictor, locality), Started(opened.predictor))
    job = worker_job(destination, model, endpoint, settings, options, identity=opened.identity, stores=stores)
    name = getattr(opened.predictor, "name", "model")
    if isinstance(workers, Workers):
        command = worker_command(job, locality.region)
        made = ProcessRunner(command, workers.count, model=name, environ=stores.environ, locality=locality)
        return OpenedRunner(made, made)
    elsewhere = sent_elsewhere(job)
    # A DirectRunner's workers are on this machine, and find the model where it is.
    sent = None if job.model is None or _direct(workers) else copy_model(job.model, options.model_options)
    if isinstance(workers, RayWorkers):
        from headrace.transforms.runners.ray import RayRunner  # noqa: PLC0415 - an extra

        opener = WorkerOpener(elsewhere, stores.environ, sent)
        on_ray = RayRunner(opener, workers, model=name, locality=locality)
        return OpenedRunner(on_ray, on_ray)
    # A pipeline's description is shown to many, and is to be small: no secrets go into it, and no model.
    place = TransformLedger(stores.for_uri(destination), job.destination).draft_uri("model.tar")
    stored = None if sent is None else StoredCopy(sent.spec, place)
    on_beam = BeamRunner(
        WorkerOpener(elsewhere, None, stored),
        workers,
        predictor=opened.predictor,
        model=name,
        environ=stores.environ,
        locality=locality,
        prepare=lambda ledger: None if sent is None else ledger.store.put(place, sent.archive),
    )
    return OpenedRunner(on_beam, on_beam)
