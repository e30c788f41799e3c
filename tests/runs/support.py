"""Whole transforms with real engines and small models, in memory or in a folder."""

import io
import json
import tarfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any

import numpy as np

from headrace.core.errors import UnavailableError
from headrace.core.model import Model, RowError
from headrace.core.tensor import TensorSpec
from headrace.engine.engine import Engine
from headrace.formats.read_options import ReadOptions
from headrace.reports.report import Report
from headrace.runs.failure_policy import FailurePolicy
from headrace.runs.objects import check_separate, output_names, plan_objects, select_infos
from headrace.runs.output_settings import OutputSettings
from headrace.runs.plan import Plan
from headrace.runs.plan_pages import make_plan
from headrace.runs.run import Run
from headrace.runs.settings import FlowSettings, MappingOptions, RunSettings, TaskSettings, TransformSettings
from headrace.runs.tasks import InProcessRunner
from headrace.storage.contract import ObjectInfo, Store, Writer
from headrace.storage.resolve import Stores

IN = "memory://in/"
OUT = "memory://out/run/"
BATCH_ROWS = 4


class Doubler(Model):
    """A model of two numbers: ``y`` is twice the first. Refuses rows with a negative first number."""

    inputs = (TensorSpec("x", "FP64", (-1, 2)),)
    outputs = (TensorSpec("y", "FP64", (-1,)),)
    max_batch_rows = BATCH_ROWS

    def __init__(self) -> None:
        self.batch_rows: list[int] = []

    def predict(self, x):
        self.batch_rows.append(len(x))
        bad = dict.fromkeys(np.flatnonzero(x[:, 0] < 0).tolist(), "negative")
        if bad:
            raise RowError(bad)
        return {"y": x[:, 0] * 2}


class InjectedError(Exception):
    """The error that interrupts a run."""


class FailingPredictor:
    """A predictor that raises InjectedError, or calls `action`, once after `at` requests."""

    def __init__(self, inner, *, at: int, action: Callable[[], None] | None = None) -> None:
        self.inner, self.at, self.action, self.calls = inner, at, action, 0

    @property
    def metadata(self):
        return self.inner.metadata

    def submit(self, request, **how):
        self.calls += 1
        if self.calls == self.at + 1:
            if self.action is None:
                raise InjectedError
            self.action()
        return self.inner.submit(request, **how)

    def statistics(self):
        return self.inner.statistics()


@contextmanager
def engine(model: Model | None = None, **more) -> Iterator[Engine]:
    """Yield a started engine around one model object."""
    used = model or Doubler()
    make_transform = Engine(lambda: used, name="double", warm_up=False, **more)
    make_transform.start()
    try:
        yield make_transform
    finally:
        make_transform.stop()


def make_settings(
    *,
    read: Mapping[str, Any] | None = None,
    mapping: Mapping[str, Any] | None = None,
    output: Mapping[str, Any] | None = None,
    failures: Mapping[str, Any] | None = None,
    tasks: Mapping[str, Any] | None = None,
    flow: Mapping[str, Any] | None = None,
    checkpoint_s: float = 5.0,
    preset: type[RunSettings] = TransformSettings,
    **more,
) -> RunSettings:
    return preset(
        read=ReadOptions(**(read or {})),
        mapping=MappingOptions(**(mapping or {})),
        flow=FlowSettings(**(flow or {})),
        output=OutputSettings(checkpoint_s=checkpoint_s, **(output or {})),
        failures=FailurePolicy(**(failures or {})),
        tasks=TaskSettings(**(tasks or {})),
        **more,
    )


def put(stores: Stores, objects: Mapping[str, bytes], base: str = IN) -> None:
    for name, data in objects.items():
        stores.for_uri(base).put(base + name, data)


def transform(
    stores: Stores,
    *,
    predictor=None,
    source: str | Sequence[str] = IN,
    destination: str = OUT,
    settings: TransformSettings | None = None,
    identity: str = "m",
    **more,
) -> Report:
    """Run a transform to its end, with a started `predictor` or with a `Doubler`."""
    if predictor is None:
        with engine() as started:
            return transform(
                stores,
                predictor=started,
                source=source,
                destination=destination,
                settings=settings,
                identity=identity,
                **more,
            )
    return make_transform(
        stores,
        predictor=predictor,
        source=source,
        destination=destination,
        settings=settings,
        identity=identity,
        **more,
    ).execute()


