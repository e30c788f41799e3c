"""A worker of jobs: models, kinds, and the parts that it stands on, joined."""

import logging
import os
import re
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any, Final

from headrace.app.job_parts import JobParts, JobsAt, open_parts
from headrace.app.serving import ServedModel, open_repository
from headrace.config.jobs_file import JobsFile
from headrace.core.errors import HeadraceError, ModelNotFoundError
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
from headrace.jobs.maintenance.sweeper import Retention
from headrace.jobs.places import Places
from headrace.jobs.publication import Publication
from headrace.jobs.worker.settings import WorkerSettings
from headrace.jobs.worker.turns import unsecured
from headrace.jobs.worker.worker import Worker
from headrace.storage.local import LocalStore
from headrace.storage.resolve import Stores

__all__ = ["JobsAt", "OpenedWorker", "ServedModels", "job_repository", "join_worker", "open_worker"]

_SECRET: Final = re.compile(
    r"^(AWS|AZURE|GOOGLE|GCP|PG|HEADRACE|SMTP)_?|SECRET|PASSWORD|PASSWD|TOKEN|CREDENTIAL|PRIVATE|_KEY$|_DSN$|_URL$",
    re.IGNORECASE,
)
"""Names of variables that a worker needs, and its models do not: ``environ_pass`` in ``model.toml`` names those that one does."""

_log = logging.getLogger("headrace.jobs")

_SHOWN_MODELS: Final = 20


class ServedModels:
    """Implements `headrace.jobs.kind.Models` over a repository."""

    def __init__(self, repository: ModelRepository) -> None:
        self._repository = repository

    def predictor(self, model: str) -> Engine:
        """See `Models.predictor`."""
        name, _, version = model.partition("@")
        try:
            return self._repository.engine(name, version)
        except ModelNotFoundError as error:
            known = sorted({entry.name for entry in self._repository.index()})
            if name in known:
                raise
            shown = ", ".join(known[:_SHOWN_MODELS]) + (", …" if len(known) > _SHOWN_MODELS else "")
            raise ModelNotFoundError(name, f"this worker has no such model (it has {shown})") from error

    def identity(self, model: str) -> str:
        """See `Models.identity`."""
        metadata = self.predictor(model).metadata
        return f"{metadata.name} sha256:{metadata.fingerprint}"


@dataclass(frozen=True, slots=True)
class OpenedWorker:
    """A worker that is put together, and not started."""

    worker: Worker
    repository: ModelRepository
    parts: JobParts
    _leaving: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        """Connect, load the models, begin to work. Raises what kept it from that, leaving nothing running."""
        try:
            self.parts.start()
            self.repository.start()
            self.worker.start()
        except BaseException:
            self.stop(drain=False)
            raise

    def stop(self, *, drain: bool = True) -> None:
        """Drain, let go of the models, disconnect. All of it is tried, whatever one of them raises."""
        with ExitStack() as ending:
            ending.callback(self.parts.stop)
            ending.callback(self.repository.stop, drain=False)
            # What waits for a store that does not answer, waits no longer.
            ending.callback(self.parts.stores.close)
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
    file: JobsFile | None = None,
) -> OpenedWorker:
    """Put a worker together: find the models, name the places. Nothing is connected or loaded yet.

    Models run in processes of their own unless `isolation` says otherwise: only those can be killed, timed out, and run out
    of memory alone. Raises ConfigError for what cannot be.
    """
    used = settings or WorkerSettings()
    repository = job_repository(
        models, serving or ServeSettings(), model_options, isolation, concurrency=used.concurrency
    )
    parts = open_parts(
        at,
        file,
        maintain_s=used.maintain_s,
        hold_off_s=used.lease_s,
        retention=retention,
        deliver=file is not None,
    )
    return OpenedWorker(join_worker(parts, repository, used), repository, parts)


def join_worker(parts: JobParts, repository: ModelRepository, settings: WorkerSettings) -> Worker:
    """A worker over parts and models whose life is somebody else's: started before, stopped after."""
    known = ServedModels(repository)
    kinds: dict[Kind, KindRunner] = {
        "infer": InferKind(known, parts.stores, parts.places),
        "transform": TransformKind(known, parts.stores),
        "stream": StreamKind(known, parts.stores),
    }
    return Worker(
        parts.ledger,
        kinds,
        settings,
        listen=None if parts.dispatcher is None else parts.dispatcher.listener,
        secure=_Securing(parts.stores, parts.places).secure,
        ended=_Ending(parts.ledger, parts.publication).ended,
        hide=parts.places.store_uri,
    )


def job_repository(
    models: Sequence[ServedModel],
    serving: ServeSettings,
    model_options: Mapping[str, Any] | None,
    isolation: Isolation,
    *,
    concurrency: int,
) -> ModelRepository:
    """The models of a worker, of which `concurrency` jobs ask at once."""
    found, _ = open_repository(models, serving, model_options)
    definitions = [_confined(d, isolation) for d in found.definitions()]
    return ModelRepository(definitions, in_flight_max=concurrency + 3)


def _confined(definition: ModelDefinition, isolation: Isolation) -> ModelDefinition:
    """Where its settings say nothing else: in a process of its own, which does not inherit what looks like a secret."""
    settings = definition.settings
    where = settings.isolation or isolation
    passed = settings.environ_pass
    if passed is None and where == "process":
        passed = tuple(sorted(name for name in os.environ if not _SECRET.search(name)))
    return replace(definition, settings=replace(settings, isolation=where, environ_pass=passed))


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
