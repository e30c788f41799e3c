"""Models that processes of their own make by name."""

import numpy as np

from headrace.core import Model


class Echo(Model):
    def predict(self, **tensors):
        return tensors


class Sum(Model):
    def predict(self, x):
        return x.reshape(len(x), -1)[:, :1].copy()


class Streams(Model):
    async def predict_stream(self, requests):
        async for request in requests:
            for i in range(int(request["n"][0])):
                yield {"i": np.array([i])}
