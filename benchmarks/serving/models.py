"""The models that are served for the comparison with the minimal servers."""

import asyncio
import time

import numpy as np

from headrace import Model, TensorSpec


class Echo(Model):
    """A model of some microseconds, so that everything else is measured."""

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
    """The timing of a GPU, for a batcher."""

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
    """The time of each yield on the monotonic clock, ten times, every hundredth of a second."""

    async def predict_stream(self, requests):
        async for _ in requests:
            for _ in range(10):
                yield {"ns": np.array([time.monotonic_ns()])}
                await asyncio.sleep(0.01)


class StampsInThread(Model):
    """`Stamps` as a plain generator, which has its own thread."""

    def predict_stream(self, requests):
        for _ in requests:
            for _ in range(10):
                yield {"ns": np.array([time.monotonic_ns()])}
                time.sleep(0.01)
