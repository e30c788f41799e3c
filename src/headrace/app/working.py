"""A worker of jobs: models, ledger, stores, kinds and chores, joined."""

import logging
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any, Final

from headrace.app.serving import ServedModel, open_repository
from headrace.core.errors import HeadraceError
from headrace.core.model import Isolation
from headrace.engine.engine import Engine
from headrace.engine.repository import ModelDefinition, ModelRepository
from headrace.engine.settings import ServeSettings
from headrace.jobs.attempt import Attempt
from headrace.jobs.job import Completed, Kind, Settlement
from headrace.jobs.kind import KindRunner
from headrace.jobs.kinds.infer import InferKind
from headrace.jobs.kinds.stream import StreamKind
from headrace.jobs.kinds.transform import TransformKind
from headrace.jobs.ledger import JobLedger
from headrace.jobs.ledgers.open import open_ledger
from headrace.jobs.maintenance.publisher import Publisher
from headrace.jobs.maintenance.reaper import Reaper
from headrace.jobs.maintenance.sweeper import Retention, Sweeper
from headrace.jobs.maintenance.upkeep import Chore, Upkeep
from headrace.jobs.places import Places
from headrace.jobs.publication import Publication
from headrace.jobs.worker.settings import WorkerSettings
from headrace.jobs.worker.turns import unsecured
from headrace.jobs.worker.worker import Worker
from headrace.storage.local import LocalStore
from headrace.storage.resolve import Stores

_log = logging.getLogger("headrace.jobs")

DATA_FOLDER: Final = "headrace-data"
LEDGER_NAME: Final = "jobs.db"
_SWEEP_S: Final = 300.0
_ORPHANS_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class JobsAt:
    """Where jobs are: the ledger's URL, and the store of what is theirs."""

    ledger_url: str
    store_uri: str

    @classmethod
    def folder(cls, path: str | Path = DATA_FOLDER) -> "JobsAt":
        """The embedded default: a folder with an SQLite file and the objects beside it."""
        base = Path(path).absolute()
        return cls(f"sqlite:///{base / LEDGER_NAME}", f"{base / 'objects'}/")

    def make_folders(self) -> None:
        """Make the folders that local places need."""
        scheme, _, path = self.ledger_url.partition(":///")
        if scheme == "sqlite":
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        if "://" not in self.store_uri:
            Path(self.store_uri).mkdir(parents=True, exist_ok=True)


class ServedModels:
    """Implements `headrace.jobs.kind.Models` over a repository."""

    def __init__(self, repository: ModelRepository) -> None:
        self._repository = repository

    def predictor(self, model: str) -> Engine:
        """See `Models.predictor`."""
        name, _, version = model.partition("@")
        return self._repository.engine(name, version)

    def identity(self, model: str) -> str:
        """See `Models.identity`."""
        metadata = self.predictor(model).metadata
        return f"{metadata.name} sha256:{metadata.fingerprint}"


