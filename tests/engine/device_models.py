"""Models on a device that breaks for the rest of the process, as a CUDA context does."""

import os
from contextlib import suppress
from pathlib import Path

import numpy as np

from headrace.core import HandleResponse, Model, TensorSpec

POISON = -1.0
"""An index that breaks the device."""
ASSERTION = (
    "CUDA error: device-side assert triggered\n"
    "CUDA kernel errors might be asynchronously reported at some other API call"
)


class AcceleratorError(RuntimeError):
    """The type that torch raises."""


class Context:
    """The device context of this process."""

    broken = False
    calls_when_broken = 0


def run_kernel(values):
    """Return the values, unless one is poison or the device is broken."""
    if Context.broken:
        Context.calls_when_broken += 1
    Context.broken = Context.broken or bool((np.asarray(values) == POISON).any())
    if Context.broken:
        raise AcceleratorError(ASSERTION)
    return values


class Embedding(Model):
    """Returns its input; takes rows, opaque requests and streams.

    Each load adds a line to `loads` in `folder`, and waits for a writer of the pipe `gate` there.
    """

    inputs = (TensorSpec("x", "FP32", (-1, 1)),)
    max_batch_delay_ms = 20

    def __init__(self, folder=None):
        self.folder = None if folder is None else Path(folder)

    def load(self):
        run_kernel(0.0)
        if self.folder is None:
            return
        with (self.folder / "loads").open("a") as loads:
            loads.write(f"{os.getpid()}\n")
        with suppress(FileNotFoundError):
            (self.folder / "gate").read_bytes()

    def predict(self, x):
        return run_kernel(x)

    def handle(self, requests):
        return [self._respond(float(request.body)) for request in requests]

    def _respond(self, value):
        if value >= 100:
            return HandleResponse(str(run_kernel(POISON if n == 2 else n)).encode() for n in range(4))
        return str(run_kernel(value))

    async def predict_stream(self, requests):
        async for request in requests:
            yield {"x": run_kernel(request["x"])}


class PlainEmbedding(Embedding):
    """The same with a plain generator."""

    def predict_stream(self, requests):
        for request in requests:
            yield {"x": run_kernel(request["x"])}


class Quick(Model):
    """Rows only, for inline calls."""

    inputs = (TensorSpec("x", "FP32", (-1, 1)),)
    isolation = "inline"

    def predict(self, x):
        return run_kernel(x)


class Decoder(Model):
    """Adds up the steps of each sequence."""

    inputs = (TensorSpec("x", "FP32", (-1, 1)),)
    max_batch_delay_ms = 0

    def step(self, states, x):
        total = states.stack("total", (1,)) + run_kernel(x)
        states.keep("total", total)
        return total


class Freeing(Decoder):
    """Breaks the device when a sequence ends."""

    def sequence_ended(self, state, why):
        run_kernel(POISON if state["total"][0] else 0)


class Unwarmable(Decoder):
    """Breaks the device when the sequence of the warm-up ends."""

    def sequence_ended(self, state, why):
        run_kernel(POISON)


class BoardGoneError(Exception):
    """An error of a device that headrace does not know."""


class OnBoard(Model):
    """Names its unrecoverable errors itself."""

    def predict(self, x):
        try:
            return run_kernel(x)
        except AcceleratorError as error:
            raise BoardGoneError("no answer") from error

    def is_unrecoverable(self, error):
        return isinstance(error, BoardGoneError)


class Careless(Model):
    """Calls every error unrecoverable; raises the error that its input selects."""

    def predict(self, x):
        if x[0, 0] == POISON:
            raise MemoryError("CUDA error: out of memory")
        return x

    def is_unrecoverable(self, error):
        return True


class Faulty(Model):
    """Has an `is_unrecoverable` that fails."""

    def predict(self, x):
        if x[0, 0] == POISON:
            raise ValueError("odd")
        return x

    def is_unrecoverable(self, error):
        raise KeyError("oops")


class Adapter(Model):
    """Takes whole requests, which no other process can."""

    def predict(self, x):
        return run_kernel(x)

    def predict_request(self, request):
        return run_kernel(request["x"])
