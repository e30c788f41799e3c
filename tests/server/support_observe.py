"""A real server on loopback ports, in a loop and thread of its own, and a small client: for tests of what can be observed."""

import asyncio
import http.client
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
from prometheus_client.parser import text_string_to_metric_families

import headrace
from headrace.core import Model
from headrace.engine.repository import ModelDefinition, ModelRepository
from headrace.engine.settings import ServeSettings
from headrace.server.dataplane import Dataplane
from headrace.server.listen import HttpListener, new_event_loop
from headrace.server.metrics import Metrics, MetricsApp
from headrace.server.observation import Observer
from headrace.server.rest import RestApp
from headrace.server.security import Access

WAIT_S = 30.0
SCRAPES_MAX = 500

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@dataclass(frozen=True)
class Answered:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return orjson.loads(self.body)


@dataclass(frozen=True)
class Ended:
    """An observer that tells when requests are over: their answers are read before."""

    ended: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def begin(self, seen: Any) -> None:
        pass

    def end(self, seen: Any) -> None:
        self.ended.release()

    def wait(self, count: int = 1) -> None:
        for _ in range(count):
            assert self.ended.acquire(timeout=WAIT_S)


class Served:
    """A server that runs; `rest` and `metrics` are ports."""

    def __init__(self, repository: ModelRepository, dataplane: Dataplane, app: RestApp) -> None:
        self.repository = repository
        self.dataplane = dataplane
        self.app = app
        self.loop: asyncio.AbstractEventLoop = new_event_loop()
        self._listeners = [
            HttpListener(app, "127.0.0.1", 0, direct=app.direct),
            HttpListener(MetricsApp(Metrics(dataplane, [app.answers])), "127.0.0.1", 0),
        ]
        self.rest, self.metrics = (listener.port for listener in self._listeners)
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)

    def start(self) -> None:
        self.repository.start()
        self._thread.start()
        for listener in self._listeners:
            self.run(listener.start())

    def stop(self) -> None:
        for listener in self._listeners:
            self.run(listener.stop(1.0))
        self.repository.stop(drain=False)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(WAIT_S)
        self.loop.close()

    def run(self, coroutine: Any) -> Any:
        """Run something in the server's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(WAIT_S)

    def ask(
        self,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        *,
        method: str = "",
        port: int | None = None,
    ) -> Answered:
        """One exchange, by POST where there is a body."""
        connection = http.client.HTTPConnection("127.0.0.1", port or self.rest, timeout=WAIT_S)
        try:
            data = body if isinstance(body, bytes | None) else orjson.dumps(body)
            connection.request(method or ("GET" if body is None else "POST"), path, data, dict(headers or {}))
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Answered(response.status, found, response.read())
        finally:
            connection.close()

    def ask_all(self, asked: Sequence[tuple[str, Any]], threads: int = 16) -> list[Answered]:
        """Many exchanges side by side."""
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(lambda one: self.ask(*one), asked))

    def scrape(self) -> Samples:
        """All samples, by name and labels; none may be there twice."""
        answered = self.ask("/metrics", port=self.metrics)
        assert answered.status == 200, answered.body
        return samples(answered.body.decode())

    def scrape_until(self, wanted: Callable[[Samples], bool]) -> Samples:
        """The first scrape that is as wanted, of so many."""
        for _ in range(SCRAPES_MAX):
            if wanted(found := self.scrape()):
                return found
        raise AssertionError("no scrape was as wanted")


def samples(text: str) -> Samples:
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, f"{key} is there twice"
            found[key] = sample.value
    return found


def value(found: Samples, name: str, **labels: str) -> float:
    return found[name, frozenset(labels.items())]


def named(found: Samples, name: str) -> dict[tuple[str, ...], float]:
    """Samples of a name, by the values of their labels in the order of the labels' names."""
    return {
        tuple(text for _, text in sorted(labels)): number
        for (sample, labels), number in found.items()
        if sample == name
    }


def definition(
    make: Any, name: str = "m", version: str = "1", *, isolation: Any = "inline", **settings: Any
) -> ModelDefinition:
    model = (lambda: make) if isinstance(make, Model) else make
    return ModelDefinition(name, version, model, settings=ServeSettings(isolation=isolation, **settings))


def infer(*values: float, id: str = "", **parameters: Any) -> dict[str, Any]:
    """An inference request for input `x`, FP32 ``[n, 1]``."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [len(values), 1], "data": list(values)}
    found: dict[str, Any] = {"inputs": [tensor]}
    if id:
        found["id"] = id
    if parameters:
        found["parameters"] = parameters
    return found


@contextmanager
def serving(
    *definitions: ModelDefinition,
    observers: Sequence[Observer] | None = None,
    access: Access | None = None,
) -> Iterator[Served]:
    repository = ModelRepository(definitions)
    dataplane = Dataplane(repository, version=headrace.__version__, changeable=True)
    app = RestApp(dataplane, access=access, observers=observers)
    served = Served(repository, dataplane, app)
    served.start()
    try:
        yield served
    finally:
        served.stop()
