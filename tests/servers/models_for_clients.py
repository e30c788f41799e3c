"""Models that are served to clients under test."""

import asyncio
import socket

import numpy as np

from headrace import Model, RowError, TensorSpec


class Sums(Model):
    inputs = (TensorSpec("x", "FP32", (-1, 3)),)
    outputs = (TensorSpec("sum", "FP32", (-1,)), TensorSpec("share", "FP32", (-1, 3)))

    def predict(self, x):
        if (x < 0).any():
            raise RowError(int(np.flatnonzero((x < 0).any(axis=1))[0]), "a value is negative")
        return {"sum": x.sum(axis=1), "share": x / 6}


class Words(Model):
    """One output per word; after the word "fail" it raises, after "wait" it stays silent.

    With `closed_port` it connects to that port at the end of a stream.
    """

    inputs = (TensorSpec("text", "BYTES", (-1,)),)
    outputs = (TensorSpec("word", "BYTES", (-1,)),)

    def __init__(self, closed_port: int = 0):
        self.closed_port = closed_port

    async def predict_stream(self, requests):
        try:
            async for request in requests:
                words = request["text"][0]
                words = words.decode() if isinstance(words, bytes) else words
                for word in words.split()[: request.parameters.get("max_words")]:
                    yield {"word": [word + " "]}
                    if word == "fail":
                        raise ValueError("no more words")
                    if word == "wait":
                        await asyncio.sleep(3600)
        finally:
            if self.closed_port:
                socket.create_connection(("127.0.0.1", self.closed_port)).close()


class Free(Model):
    """A model that declares nothing and returns its input."""

    def predict(self, x):
        return x


class Pairs(Model):
    inputs = (TensorSpec("age", "INT64", (-1,)), TensorSpec("name", "BYTES", (-1, 1)))

    def predict(self, age, name):
        names = [v.decode() if isinstance(v, bytes) else v for v in name[:, 0]]
        return {"text": np.array([f"{n} {a}" for n, a in zip(names, age, strict=True)], object)}


class Wide(Model):
    """A model with an output of many columns, one of rank three, and one with infinities."""

    def predict(self, x):
        rows = len(x)
        return {
            "wide": np.zeros((rows, 384), np.float32),
            "cube": np.ones((rows, 2, 2), np.int64),
            "inf": np.full(rows, np.inf, np.float32),
        }
