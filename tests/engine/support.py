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
from headrace.engine import Engine
from headrace.engine.settings import ServeSettings
from headrace.engine.ticket import FutureReply, Ticket

WAIT_S = 30.0


def rows(*values: float) -> np.ndarray:
    """A float32 column ``[n, 1]``."""
    return np.array(values, np.float32).reshape(-1, 1)


def request(x: Any = None, **settings: Any) -> InferRequest:
    """A request for input `x`; one row by default."""
    data = rows(1.0) if x is None else np.asarray(x)
    return InferRequest((Tensor("x", data),), **settings)


def ticket(asked: InferRequest, **settings: Any) -> Ticket:
    """A ticket whose answer goes to a future."""
    return Ticket(asked, asked.rows, 0.0, FutureReply(Future()), **settings)


@contextmanager
def nothing_left() -> Iterator[None]:
    """No process, file, or thread of what runs inside outlives it."""
    me = psutil.Process()
    # Servers of other tests may go on beside, and start and end processes of their own meanwhile.
    others = {p.pid for p in me.children()}
    fds, threads = me.num_fds(), threading.active_count()
    yield
    mine = [p for p in me.children() if p.pid not in others]
    assert [p.cmdline()[:3] for own in mine for p in (own, *own.children(recursive=True))] == []
    assert me.num_fds() <= fds
    assert threading.active_count() <= threads


@contextmanager
def running(make: Any, **settings: Any) -> Iterator[Engine]:
    """A started engine around a model (an object is shared by all instances)."""
    engine = Engine((lambda: make) if isinstance(make, Model) else make, name="m", **settings)
    engine.start()
    try:
        yield engine
    finally:
        engine.stop(drain=False)


def answer(engine: Engine, *args: Any, **settings: Any) -> Any:
    """Ask for `request(...)` and wait for the response."""
    return engine.submit(request(*args, **settings)).result(WAIT_S)


def predicted(model: Any, x: Any, **settings: Any) -> Any:
    """The response of a fresh engine around `model`."""
    with running(model, **settings) as engine:
        return answer(engine, x)


@contextmanager
def serving(make: Any, *, clock: Any = None, **settings: Any) -> Iterator[Engine]:
    """A started engine that joins requests, in a thread unless asked otherwise."""
    serve = ServeSettings(**{"isolation": "thread", **settings})
    factory = (lambda: make) if isinstance(make, Model) else make
    engine = Engine(factory, name="m", serving=serve, clock=clock)
    engine.start()
    try:
        yield engine
    finally:
        engine.stop(drain=False)


async def on_thread(function: Any, *args: Any) -> Any:
    """What a blocking function comes to, without blocking this event loop."""
    return await asyncio.wait_for(asyncio.to_thread(function, *args), WAIT_S)


async def until(holds: Any) -> None:
    """Wait, in turns with everybody else, until something holds."""
    async with asyncio.timeout(WAIT_S):
        while not holds():  # noqa: ASYNC110 - of anything, in any thread
            await asyncio.sleep(0.001)


def values(response: InferResponse) -> list[Any]:
    """What the first output holds, flat."""
    return response.outputs[0].data.ravel().tolist()