def make_transform(
    stores: Stores,
    *,
    predictor,
    source: str | Sequence[str] = IN,
    destination: str = OUT,
    settings: TransformSettings | None = None,
    identity: str = "m",
    **more,
) -> Run:
    return Run(
        source,
        destination,
        stores=stores,
        runner=InProcessRunner(predictor),
        settings=settings or make_settings(),
        model_identity=identity,
        **more,
    )


def plan_of(
    stores: Stores,
    settings: RunSettings,
    source: str | Sequence[str] = IN,
    destination: str = OUT,
) -> Plan:
    """Return the plan of a run that has not begun."""
    infos = select_infos(source, stores, settings)
    names = output_names(source, infos, settings) if settings.per_object else None
    objects = plan_objects(infos, names)
    check_separate(source, destination, objects, settings.data_type)
    return make_plan([objects], settings)


def outputs(stores: Stores, destination: str = OUT) -> dict[str, bytes]:
    """Return the published outputs and failed records by name, without report and ledger."""
    store = stores.for_uri(destination)
    found = {i.uri.removeprefix(destination): i.uri for i in store.list(destination)}
    return {
        name: store.get(uri)
        for name, uri in found.items()
        if not name.startswith("_headrace/") and name != "_report.json"
    }


def ledger_names(stores: Stores, destination: str = OUT) -> list[str]:
    base = destination + "_headrace/"
    return [i.uri.removeprefix(base) for i in stores.for_uri(base).list(base)]


def failed_lines(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in data.splitlines()]


class OverlaidStores(Stores):
    """Stores with another store for URIs with one prefix."""

    def __init__(self, inner: Stores, uri_start: str, store: Store) -> None:
        super().__init__({})
        self._inner, self._uri_start, self._store = inner, uri_start, store

    def for_uri(self, uri: str) -> Store:
        return self._store if uri.startswith(self._uri_start) else self._inner.for_uri(uri)


def rows(count: int, start: int = 0) -> bytes:
    return b"".join(b"%d,1\n" % i for i in range(start, start + count))


def tar(members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def allow_small_tasks(monkeypatch) -> None:
    """Permit tasks of any size."""
    monkeypatch.setattr("headrace.runs.plan.TASK_BYTES_MIN", 1)
    monkeypatch.setattr("headrace.runs.plan.TASKS_AIM", 1)


class FailOnceStore:
    """A store whose n-th call raises UnavailableError, like a lost connection or a killed process.

    A failing write is done before the error if `write_first`.
    """

    def __init__(self, inner: Store, *, at: int, write_first: bool) -> None:
        self._inner, self._at, self._write_first = inner, at, write_first
        self._lock = threading.Lock()
        self.calls = 0
        self.failed = False

    def _count(self, uri: str, write: Callable[[], None] | None = None) -> None:
        with self._lock:
            self.calls += 1
            if self.calls != self._at:
                return
            self.failed = True
        if self._write_first and write is not None:
            write()
        raise UnavailableError(uri, "fails on purpose")

    def stream(self, uri: str, *, start: int = 0, etag: str = "") -> Iterator[bytes]:
        self._count(uri)
        return self._inner.stream(uri, start=start, etag=etag)

    def get(self, uri: str) -> bytes:
        self._count(uri)
        return self._inner.get(uri)

    def get_range(self, uri: str, start: int, length: int, *, etag: str = "") -> bytes:
        self._count(uri)
        return self._inner.get_range(uri, start, length, etag=etag)

    def put(self, uri: str, data: bytes) -> None:
        self._count(uri, lambda: self._inner.put(uri, data))
        self._inner.put(uri, data)

    def put_if_absent(self, uri: str, data: bytes) -> None:
        self._count(uri, lambda: self._inner.put_if_absent(uri, data))
        self._inner.put_if_absent(uri, data)

    def writer(self, uri: str) -> Writer:
        self._count(uri)
        return self._inner.writer(uri)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        self._count(prefix)
        return self._inner.list(prefix)

    def head(self, uri: str) -> ObjectInfo:
        self._count(uri)
        return self._inner.head(uri)

    def delete(self, uri: str) -> None:
        self._count(uri, lambda: self._inner.delete(uri))
        self._inner.delete(uri)


def shuffle(run: Run, random: Random) -> None:
    """Make the run's tasks run one by one in random order, like those of separate workers."""
    real = run._scoring._runner.run

    def shuffled(work, tasks):
        order = random.sample(list(tasks), len(tasks))
        return all(real(work, [task]) for task in order)

    run._scoring._runner.run = shuffled
