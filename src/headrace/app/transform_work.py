"""What a transform's worker needs to know, wherever it runs, and how it opens what it works with."""

import os
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from typing import Any

import orjson

from headrace.app.streaming import (
    ModelLike,
    OpenedPredictor,
    PredictorOptions,
    open_predictor,
    see_modules_here,
)
from headrace.core.errors import ConfigError, ModelLoadError
from headrace.core.predictor import Predictor
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
    )


def _opened(job: WorkerJob) -> OpenedPredictor:
    """The model; ModelLoadError when it is another one than the run's."""
    opened = open_predictor(job.model, job.endpoint, PredictorOptions(**job.options))
    if opened.identity != job.identity:
        raise ModelLoadError(
            job.model or "model",
            f"a worker finds another model there than the run ({opened.identity} and {job.identity}): all of them must "
            "have the same one",
        )
    return opened


@contextmanager
def opened_worker(
    job: WorkerJob,
    tell: Callable[[Message], None],
    *,
    environ: Mapping[str, str] | None = None,
    region: str | None = None,
) -> Generator[Worker]:
    """A worker whose model is loaded, and lets go of it at the end.

    `environ` is what it has beside its process's own, for reaching the stores. Raises what loading the model raises.
    """
    see_modules_here()
    opened = _opened(job)
    settings = settings_of(job.settings, flow=job.flow, checkpoint_s=job.checkpoint_s)
    surroundings = None if environ is None else {**os.environ, **environ}
    with Started(opened.predictor), Stores(surroundings, **job.stores) as stores:
        yield Worker(
            opened.predictor,
            tell,
            stores=stores,
            destination=job.destination,
            settings=settings,
            region=region,
        )


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
    with opened_worker(WorkerJob.from_json(job), orders.tell, region=region or None) as worker:
        orders.run(worker)
