"""Build a job worker from its models, job kinds and components."""

import logging
import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Final

from typing_extensions import override

import headrace
from headrace.app.job_components import JobComponents, open_job_components
from headrace.app.models import ServedModel, open_repository, process_traffic
from headrace.app.process_signals import run_until_signal
from headrace.app.server_options import JobLocations, WorkerListenerOptions
from headrace.app.tracing import Tracing, open_tracing
from headrace.config.jobs_file import JobsFile
from headrace.core.errors import HeadraceError, ModelNotFoundError, ModelNotReadyError
from headrace.core.model import Isolation
from headrace.engine.engine import Engine
from headrace.engine.repository import ModelDefinition, ModelRepository
from headrace.engine.settings import ServeSettings
from headrace.jobs.job import Completed, Kind, Settlement
from headrace.jobs.kinds import Attempt, KindRunner, Models
from headrace.jobs.kinds.runners import InferKind, RunJobs, stream_settings, transform_settings
from headrace.jobs.known_models import listed
from headrace.jobs.maintenance import Retention
from headrace.jobs.paths import JobPaths
from headrace.jobs.payloads import Publication
from headrace.jobs.worker import WorkerSettings
from headrace.jobs.worker.host import HostFigures
from headrace.jobs.worker.ledger_loop import not_durable
from headrace.jobs.worker.worker import Worker
from headrace.jobs.worker_registry import ModelCrash, WorkerReport
from headrace.scaling.instances import InstanceScaler, RepositoryModels
from headrace.server.application import Guard
from headrace.server.dataplane import Dataplane
from headrace.server.jobs.metrics import process_metrics, worker_metrics
from headrace.server.jobs.shared_reading import SharedReading
from headrace.server.jobs.worker_app import WorkerHealth, worker_app
from headrace.server.listen import HttpListener, ListenerThread
from headrace.server.metrics import Metrics, MetricsApp
from headrace.storage.local import LocalStore
from headrace.storage.resolve import Stores

__all__ = ["JobLocations", "OpenedWorker", "ServedModels", "job_repository", "join_worker", "open_worker"]

_SECRET_NAME: Final = re.compile(
    r"^(AWS|AZURE|GOOGLE|GCP|PG|HEADRACE|SMTP)_?|SECRET|PASSWORD|PASSWD|TOKEN|CREDENTIAL|PRIVATE"
    r"|_KEY$|_DSN$|_URL$",
    re.IGNORECASE,
)
"""Names of environment variables that a model inherits only if its ``environ_pass`` names them."""

_log = logging.getLogger("headrace.jobs")


class ServedModels(Models):
    """The models of a repository, as job kinds look them up: ``NAME`` or ``NAME@VERSION``."""

    def __init__(self, repository: ModelRepository) -> None:
        self._repository = repository

    @override
    def predictor(self, model: str) -> Engine:
        name, _, version = model.partition("@")
        try:
            engine = self._repository.engine(name, version)
        except ModelNotFoundError as error:
            names = {entry.name for entry in self._repository.index()}
            if name in names:
                raise
            why = f"this worker has no such model (it has {listed(names)})"
            raise ModelNotFoundError(name, why) from error
        if engine.lost_reason is not None:
            raise ModelNotReadyError(name, "no instance of it is left on this worker")
        return engine

    @override
    def identity(self, model: str) -> str:
        metadata = self.predictor(model).metadata
        return f"{metadata.name} sha256:{metadata.fingerprint}"


