"""A real server in its own thread, with metrics and observers, and a small client."""

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
from headrace.jobs.access import Access
from headrace.server.application import Guard, WebApp
from headrace.server.dataplane import Dataplane
from headrace.server.listen import HttpListener, new_event_loop
from headrace.server.metrics import Metrics, MetricsApp
from headrace.server.observation import Observer
from headrace.server.rest import model_app

WAIT_S = 30.0
SCRAPES_MAX = 500

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@dataclass(frozen=True)
class Response:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return orjson.loads(self.body)


@dataclass(frozen=True)
class EndCounter:
    """An observer that counts finished requests. Clients may read a response before its end."""

    ended: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def begin(self, seen: Any) -> None:
        pass

    def end(self, seen: Any) -> None:
        self.ended.release()

    def wait(self, count: int = 1) -> None:
        for _ in range(count):
            assert self.ended.acquire(timeout=WAIT_S)


class ObservedServer:
    """A running server. `rest` and `metrics` are its ports."""

    def __init__(self, repository: ModelRepository, dataplane: Dataplane, app: WebApp) -> None:
        self.repository = repository
        self.dataplane = dataplane
        self.app = app
        self.loop: asyncio.AbstractEventLoop = new_event_loop()
        self._listeners = [
            HttpListener(app, "127.0.0.1", 0, direct=app.direct),
            HttpListener(MetricsApp(Metrics(dataplane, [app.response_counters])), "127.0.0.1", 0),
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
        """Run a coroutine in the event loop of the server."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(WAIT_S)

    def request(
        self,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        *,
        method: str = "",
        port: int | None = None,
    ) -> Response:
        """Send one request; with a body it is a POST."""
        connection = http.client.HTTPConnection("127.0.0.1", port or self.rest, timeout=WAIT_S)
        try:
            data = body if isinstance(body, bytes | None) else orjson.dumps(body)
            connection.request(method or ("GET" if body is None else "POST"), path, data, dict(headers or {}))
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Response(response.status, found, response.read())
        finally:
            connection.close()

    def request_all(self, asked: Sequence[tuple[str, Any]], threads: int = 16) -> list[Response]:
        """Send many requests concurrently."""
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(lambda one: self.request(*one), asked))

    def scrape(self) -> Samples:
        """Return all samples by name and labels. No sample may occur twice."""
        response = self.request("/metrics", port=self.metrics)
        assert response.status == 200, response.body
        return samples(response.body.decode())

    def scrape_until(self, wanted: Callable[[Samples], bool]) -> Samples:
        """Return the first scrape that meets a condition, of at most SCRAPES_MAX."""
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


def samples_of(found: Samples, name: str) -> dict[tuple[str, ...], float]:
    """Return the samples of a name by their label values, in the order of the label names."""
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
    """Return an inference request for input `x`, FP32 ``[n, 1]``."""
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
) -> Iterator[ObservedServer]:
    repository = ModelRepository(definitions)
    dataplane = Dataplane(repository, version=headrace.__version__, changeable=True)
    app = model_app(dataplane, guard=Guard(access), observers=observers)
    served = ObservedServer(repository, dataplane, app)
    served.start()
    try:
        yield served
    finally:
        served.stop()
