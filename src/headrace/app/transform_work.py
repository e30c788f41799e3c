"""What a transform's worker needs to know, wherever it runs, and how it opens what it works with."""

import os
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson

from headrace.app.model_copy import ModelCopy, StoredCopy
from headrace.app.streaming import (
    ModelLike,
    OpenedPredictor,
    PredictorOptions,
    open_predictor,
    see_modules_here,
)
from headrace.core.errors import ConfigError, HeadraceError, ModelLoadError
from headrace.core.predictor import Predictor
from headrace.runtimes.load import model_files
from headrace.storage.resolve import Stores
from headrace.storage.uri import parse
from headrace.transforms.runners.connected import ConnectedWorker
from headrace.transforms.runners.messages import Message
from headrace.transforms.runners.worker import Worker
from headrace.transforms.settings import TransformSettings, settings_of


class Started(AbstractContextManager[None]):
    """A predictor, started while it is entered."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor

    def __enter__(self) -> None:
        self._predictor.start()

    def __exit__(self, *_: object) -> None:
        self._predictor.stop(drain=False)


@dataclass(frozen=True, slots=True)
class WorkerJob:
    """All that a worker needs to know, as plain values; nothing of it is secret."""

    destination: str
    model: str | None
    endpoint: str | None
    options: Mapping[str, Any]
    identity: str
    settings: Mapping[str, Any]
    flow: Mapping[str, Any]
    checkpoint_s: float
    stores: Mapping[str, Any]
    modules: Sequence[str]
    """Where the run looks for modules."""
    folder: str
    """The run's current directory: paths may be relative to it."""

    def to_json(self) -> bytes:
        """For a command line, or to be sent."""
        return orjson.dumps(self)

    @classmethod
    def from_json(cls, text: bytes | str) -> "WorkerJob":
        """Read back."""
        return cls(**orjson.loads(text))


def made_with(model: ModelLike | None, endpoint: str | None, options: PredictorOptions) -> dict[str, Any]:
    """How the model is named, where it has a name."""
    named = model if isinstance(model, str) else None
    return {"model": named, "endpoint": endpoint, "options": asdict(options)}


def worker_job(
    destination: str,
    model: ModelLike | None,
    endpoint: str | None,
    settings: TransformSettings,
    options: PredictorOptions,
    *,
    identity: str,
    stores: Stores,
) -> WorkerJob:
    """What workers of a transform are told. Raises ConfigError for a model or a place that only this process has."""
    if model is not None and not isinstance(model, str):
        raise ConfigError(
            "workers load the model by themselves: name it as a file, a folder or module:Class, or use threads"
        )
    if parse(destination).scheme == "memory":
        raise ConfigError(
            "memory:// objects are in this process alone: choose another destination, or threads"
        )
    return WorkerJob(
        destination=destination.rstrip("/") + "/",
        **made_with(model, endpoint, options),
        identity=identity,
        settings=settings.identity(),
        flow=asdict(settings.flow),
        checkpoint_s=settings.tasks.checkpoint_s,
        stores={"retry_s": stores.retry_s, "timeout_s": stores.timeout_s},
        modules=sys.path,
        folder=str(Path.cwd()),
    )


def sent_elsewhere(job: WorkerJob) -> WorkerJob:
    """A job for workers that may have another current directory: with the model's absolute path."""
    if job.model is None or not model_files(job.model):
        return job
    return replace(job, model=os.path.abspath(job.model))  # noqa: PTH100 - resolves no links: names tell models apart


@dataclass(frozen=True, slots=True)
class WorkerOpener:
    """Opens workers, in whatever process it is sent to; called, it is a context manager around one.

    `environ` is what a worker has beside its process's own environment, for reaching the stores, and may hold secrets;
    `copy` is the model, for machines that do not have it. A worker's model is loaded when it is entered, and let go of
    at the end. Entering raises what loading the model raises, and ModelLoadError for another model than the run's.
    """

    job: WorkerJob
    environ: Mapping[str, str] | None = field(default=None, repr=False)
    copy: ModelCopy | StoredCopy | None = field(default=None, repr=False)

    @contextmanager
    def __call__(self, tell: Callable[[Message], None], region: str | None = None) -> Generator[Worker]:
        """A worker that says everything to `tell`, and is in `region`."""
        self._see_modules()
        job = self.job
        settings = settings_of(job.settings, flow=job.flow, checkpoint_s=job.checkpoint_s)
        environ = None if self.environ is None else {**os.environ, **self.environ}
        with ExitStack() as stack:
            stores = stack.enter_context(Stores(environ, **job.stores))
            opened = self._model(stack, stores)
            stack.enter_context(Started(opened.predictor))
            yield Worker(
                opened.predictor,
                tell,
                stores=stores,
                destination=job.destination,
                settings=settings,
                region=region,
            )

    def _see_modules(self) -> None:
        """Find modules where the run finds them, as far as this machine has the same folders."""
        sys.path += [p for p in self.job.modules if p not in sys.path and (not p or Path(p).exists())]
        see_modules_here()
        if Path(self.job.folder).is_dir():
            os.chdir(self.job.folder)

    def _model(self, stack: ExitStack, stores: Stores) -> OpenedPredictor:
        """The model that is here, if it is the run's; else the copy."""
        job, options = self.job, PredictorOptions(**self.job.options)
        try:
            opened = open_predictor(job.model, job.endpoint, options)
        except HeadraceError:
            if self.copy is None:
                raise
            opened = None
        if opened is not None and opened.identity == job.identity:
            return opened
        if self.copy is not None:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="headrace-model-")))
            copy = self.copy.get(stores) if isinstance(self.copy, StoredCopy) else self.copy
            opened = open_predictor(copy.unpack(folder), None, options)
        if opened is None or opened.identity != job.identity:
            raise ModelLoadError(
                job.model or "model",
                f"a worker has another model of that name ({opened and opened.identity}) than the run ({job.identity}): "
                "put the same one everywhere",
            )
        return opened


_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1])['modules']; "
    "from headrace.app.transform_work import work; work(*sys.argv[1:])"
)


def worker_command(job: WorkerJob, region: str | None) -> list[str]:
    """What a worker process of this machine is started with, but for its connection's file descriptor."""
    return ["-c", _START, job.to_json().decode(), region or ""]


def work(job: str, region: str, connection_fd: str) -> None:
    """A worker process's life, from its command line."""
    orders = ConnectedWorker(Connection(int(connection_fd)))
    with WorkerOpener(WorkerJob.from_json(job))(orders.tell, region or None) as worker:
        orders.run(worker)