@dataclass(frozen=True, slots=True)
class OpenedWorker:
    """A worker with its models and components, built but not started."""

    worker: Worker
    repository: ModelRepository
    components: JobComponents
    health: WorkerHealth
    listener: ListenerThread | None = None
    """The listener of metrics and probes. It opens first, and closes last."""
    scaler: InstanceScaler | None = None
    """The scaler of the models; None if every number of instances is fixed."""
    tracing: Tracing = field(default_factory=Tracing)
    _stopping: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        """Connect, load the models and start to claim jobs.

        If a step fails, stop everything and raise its error.
        """
        try:
            if self.listener is not None:
                self.listener.start()
            self.components.start()
            self.repository.start()
            if self.scaler is not None:
                self.scaler.start()
            self.worker.start()
        except BaseException:
            self.stop(drain=False)
            raise
        if not self._stopping.is_set():
            self.health.phase = "running"

    def stop(self, *, drain: bool = True) -> None:
        """Drain the worker, unload the models, disconnect and export the remaining spans.

        Run all steps even if one raises.
        """
        self.health.phase = "stopping"
        with ExitStack() as stack:
            stack.callback(self.tracing.close)
            if self.listener is not None:
                stack.callback(self.listener.stop)
            stack.callback(self.components.stop)
            stack.callback(self.repository.stop, drain=False)
            if self.scaler is not None:
                stack.callback(self.scaler.stop)
            # Requests to an unresponsive store end here, before the models are unloaded.
            stack.callback(self.components.stores.close)
            self.worker.stop(drain=drain)

    def run(self, on_ready: Callable[[], None] | None = None) -> None:
        """Work until SIGTERM or SIGINT, then drain; block meanwhile. Call it in the main thread.

        A second signal returns all running jobs to their queues at once. The process ends at the latest
        `Worker.stop_s_max` seconds after the first signal, and `SECOND_SIGNAL_S` after a second.
        """
        run_until_signal(
            self.start,
            self.stop,
            partial(self.worker.stop, drain=False),
            stop_s_max=self.worker.stop_s_max,
            on_ready=on_ready,
            on_signal=self._on_signal,
        )

    def _on_signal(self) -> None:
        self._stopping.set()
        self.health.phase = "stopping"


def open_worker(
    models: Sequence[ServedModel],
    locations: JobLocations,
    *,
    settings: WorkerSettings | None = None,
    serving: ServeSettings | None = None,
    model_options: Mapping[str, Any] | None = None,
    isolation: Isolation = "process",
    retention: Retention | None = None,
    file: JobsFile | None = None,
    listener: WorkerListenerOptions | None = None,
) -> OpenedWorker:
    """Build a worker: find its models, open its components, and bind its port for metrics and probes.

    It connects and loads nothing yet. Models run in separate processes unless `isolation` says
    otherwise. Only a process can be killed, timed out or run out of memory without the worker. Traces
    are exported if the ``OTEL_*`` environment variables request it. Raises ConfigError for invalid
    settings and a port in use.
    """
    worker_settings = settings or WorkerSettings()
    tracing = open_tracing()
    repository = job_repository(
        models, serving or ServeSettings(), model_options, isolation, concurrency=worker_settings.concurrency
    )
    components = open_job_components(
        locations,
        file,
        maintain_s=worker_settings.maintain_s,
        hold_off_s=worker_settings.lease_s,
        retention=retention,
        # Without the key, webhooks would be tried in vain.
        deliver=file is not None and locations.key_file is not None,
        # The transactions of a worker are short, and many workers share one database.
        connections_max=1,
        tracer=tracing.jobs,
    )
    worker = join_worker(components, repository, worker_settings)
    dataplane = Dataplane(repository, version=headrace.__version__)
    reading = SharedReading(components.ledger.now_ms)
    health = WorkerHealth(dataplane.ready, partial(_responded, reading, worker_settings.lease_s))
    options = listener or WorkerListenerOptions()
    thread = None
    if options.metrics_port is not None:
        guard = Guard(bound_to=options.host)
        sources = (process_metrics(components.ledger, reading), worker_metrics(worker))
        app = worker_app(MetricsApp(Metrics(dataplane, sources=sources), guard), health, guard)
        thread = ListenerThread(HttpListener(app, options.host, options.metrics_port))
    scales = any(d.settings.instances_max is not None for d in repository.definitions())
    scaler = InstanceScaler(RepositoryModels(repository)) if scales else None
    return OpenedWorker(worker, repository, components, health, thread, scaler, tracing)


def _responded(reading: SharedReading[int], seconds: float) -> bool:
    """Return True if the ledger responded in the last `seconds`. A worker without jobs asks it, too."""
    reading.latest()
    return reading.succeeded_within(seconds)


