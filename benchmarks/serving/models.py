"""The models that are served beside the bare servers."""

import asyncio
import time

import numpy as np

from headrace import Model, TensorSpec


class Echo(Model):
    """Some microseconds: what is measured is everything else."""

    inputs = (TensorSpec("x", "FP32", (-1, 16)),)
    outputs = (TensorSpec("output", "FP32", (-1, 16)),)
    max_batch_rows = 32
    writes_inputs = False

    def predict(self, x):
        return x


class Wide(Echo):
    inputs = (TensorSpec("x", "FP32", (-1, 30)),)
    outputs = (TensorSpec("output", "FP32", (-1, 30)),)
    max_batch_rows = 256


class Slow(Echo):
    """A GPU, as a batcher sees it."""

    def predict(self, x):
        time.sleep(0.005 + 0.00005 * len(x))
        return x


class Words(Model):
    """A hundred words without a pause."""

    async def predict_stream(self, requests):
        async for _ in requests:
            for i in range(100):
                yield {"word": [f"word{i}"]}


class Stamps(Model):
    """Says when it yields, on the machine's monotonic clock, ten times a tenth of a second."""

    async def predict_stream(self, requests):
        async for _ in requests:
            for _ in range(10):
                yield {"ns": np.array([time.monotonic_ns()])}
                await asyncio.sleep(0.01)


class StampsInThread(Model):
    """The same as a plain generator, which has a thread of its own."""

    def predict_stream(self, requests):
        for _ in requests:
            for _ in range(10):
                yield {"ns": np.array([time.monotonic_ns()])}
                time.sleep(0.01)
