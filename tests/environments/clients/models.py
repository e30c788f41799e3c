"""The models that the clients of tests/environments/clients ask, as a user would write them."""

import asyncio

import numpy as np

from headrace import Model, RowError
from headrace.core.tensor import TensorSpec


def _text(value):
    """BYTES are str where they came as JSON, and bytes where they came as they are."""
    return value.decode() if isinstance(value, bytes) else value


class Echo(Model):
    """Its input, unchanged, in whatever datatype the model is declared with."""

    bytes_as = "sent"

    def __init__(self, datatype):
        self.inputs = (TensorSpec("x", datatype, (-1, -1)),)
        self.outputs = (TensorSpec("y", datatype, (-1, -1)),)

    def predict(self, x):
        return {"y": x}


class Sum(Model):
    """Two inputs, two outputs."""

    inputs = (TensorSpec("a", "INT32", (-1, 4)), TensorSpec("b", "INT32", (-1, 4)))
    outputs = (TensorSpec("sum", "INT32", (-1, 4)), TensorSpec("difference", "INT32", (-1, 4)))
    max_batch_rows = 64

    def predict(self, a, b):
        return {"sum": a + b, "difference": a - b}


class Upper(Model):
    """Text in, text out."""

    inputs = (TensorSpec("text", "BYTES", (-1,)),)
    outputs = (TensorSpec("upper", "BYTES", (-1,)),)

    def predict(self, text):
        return {"upper": np.array([_text(t).upper() for t in text], object)}


class Words(Model):
    """The words of a text one by one; ``!`` is a word at which it breaks."""

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
    """Says ``held`` and then nothing more, until its caller goes; asked for ``begun`` or ``gone``, says how many there were."""

    inputs = (TensorSpec("text", "BYTES", (-1,)),)
    outputs = (TensorSpec("said", "BYTES", (-1,)),)

    def load(self):
        self.counts = {"begun": 0, "gone": 0}

    async def predict_stream(self, requests):
        async for request in requests:
            asked = _text(request["text"].ravel()[0])
            if asked in self.counts:
                yield {"said": np.array([str(self.counts[asked])], object)}
                continue
            self.counts["begun"] += 1
            try:
                yield {"said": np.array(["held"], object)}
                await asyncio.Event().wait()
            finally:
                self.counts["gone"] += 1


class Fails(Model):
    """Raises whatever it is given; negative values are refused row by row."""

    inputs = (TensorSpec("x", "FP32", (-1, 1)),)
    outputs = (TensorSpec("y", "FP32", (-1, 1)),)

    def predict(self, x):
        if (x < 0).any():
            raise RowError({int(row): "negative" for row in np.flatnonzero(x[:, 0] < 0)})
        raise ValueError("out of luck")


class RunningSum(Model):
    """``x[n, 1] -> sum[n, 1]``: of all that its sequence was given."""

    inputs = (TensorSpec("x", "FP32", (-1, 1)),)
    outputs = (TensorSpec("sum", "FP32", (-1, 1)),)

    def step(self, states, x):
        """The sums."""
        sums = states.stack("sum", (1,)) + x
        states.keep("sum", sums)
        return {"sum": sums}
