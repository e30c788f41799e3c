"""Choose the runner of a run (threads, processes, Ray or Beam) and its regions."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from headrace.app.model_copy import StoredCopy, copy_model
from headrace.app.predictors import ModelLike, OpenedPredictor, PredictorOptions, RunningPredictor
from headrace.app.transform_worker import WorkerOpener, with_absolute_model, worker_command, worker_spec
from headrace.core.errors import ConfigError
from headrace.core.settings import Setting
from headrace.runners.beam import BeamRunner
from headrace.runners.engines import BeamWorkers, RayWorkers
from headrace.runners.processes import ProcessRunner
from headrace.runs.ledger import Ledger
from headrace.runs.objects import no_region
from headrace.runs.settings import RunSettings
from headrace.runs.tasks import InProcessRunner, Locality, OtherRegions, Runner
from headrace.storage.regions import RegionResolver, RegionRules
from headrace.storage.resolve import Stores

Isolation = Literal["thread", "process"]


@dataclass(frozen=True, slots=True)
class Workers:
    """The workers of a local run: model instances in threads or in processes.

    A worker process has its own interpreter and loads its own copy of the model. It reads, decodes
    and writes in parallel with the others.
    """

    count: int = 1
    isolation: Isolation = "thread"

    def __post_init__(self) -> None:
        """Raise ConfigError for an invalid count or isolation."""
        if self.count < 1:
            raise ConfigError(f"workers must be 1 or more, not {self.count}")
        if self.isolation not in {"thread", "process"}:
            raise ConfigError(f"isolation must be thread or process, not {self.isolation!r}")


AnyWorkers = Workers | RayWorkers | BeamWorkers


@dataclass(frozen=True, slots=True)
class DataRegions:
    """The regions of the data and the workers, and the rule for tasks in other regions.

    The `rules` have the regions of URIs; the region of a bucket without a rule is read from its
    server. On Ray, `region` is that of workers whose node does not declare its region.
    """

    rules: RegionRules = field(default_factory=RegionRules)
    region: Annotated[
        str | None,
        Setting("Region of the workers; objects in it are processed first.", metavar="REGION"),
    ] = None
    other_regions: Annotated[
        OtherRegions,
        Setting(
            "Use of workers for objects of other regions: when idle, or never. "
            "Objects left over wait for a run with --resume in their region."
        ),
    ] = "idle"

    @property
    def locality(self) -> Locality:
        """The locality rule of one worker."""
        return Locality(self.region, self.other_regions)

    def region_of(self, stores: Stores) -> Callable[[str], str | None]:
        """Return the function that maps an object's URI to its region.

        Without a region and without rules, every object has no region, and no server is queried.
        """
        if self.region is None and not self.rules.rules:
            return no_region
        return RegionResolver(self.rules, stores.environ).resolve


@dataclass(frozen=True, slots=True)
class OpenedRunner:
    """A runner and the context manager that must be entered while it runs."""

    runner: Runner
    around: AbstractContextManager[Any]


def instance_options(workers: AnyWorkers, options: PredictorOptions) -> PredictorOptions:
    """Return the predictor options of this process: one model instance for each worker thread."""
    if isinstance(workers, Workers) and workers.isolation == "thread" and workers.count > 1:
        return replace(options, instances=workers.count)
    return options


def _is_direct_runner(workers: AnyWorkers) -> bool:
    return isinstance(workers, BeamWorkers) and workers.direct


def open_runner(
    workers: AnyWorkers,
    opened: OpenedPredictor,
    *,
    destination: str,
    model: ModelLike | None,
    endpoint: str | None,
    settings: RunSettings,
    options: PredictorOptions,
    stores: Stores,
    locality: Locality,
) -> OpenedRunner:
    """Return the runner for these workers, not started.

    Raises ConfigError if workers elsewhere cannot load the model or reach the destination, and
    MissingExtraError for a missing optional dependency.
    """
    if not isinstance(workers, RayWorkers):
        locality.require_region()  # Ray nodes can declare their region.
    if isinstance(workers, Workers) and workers.isolation == "thread":
        return OpenedRunner(InProcessRunner(opened.predictor, locality), RunningPredictor(opened.predictor))
    spec = worker_spec(
        destination, model, endpoint, settings, options, identity=opened.identity, stores=stores
    )
    name = getattr(opened.predictor, "name", "model")
    if isinstance(workers, Workers):
        command = worker_command(spec, locality.region)
        process_runner = ProcessRunner(
            command, workers.count, model=name, environ=stores.environ, locality=locality
        )
        return OpenedRunner(process_runner, process_runner)
    remote_spec = with_absolute_model(spec)
    # The workers of Beam's DirectRunner run on this machine and load the model from its own path.
    model_copy = (
        None
        if spec.model is None or _is_direct_runner(workers)
        else copy_model(spec.model, options.model_options)
    )
    if isinstance(workers, RayWorkers):
        from headrace.runners.ray import RayRunner  # noqa: PLC0415 - optional dependency

        opener = WorkerOpener(remote_spec, stores.environ, model_copy)
        ray_runner = RayRunner(opener, workers, model=name, locality=locality)
        return OpenedRunner(ray_runner, ray_runner)
    # A pipeline description is visible to many users and limited in size: it carries neither
    # secrets nor the model.
    copy_uri = Ledger(stores.for_uri(destination), spec.destination).draft_uri("model.tar")
    stored_copy = None if model_copy is None else StoredCopy(model_copy.spec, copy_uri)
    beam_runner = BeamRunner(
        WorkerOpener(remote_spec, None, stored_copy),
        workers,
        predictor=opened.predictor,
        model=name,
        environ=stores.environ,
        locality=locality,
        prepare=lambda ledger: None if model_copy is None else ledger.store.put(copy_uri, model_copy.archive),
    )
    return OpenedRunner(beam_runner, beam_runner)
