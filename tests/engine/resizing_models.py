"""Models for engines that change their number of instances, importable by other processes."""

import numpy as np

from headrace.core import HandleResponse, Model

BAD = -1.0
"""A value that the models refuse by an exception."""
LONG = 50.0
"""From this value on, a call takes about a millisecond."""


def _work(x):
    if (x == BAD).any():
        raise ValueError("bad")
    if (x >= LONG).any():
        sum(range(50_000))


class Plain(Model):
    """Doubles: by `predict`, by `predict_stream` and by `handle`."""

    max_batch_rows = 4
    max_batch_delay_ms = 0.5

    def predict(self, x):
        _work(x)
        return x * np.float32(2)

    def predict_stream(self, requests):
        for request in requests:
            yield self.predict(request["x"])

    def handle(self, requests):
        return [self._handle(request.body) for request in requests]

    def _handle(self, body):
        if body == b"bad":
            raise ValueError("bad")
        if body.startswith(b"chunks"):
            return HandleResponse((body for _ in range(3)), content_type="text/x")
        return body * 2


class Adding(Model):
    """Adds up `x` by sequence."""

    max_batch_rows = 4
    max_batch_delay_ms = 0.5

    def step(self, states, x):
        _work(x)
        total = states.stack("total", (1,)) + x
        states.keep("total", total)
        return total
