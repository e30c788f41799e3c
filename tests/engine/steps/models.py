"""A model with a step, and requests for it."""

import asyncio
import threading

import numpy as np

from engine.support import WAIT_S, rows
from headrace.core import InferRequest, Model, Tensor


class Adding(Model):
    """Adds up `x`, sequence by sequence; some values do something else."""

    max_batch_rows = 8
    max_batch_delay_ms = 0.0
    ODD, KEYBOARD, MEMORY, LAST, WRONG = 100.0, 101.0, 102.0, 103.0, 104.0
    AGAIN = 200.0

    def __init__(self):
        self.calls = []
        self.told = []
        self.gate = None
        self.raises = None
        """What it raises on `ODD`; a ValueError where there is none."""
        self.stepping = threading.Event()

    def step(self, states, x):
        self.calls.append(x.ravel().tolist())
        self.stepping.set()
        if self.gate is not None:
            assert self.gate.wait(WAIT_S)
        total = states.stack("total", (1,)) + x
        states.keep("total", total)
        for state, value in zip(states, x.ravel().tolist(), strict=True):
            self._do(state, value, len(x))
        return total[:-1] if self.WRONG in x else total

    def _do(self, state, value, count):
        if value == self.ODD:
            raise self.raises or ValueError("odd")
        if value == self.KEYBOARD:
            raise KeyboardInterrupt
        if value == self.MEMORY and count > 2:
            raise MemoryError("full")
        if value == self.LAST:
            state.end_sequence()
        if value >= self.AGAIN and state["total"][0] < 2000.0:
            state.go_on()

    def sequence_ended(self, state, why):
        self.told.append((state.id, str(why), float(sum(state.get("total", [0.0])))))


def step_request(*values, tensors=None, deadline=None, **parameters):
    """A request for rows of `values`; none, and no inputs, where there are none."""
    inputs = [Tensor("x", rows(*values))] if values else []
    inputs += [Tensor(name, np.asarray(data)) for name, data in (tensors or {}).items()]
    return InferRequest(tuple(inputs), parameters=parameters, deadline=deadline)


def start(id, *values, **settings):
    """One that begins a sequence."""
    return step_request(*values, sequence_id=id, sequence_start=True, **settings)


def more(id, *values, **settings):
    """One that goes on with it."""
    return step_request(*values, sequence_id=id, **settings)


def end(id, *values, **settings):
    """One that ends it."""
    return step_request(*values, sequence_id=id, sequence_end=True, **settings)


def of_many(ids, values, *, strict_start=True):
    """Rows of many sequences, which begin with them."""
    return step_request(
        *values, tensors={"sequence_id": np.array(ids, object), "sequence_start": [strict_start] * len(ids)}
    )


def answered(engine, request, **settings):
    """What `submit` comes to: values, or the error."""
    future = engine.submit(request, **{"strict": True, **settings})
    error = future.exception(WAIT_S)
    if error is not None:
        return error
    response = future.result()
    return response.outputs[0].data.ravel().tolist() if response.outputs else []


def run(coroutine):
    """What a coroutine comes to, that may not hang."""
    return asyncio.run(asyncio.wait_for(coroutine, WAIT_S))