def join_worker(components: JobComponents, repository: ModelRepository, settings: WorkerSettings) -> Worker:
    """Return a worker over components and models that are already built.

    The caller starts them before the worker and stops them after it.
    """
    return Worker(
        components.ledger,
        job_kinds(ServedModels(repository), components.stores, components.paths),
        settings,
        models=_model_names(repository),
        version=headrace.__version__,
        read_report=_WorkerFigures(repository).report,
        listen=None if components.dispatcher is None else components.dispatcher.listener,
        secure=_DurableResults(components.stores, components.paths).secure,
        ended=_ResultPublication(components.publication).ended,
        hide=components.paths.store_uri,
        tracer=components.tracer,
    )


def job_kinds(models: Models, stores: Stores, paths: JobPaths) -> dict[Kind, KindRunner]:
    """Return the runners of all kinds of jobs."""
    return {
        "infer": InferKind(models, stores, paths),
        "transform": RunJobs(models, stores, transform_settings),
        "stream": RunJobs(models, stores, stream_settings),
    }


class _WorkerFigures:
    """The figures that a worker reports: of its host, and of the processes of its models."""

    def __init__(self, repository: ModelRepository) -> None:
        self._repository = repository
        self._host = HostFigures()

    def report(self) -> WorkerReport:
        death = self._repository.last_death()
        return WorkerReport(
            ready=self._repository.ready(),
            memory_bytes=self._host.memory_bytes(),
            gpus=self._host.gpus(),
            last_crash=None if death is None else ModelCrash(**asdict(death)),
        )


def _model_names(repository: ModelRepository) -> list[str]:
    """Return the names by which jobs can call the models: NAME and NAME@VERSION."""
    index = repository.index()
    return sorted({e.name for e in index} | {f"{e.name}@{e.version}" for e in index if e.version})


def job_repository(
    models: Sequence[ServedModel],
    serving: ServeSettings,
    model_options: Mapping[str, Any] | None,
    isolation: Isolation,
    *,
    concurrency: int,
) -> ModelRepository:
    """Return the repository of a worker that runs `concurrency` jobs at once."""
    found, _ = open_repository(models, serving, model_options)
    definitions = [_isolated(d, isolation) for d in found.definitions()]
    return ModelRepository(definitions, in_flight_max=concurrency + 3, traffic=process_traffic())


def _isolated(definition: ModelDefinition, isolation: Isolation) -> ModelDefinition:
    """Return the definition with `isolation` as its default.

    Models in processes inherit no environment variable with a secret-like name, unless their
    settings name the variables to pass.
    """
    settings = definition.settings
    where = settings.isolation or isolation
    environ_pass = settings.environ_pass
    if environ_pass is None and where == "process":
        environ_pass = tuple(sorted(name for name in os.environ if not _SECRET_NAME.search(name)))
    return replace(definition, settings=replace(settings, isolation=where, environ_pass=environ_pass))


@dataclass(frozen=True, slots=True)
class _DurableResults:
    """Makes the stored results of several jobs durable with one flush, before they are settled.

    Local results are written without an fsync each.
    """

    stores: Stores
    paths: JobPaths

    def secure(self, settlements: Sequence[Settlement]) -> Sequence[Settlement]:
        store = self.stores.for_uri(self.paths.store_uri)
        if not isinstance(store, LocalStore):
            return settlements
        if not any(map(self._is_stored_result, settlements)):
            return settlements
        try:
            store.flush(self.paths.store_uri)
        except HeadraceError as error:
            _log.error("results could not be made durable: %s", error)
            return [not_durable(s) if self._is_stored_result(s) else s for s in settlements]
        return settlements

    def _is_stored_result(self, settlement: Settlement) -> bool:
        outcome = settlement.outcome
        return isinstance(outcome, Completed) and outcome.result.uri.startswith(self.paths.store_uri)


@dataclass(frozen=True, slots=True)
class _ResultPublication:
    """Publishes the end of a job that ended in this worker, as the ledger has it by now."""

    publication: Publication

    def ended(self, attempt: Attempt, _settlement: Settlement) -> None:
        if attempt.job.spec.output_uri:
            self.publication.publish_or_record(attempt.job)
