"""The models of tests/environments/clients, as a user would write them."""

import asyncio

import numpy as np

from headrace import Model, RowError
from headrace.core.tensor import TensorSpec


def _text(value):
    """Return the text of a BYTES element: str in JSON, else bytes."""
    return value.decode() if isinstance(value, bytes) else value


class Echo(Model):
    """A model that returns its input in the declared datatype."""

    bytes_as = "sent"

    def __init__(self, datatype):
        self.inputs = (TensorSpec("x", datatype, (-1, -1)),)
        self.outputs = (TensorSpec("y", datatype, (-1, -1)),)

    def predict(self, x):
        return {"y": x}


class Sum(Model):
    """A model with two inputs and two outputs."""

    inputs = (TensorSpec("a", "INT32", (-1, 4)), TensorSpec("b", "INT32", (-1, 4)))
    outputs = (TensorSpec("sum", "INT32", (-1, 4)), TensorSpec("difference", "INT32", (-1, 4)))
    max_batch_rows = 64

    def predict(self, a, b):
        return {"sum": a + b, "difference": a - b}


class Upper(Model):
    """A model of text."""

    inputs = (TensorSpec("text", "BYTES", (-1,)),)
    outputs = (TensorSpec("upper", "BYTES", (-1,)),)

    def predict(self, text):
        return {"upper": np.array([_text(t).upper() for t in text], object)}


class Words(Model):
    """A stream of the words of a text. The word ``!`` raises an error."""

    inputs = (TensorSpec("text", "BYTES", (-1,)),)
    outputs = (TensorSpec("word", "BYTES", (-1,)),)

    async def predict_stream(self, requests):
        async for request in requests:
            for text in request["text"].ravel():
                for word in _text(text).split():
                    if word == "!":
                        raise ValueError("no word: !")
                    yield {"word": np.array([word], object)}


class Held(Model):
    """A stream that sends ``held`` and then blocks until its client disconnects.

    For the text ``started`` or ``closed`` it returns the number of such streams.
    """

    inputs = (TensorSpec("text", "BYTES", (-1,)),)
    outputs = (TensorSpec("status", "BYTES", (-1,)),)

    def load(self):
        self.counts = {"started": 0, "closed": 0}

    async def predict_stream(self, requests):
        async for request in requests:
            event = _text(request["text"].ravel()[0])
            if event in self.counts:
                yield {"status": np.array([str(self.counts[event])], object)}
                continue
            self.counts["started"] += 1
            try:
                yield {"status": np.array(["held"], object)}
                await asyncio.Event().wait()
            finally:
                self.counts["closed"] += 1


class Fails(Model):
    """A model that raises an error, and refuses negative values row by row."""

    inputs = (TensorSpec("x", "FP32", (-1, 1)),)
    outputs = (TensorSpec("y", "FP32", (-1, 1)),)

    def predict(self, x):
        if (x < 0).any():
            raise RowError({int(row): "negative" for row in np.flatnonzero(x[:, 0] < 0)})
        raise ValueError("out of luck")


class RunningSum(Model):
    """``x[n, 1] -> sum[n, 1]``: the sum of all values of the sequence."""

    inputs = (TensorSpec("x", "FP32", (-1, 1)),)
    outputs = (TensorSpec("sum", "FP32", (-1, 1)),)

    def step(self, states, x):
        """Return the sums."""
        sums = states.stack("sum", (1,)) + x
        states.keep("sum", sums)
        return {"sum": sums}
