"""Choose the runner of a run (threads, processes, Ray or Beam), its regions, and how its workers open.

A worker in another process or on another machine starts from a serialisable `WorkerSpec`; a machine
without the model receives a `ModelCopy`.
"""

import io
import os
import sys
import tarfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Final, Literal

import orjson

from headrace.app.models import (
    ModelLike,
    OpenedPredictor,
    PredictorOptions,
    RunningPredictor,
    add_current_folder_to_path,
    model_reference,
    open_predictor,
)
from headrace.config.model_argument import is_fetched, join_name, split_name
from headrace.core.errors import ConfigError, HeadraceError, ModelLoadError
from headrace.core.settings import Setting
from headrace.runners.beam import BeamRunner
from headrace.runners.engines import BeamWorkers, RayWorkers
from headrace.runners.messages import Message
from headrace.runners.processes import ConnectedWorker, ProcessRunner
from headrace.runners.worker import TaskWorker
from headrace.runs.ledger import Ledger
from headrace.runs.objects import no_region
from headrace.runs.settings import RunSettings, settings_from_identity
from headrace.runs.tasks import InProcessRunner, Locality, OtherRegions, Runner
from headrace.runtimes.load import model_files
from headrace.runtimes.model_cache import SizeLimit, unpack
from headrace.storage.regions import RegionResolver, RegionRules
from headrace.storage.resolve import Stores
from headrace.storage.uri import parse

COPY_BYTES_MAX: Final = 1 << 30
"""The size limit of a copied model. A larger model must exist on the workers' machines."""
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1])['modules']; "
    "from headrace.app.runners import run_worker; run_worker(*sys.argv[1:])"
)

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


def instance_options(workers: AnyWorkers, options: PredictorOptions) -> PredictorOptions:
    """Return the predictor options of this process: one model instance for each worker thread."""
    if isinstance(workers, Workers) and workers.isolation == "thread" and workers.count > 1:
        return replace(options, instances=workers.count)
    return options


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
) -> tuple[Runner, AbstractContextManager[Any]]:
    """Return the runner for these workers, and the context manager to enter while it runs.

    Raises ConfigError if workers elsewhere cannot load the model or reach the destination, and
    MissingExtraError for a missing optional dependency.
    """
    if not isinstance(workers, RayWorkers):
        locality.require_region()  # Ray nodes can declare their region.
    if isinstance(workers, Workers) and workers.isolation == "thread":
        return InProcessRunner(opened.predictor, locality), RunningPredictor(opened.predictor)
    spec = worker_spec(
        destination, model, endpoint, settings, options, identity=opened.identity, stores=stores
    )
    local_spec = replace(spec, model=opened.local_model)
    name = getattr(opened.predictor, "name", "model")
    if isinstance(workers, Workers):
        command = worker_command(local_spec, locality.region)
        process_runner = ProcessRunner(
            command, workers.count, model=name, environ=stores.environ, locality=locality
        )
        return process_runner, process_runner
    # The workers of Beam's DirectRunner run on this machine and load the model from its own path.
    is_direct = isinstance(workers, BeamWorkers) and workers.direct
    remote_spec, model_copy = (
        (with_absolute_model(local_spec), None) if is_direct else model_elsewhere(spec, local_spec.model)
    )
    if isinstance(workers, RayWorkers):
        from headrace.runners.ray import RayRunner  # noqa: PLC0415 - optional dependency

        opener = WorkerOpener(remote_spec, stores.environ, model_copy)
        ray_runner = RayRunner(opener, workers, model=name, locality=locality)
        return ray_runner, ray_runner
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
    return beam_runner, beam_runner


@dataclass(frozen=True, slots=True)
class ModelCopy:
    """The files of one model as a tar archive.

    `spec` is the MODEL argument relative to the folder of the unpacked files.
    """

    spec: str
    archive: bytes = field(repr=False)

    def unpack(self, folder: Path) -> str:
        """Unpack the files below `folder` and return the model's name there."""
        unpack([self.archive], folder, SizeLimit(self.spec), is_gzip=False)
        name, spec = split_name(self.spec)
        return join_name(name, str(folder / spec))


