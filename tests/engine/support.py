"""Requests for engine tests, and engines that are always stopped."""

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import numpy as np

from headrace.core import InferRequest, Model, Tensor
from headrace.engine import Engine
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