@dataclass(frozen=True, slots=True)
class OpenedWorker:
    """A worker that is put together, and not started."""

    worker: Worker
    repository: ModelRepository
    ledger: JobLedger
    upkeep: Upkeep
    stores: Stores
    _leaving: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        """Connect, load the models, begin to work. Raises what kept it from that, leaving nothing running."""
        try:
            self.ledger.start()
            self.repository.start()
            self.worker.start()
            self.upkeep.start()
        except BaseException:
            self.stop(drain=False)
            raise

    def stop(self, *, drain: bool = True) -> None:
        """Drain, let go of the models, disconnect. All of it is tried, whatever one of them raises."""
        with ExitStack() as ending:
            ending.callback(self.ledger.stop)
            ending.callback(self.repository.stop, drain=False)
            ending.callback(self.upkeep.stop)
            # What waits for a store that does not answer, waits no longer.
            ending.callback(self.stores.close)
            self.worker.stop(drain=drain)

    def run(self, on_ready: Callable[[], None] | None = None) -> None:
        """Work until SIGTERM or SIGINT; blocks. In the main thread. A second signal gives all jobs back at once."""

        def leave(_number: int, _frame: FrameType | None) -> None:
            if self._leaving.is_set():
                # In a thread: what the main thread holds may be what this would wait for.
                threading.Thread(target=lambda: self.worker.stop(drain=False), daemon=True).start()
            self._leaving.set()

        before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            self.start()
            try:
                if on_ready is not None:
                    on_ready()
                self._leaving.wait()
            finally:
                self.stop()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def open_worker(
    models: Sequence[ServedModel],
    at: JobsAt,
    *,
    settings: WorkerSettings | None = None,
    serving: ServeSettings | None = None,
    model_options: Mapping[str, Any] | None = None,
    isolation: Isolation = "process",
    retention: Retention | None = None,
    stores: Stores | None = None,
    ledger: JobLedger | None = None,
) -> OpenedWorker:
    """Put a worker together: find the models, name the places. Nothing is connected or loaded yet.

    Models run in processes of their own unless `isolation` says otherwise: only those can be killed, timed out, and run out
    of memory alone. Raises ConfigError for what cannot be.
    """
    used, where = settings or WorkerSettings(), stores or Stores()
    at.make_folders()
    repository = _repository(models, serving or ServeSettings(), model_options, isolation, used.concurrency)
    job_ledger = ledger or open_ledger(at.ledger_url)
    places = Places(at.store_uri)
    known = ServedModels(repository)
    kinds: dict[Kind, KindRunner] = {
        "infer": InferKind(known, where, places),
        "transform": TransformKind(known, where),
        "stream": StreamKind(known, where),
    }
    publication = Publication(job_ledger, where, places)
    worker = Worker(
        job_ledger,
        kinds,
        used,
        secure=_Securing(where, places).secure,
        ended=_Ending(job_ledger, publication).ended,
        hide=at.store_uri,
    )
    upkeep = Upkeep(
        chores(
            job_ledger,
            publication,
            Sweeper(job_ledger, where, places, retention or Retention()),
            maintain_s=used.maintain_s,
        ),
        hold_off_s=used.lease_s,
    )
    return OpenedWorker(worker, repository, job_ledger, upkeep, where)


def chores(
    ledger: JobLedger, publication: Publication, sweeper: Sweeper, *, maintain_s: float
) -> list[Chore]:
    """What every worker does beside its jobs."""
    reaper, publisher = Reaper(ledger), Publisher(ledger, publication)
    return [
        Chore("reaper", maintain_s, reaper.tick, reaper.round_jobs),
        Chore("publisher", maintain_s, publisher.tick, publisher.round_jobs),
        Chore("sweeper", _SWEEP_S, sweeper.tick, sweeper.round_jobs),
        Chore("orphans", _ORPHANS_S, sweeper.orphans),
    ]


def _repository(
    models: Sequence[ServedModel],
    serving: ServeSettings,
    model_options: Mapping[str, Any] | None,
    isolation: Isolation,
    concurrency: int,
) -> ModelRepository:
    found, _ = open_repository(models, serving, model_options)
    definitions: list[ModelDefinition] = [
        replace(d, settings=replace(d.settings, isolation=d.settings.isolation or isolation))
        for d in found.definitions()
    ]
    return ModelRepository(definitions, in_flight_max=concurrency + 3)


@dataclass(frozen=True, slots=True)
class _Securing:
    """Results on a disk are written without waiting for it, and made durable for many jobs at once."""

    stores: Stores
    places: Places

    def secure(self, settlements: Sequence[Settlement]) -> Sequence[Settlement]:
        store = self.stores.for_uri(self.places.store_uri)
        if not isinstance(store, LocalStore):
            return settlements
        if not any(self._ours(s) for s in settlements):
            return settlements
        try:
            store.flush(self.places.store_uri)
        except HeadraceError as error:
            _log.error("results could not be made durable: %s", error)
            return [unsecured(s) if self._ours(s) else s for s in settlements]
        return settlements

    def _ours(self, settlement: Settlement) -> bool:
        outcome = settlement.outcome
        return isinstance(outcome, Completed) and outcome.result.uri.startswith(self.places.store_uri)


@dataclass(frozen=True, slots=True)
class _Ending:
    """What a worker does for a job that has ended under it."""

    ledger: JobLedger
    publication: Publication

    def ended(self, attempt: Attempt, settlement: Settlement) -> None:
        if not attempt.job.spec.output_uri or (
            isinstance(settlement.outcome, Completed) and attempt.job.spec.kind != "infer"
        ):
            return
        job = self.ledger.get_many([attempt.job.id]).get(attempt.job.id)
        if job is not None and job.lease == settlement.lease:
            self.publication.publish(job)