@dataclass(frozen=True, slots=True)
class StoredCopy:
    """A reference to a `ModelCopy` whose archive is an object in a store."""

    spec: str
    uri: str

    def get(self, stores: Stores) -> ModelCopy:
        """Return the copy. Raise the store's error if the object cannot be read."""
        return ModelCopy(self.spec, stores.for_uri(self.uri).get(self.uri))


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """The description of a run's worker as plain values, without secrets."""

    destination: str
    model: str | None
    endpoint: str | None
    options: Mapping[str, Any]
    identity: str
    per_object: bool
    settings: Mapping[str, Any]
    flow: Mapping[str, Any]
    checkpoint_s: float
    stores: Mapping[str, Any]
    modules: Sequence[str]
    """The module search path of the run."""
    folder: str
    """The current directory of the run; relative paths start from it."""
    stops_broken_model: bool = False
    """As `FailurePolicy.stops_broken_model` of the run."""

    def to_json(self) -> bytes:
        """Return the spec as JSON, for a command line or a message."""
        return orjson.dumps(self)

    @classmethod
    def from_json(cls, text: bytes | str) -> "WorkerSpec":
        """Return the spec from its JSON form."""
        return cls(**orjson.loads(text))


def worker_spec(
    destination: str,
    model: ModelLike | None,
    endpoint: str | None,
    settings: RunSettings,
    options: PredictorOptions,
    *,
    identity: str,
    stores: Stores,
) -> WorkerSpec:
    """Return the spec of a run's workers.

    Raises ConfigError for a model or a destination that exists in this process only.
    """
    if model is not None and not isinstance(model, str | Path):
        raise ConfigError(
            "workers load the model themselves: name it as a file, a folder or module:Class, or use threads"
        )
    if parse(destination).scheme == "memory":
        raise ConfigError(
            "memory:// objects exist in this process only: choose another destination, or use threads"
        )
    return WorkerSpec(
        destination=destination.rstrip("/") + "/",
        # The workers are the instances. A model.toml does not multiply them.
        **model_reference(model, endpoint, replace(options, instances=options.instances or 1)),
        identity=identity,
        per_object=settings.per_object,
        settings=settings.identity(),
        flow=asdict(settings.flow),
        checkpoint_s=settings.output.checkpoint_s,
        stores={"retry_s": stores.retry_s, "timeout_s": stores.timeout_s},
        modules=sys.path,
        folder=str(Path.cwd()),
        stops_broken_model=settings.failures.stops_broken_model,
    )


def with_absolute_model(spec: WorkerSpec) -> WorkerSpec:
    """Return the spec with an absolute model path, for workers with another current directory."""
    if spec.model is None:
        return spec
    name, model = split_name(spec.model)
    if not model_files(model):
        return spec
    # Links stay unresolved: the path is part of the model's name.
    return replace(spec, model=join_name(name, os.path.abspath(model)))  # noqa: PTH100


def model_elsewhere(spec: WorkerSpec, local_model: str | None) -> tuple[WorkerSpec, ModelCopy | None]:
    """Return the spec for workers on other machines, and the copy of the model that they need.

    Each machine fetches the URI of a model into a cache of its own. Other models are searched at the
    path that they have here, and copied where they are not.
    """
    if is_fetched(spec.model):
        return spec, None
    there = with_absolute_model(replace(spec, model=local_model))
    return there, copy_model(there.model, spec.options["model_options"]) if there.model else None


