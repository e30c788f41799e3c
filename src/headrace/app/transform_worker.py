"""Start a transform worker in another process or on another machine, from a serialisable spec."""

import os
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson

from headrace.app.model_copy import ModelCopy, StoredCopy
from headrace.app.predictors import (
    ModelLike,
    OpenedPredictor,
    PredictorOptions,
    RunningPredictor,
    add_current_folder_to_path,
    model_reference,
    open_predictor,
)
from headrace.core.errors import ConfigError, HeadraceError, ModelLoadError
from headrace.runners.messages import Message
from headrace.runners.processes import ConnectedWorker
from headrace.runners.worker import TaskWorker
from headrace.runs.settings import RunSettings, settings_from_identity
from headrace.runtimes.load import model_files
from headrace.storage.resolve import Stores
from headrace.storage.uri import parse


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
    if model is not None and not isinstance(model, str):
        raise ConfigError(
            "workers load the model themselves: name it as a file, a folder or module:Class, or use threads"
        )
    if parse(destination).scheme == "memory":
        raise ConfigError(
            "memory:// objects exist in this process only: choose another destination, or use threads"
        )
    return WorkerSpec(
        destination=destination.rstrip("/") + "/",
        **model_reference(model, endpoint, options),
        identity=identity,
        per_object=settings.per_object,
        settings=settings.identity(),
        flow=asdict(settings.flow),
        checkpoint_s=settings.output.checkpoint_s,
        stores={"retry_s": stores.retry_s, "timeout_s": stores.timeout_s},
        modules=sys.path,
        folder=str(Path.cwd()),
    )


def with_absolute_model(spec: WorkerSpec) -> WorkerSpec:
    """Return the spec with an absolute model path, for workers with another current directory."""
    if spec.model is None or not model_files(spec.model):
        return spec
    # Links stay unresolved: the path is part of the model's name.
    return replace(spec, model=os.path.abspath(spec.model))  # noqa: PTH100


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
            spec.settings, per_object=spec.per_object, flow=spec.flow, checkpoint_s=spec.checkpoint_s
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
            opened = open_predictor(spec.model, spec.endpoint, options)
        except HeadraceError:
            if self.copy is None:
                raise
            opened = None
        if opened is not None and opened.identity == spec.identity:
            return opened
        if self.copy is not None:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="headrace-model-")))
            copy = self.copy.get(stores) if isinstance(self.copy, StoredCopy) else self.copy
            opened = open_predictor(copy.unpack(folder), None, options)
        if opened is None or opened.identity != spec.identity:
            raise ModelLoadError(
                spec.model or "model",
                f"the worker's model ({opened and opened.identity}) differs from the run's "
                f"({spec.identity}): install the same model on all machines",
            )
        return opened


_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1])['modules']; "
    "from headrace.app.transform_worker import run_worker; run_worker(*sys.argv[1:])"
)


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
