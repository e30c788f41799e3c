"""Requests for engine tests, and engines that are always stopped."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import numpy as np
import psutil

from headrace.core import InferRequest, InferResponse, Model, Tensor
from headrace.core.clock import SystemClock
from headrace.engine import Engine
from headrace.engine.pending_request import FutureCallback, PendingRequest
from headrace.engine.settings import ServeSettings

WAIT_S = 30.0


class InstantClock(SystemClock):
    """The machine's clock, whose sleeps end at once: for restarts without their delays."""

    def sleep(self, seconds: float, wake: threading.Event | None = None) -> bool:
        del seconds
        return wake is not None and wake.is_set()


def rows(*values: float) -> np.ndarray:
    """Return a float32 column ``[n, 1]``."""
    return np.array(values, np.float32).reshape(-1, 1)


def request(x: Any = None, **settings: Any) -> InferRequest:
    """Return a request for input `x`; one row by default."""
    data = rows(1.0) if x is None else np.asarray(x)
    return InferRequest((Tensor("x", data),), **settings)


def pending_request(infer_request: InferRequest, **settings: Any) -> PendingRequest:
    """Return a pending request whose result goes to a future."""
    return PendingRequest(infer_request, infer_request.rows, 0.0, FutureCallback(Future()), **settings)


@contextmanager
def no_leaks() -> Iterator[None]:
    """Assert that no process, file or thread of the block outlives it."""
    me = psutil.Process()
    # Servers of other tests may run, start and end processes meanwhile.
    others = {p.pid for p in me.children()}
    fds, threads = me.num_fds(), threading.active_count()
    yield
    mine = [p for p in me.children() if p.pid not in others]
    assert [p.cmdline()[:3] for own in mine for p in (own, *own.children(recursive=True))] == []
    assert me.num_fds() <= fds
    assert threading.active_count() <= threads


@contextmanager
def running(make: Any, **settings: Any) -> Iterator[Engine]:
    """Yield a started engine around a model (all instances share an object)."""
    engine = Engine((lambda: make) if isinstance(make, Model) else make, name="m", **settings)
    engine.start()
    try:
        yield engine
    finally:
        engine.stop(drain=False)


def submit_and_wait(engine: Engine, *args: Any, **settings: Any) -> Any:
    """Submit `request(...)` and return its response."""
    return engine.submit(request(*args, **settings)).result(WAIT_S)


def fresh_response(model: Any, x: Any, **settings: Any) -> Any:
    """Return the response of a fresh engine around `model`."""
    with running(model, **settings) as engine:
        return submit_and_wait(engine, x)


class OverlapDetector:
    """A count of the most loads of models that happened at the same time."""

    def __init__(self) -> None:
        self.peak = 0
        self._active = 0
        self._changed = threading.Condition()

    def begin(self) -> None:
        with self._changed:
            self._active += 1
            self.peak = max(self.peak, self._active)
            self._changed.notify_all()
            # Time for another load to begin, if loads can overlap.
            self._changed.wait_for(lambda: self.peak > 1, timeout=0.05)

    def end(self) -> None:
        with self._changed:
            self._active -= 1

    def model(self) -> type[Model]:
        """Return a model class that is counted from its first line until it is warmed up."""
        detector = self

        class Overlapping(Model):
            def __init__(self) -> None:
                detector.begin()

            def warm_up(self) -> None:
                detector.end()

            def predict(self, x: Any) -> Any:
                return x

        return Overlapping


@contextmanager
def serving(make: Any, *, clock: Any = None, **settings: Any) -> Iterator[Engine]:
    """Yield a started engine that batches requests, in a thread by default."""
    serve = ServeSettings(**{"isolation": "thread", **settings})
    factory = (lambda: make) if isinstance(make, Model) else make
    engine = Engine(factory, name="m", serving=serve, clock=clock)
    engine.start()
    try:
        yield engine
    finally:
        engine.stop(drain=False)


async def in_thread(function: Any, *args: Any) -> Any:
    """Return the result of a blocking function without blocking this event loop."""
    return await asyncio.wait_for(asyncio.to_thread(function, *args), WAIT_S)


async def wait_until(holds: Any) -> None:
    """Poll, while other tasks run, until `holds()` is true."""
    async with asyncio.timeout(WAIT_S):
        while not holds():  # noqa: ASYNC110 - a condition of any thread
            await asyncio.sleep(0.001)


def values(response: InferResponse) -> list[Any]:
    """Return the first output, flat."""
    return response.outputs[0].data.ravel().tolist()