@dataclass(frozen=True, slots=True)
class WorkerOpener:
    """Opens workers in the process that it is sent to.

    A call returns a context manager of one worker. Entering it loads the model; leaving it unloads
    the model. It raises the error of a model that does not load, and ModelLoadError for a model
    that differs from the run's.

    Args:
        spec: The description of the worker.
        environ: Environment variables for access to the stores, in addition to those of the process.
            They may contain secrets.
        copy: The model, for machines that do not have it.
    """

    spec: WorkerSpec
    environ: Mapping[str, str] | None = field(default=None, repr=False)
    copy: ModelCopy | StoredCopy | None = field(default=None, repr=False)

    @contextmanager
    def __call__(self, send: Callable[[Message], None], region: str | None = None) -> Generator[TaskWorker]:
        """Open a worker in `region`; `send` sends its messages."""
        self._extend_module_path()
        spec = self.spec
        settings = settings_from_identity(
            spec.settings,
            per_object=spec.per_object,
            flow=spec.flow,
            checkpoint_s=spec.checkpoint_s,
            stops_broken_model=spec.stops_broken_model,
        )
        environ = None if self.environ is None else {**os.environ, **self.environ}
        with ExitStack() as stack:
            stores = stack.enter_context(Stores(environ, **spec.stores))
            opened = self._model(stack, stores)
            stack.enter_context(RunningPredictor(opened.predictor))
            yield TaskWorker(
                opened.predictor,
                send,
                stores=stores,
                destination=spec.destination,
                settings=settings,
                region=region,
            )

    def _extend_module_path(self) -> None:
        """Add the run's module folders to the path and enter its directory, where they exist here."""
        sys.path += [p for p in self.spec.modules if p not in sys.path and (not p or Path(p).exists())]
        add_current_folder_to_path()
        if Path(self.spec.folder).is_dir():
            os.chdir(self.spec.folder)

    def _model(self, stack: ExitStack, stores: Stores) -> OpenedPredictor:
        """Return the model of this machine if it is the run's model, else the copy."""
        spec, options = self.spec, PredictorOptions(**self.spec.options)
        try:
            opened = open_predictor(
                spec.model, spec.endpoint, options, stores, finds_broken_model=spec.stops_broken_model
            )
        except HeadraceError:
            if self.copy is None:
                raise
            opened = None
        if opened is not None and opened.identity == spec.identity:
            return opened
        if self.copy is not None:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="headrace-model-")))
            copy = self.copy.get(stores) if isinstance(self.copy, StoredCopy) else self.copy
            opened = open_predictor(
                copy.unpack(folder), None, options, finds_broken_model=spec.stops_broken_model
            )
        if opened is None or opened.identity != spec.identity:
            raise ModelLoadError(
                spec.model or "model",
                f"the worker's model ({opened and opened.identity}) differs from the run's "
                f"({spec.identity}): install the same model on all machines",
            )
        return opened


def worker_command(spec: WorkerSpec, region: str | None) -> list[str]:
    """Return the interpreter arguments of a local worker process.

    The caller appends the file descriptor of the worker's connection.
    """
    return ["-c", _START, spec.to_json().decode(), region or ""]


def run_worker(spec: str, region: str, connection_fd: str) -> None:
    """Run a worker process to its end; its arguments are those of the command line."""
    connected = ConnectedWorker(Connection(int(connection_fd)))
    with WorkerOpener(WorkerSpec.from_json(spec))(connected.send, region or None) as worker:
        connected.run(worker)


def copy_model(argument: str, options: Mapping[str, Any] | None = None) -> ModelCopy | None:
    """Return a copy of a model that is a file or folder.

    Return None for a class of an importable module, and for files above `COPY_BYTES_MAX`.
    """
    name, spec = split_name(argument)
    files = model_files(spec, options)
    if not files or _bytes_of(files) > COPY_BYTES_MAX:
        return None
    buffer = io.BytesIO()
    # The files that links point to are copied, because links are not unpacked.
    with tarfile.open(fileobj=buffer, mode="w", dereference=True) as archive:
        for path in files:
            archive.add(path, path.relative_to(files[0].parent))
    return ModelCopy(join_name(name, Path(spec).name), buffer.getvalue())


def _bytes_of(files: tuple[Path, ...]) -> int:
    inside = (path for top in files for path in ([top] if top.is_file() else top.rglob("*")))
    return sum(path.stat().st_size for path in inside if path.is_file())
