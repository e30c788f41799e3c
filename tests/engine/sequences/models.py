"""A model with a step, and requests for it."""

import asyncio
import threading

import numpy as np

from engine.support import WAIT_S, rows
from headrace.core import InferRequest, Model, Tensor


class Adding(Model):
    """Adds up `x` by sequence; some values do something else."""

    max_batch_rows = 8
    max_batch_delay_ms = 0.0
    ODD, KEYBOARD, MEMORY, LAST, WRONG = 100.0, 101.0, 102.0, 103.0, 104.0
    AGAIN = 200.0

    def __init__(self):
        self.calls = []
        self.ended = []
        self.gate = None
        self.raises = None
        """The exception for `ODD`; a ValueError by default."""
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
            state.reschedule()

    def sequence_ended(self, state, why):
        self.ended.append((state.id, str(why), float(sum(state.get("total", [0.0])))))


def step_request(*values, tensors=None, deadline=None, **parameters):
    """Return a request of `values`; without inputs if there are none."""
    inputs = [Tensor("x", rows(*values))] if values else []
    inputs += [Tensor(name, np.asarray(data)) for name, data in (tensors or {}).items()]
    return InferRequest(tuple(inputs), parameters=parameters, deadline=deadline)


def start(id, *values, **settings):
    """Return a request that starts a sequence."""
    return step_request(*values, sequence_id=id, sequence_start=True, **settings)


def more(id, *values, **settings):
    """Return a request that continues a sequence."""
    return step_request(*values, sequence_id=id, **settings)


def end(id, *values, **settings):
    """Return a request that ends a sequence."""
    return step_request(*values, sequence_id=id, sequence_end=True, **settings)


def many_sequences_request(ids, values, *, strict_start=True):
    """Return a request whose rows start many sequences."""
    return step_request(
        *values, tensors={"sequence_id": np.array(ids, object), "sequence_start": [strict_start] * len(ids)}
    )


def submit_result(engine, request, **settings):
    """Return the values or the error of a `submit`."""
    future = engine.submit(request, **{"strict": True, **settings})
    error = future.exception(WAIT_S)
    if error is not None:
        return error
    response = future.result()
    return response.outputs[0].data.ravel().tolist() if response.outputs else []


def run(coroutine):
    """Return the result of a coroutine, within a time limit."""
    return asyncio.run(asyncio.wait_for(coroutine, WAIT_S))
