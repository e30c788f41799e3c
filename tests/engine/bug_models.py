"""Models whose code raises unexpected exceptions, and a helper that raises for them."""

import functools

import numpy as np

from engine.bug_helper import fail_far_away
from headrace.core import Model, RowError


class Bug(Model):
    """Calls a method that does not exist."""

    max_batch_rows = 64

    def predict(self, x):
        return self.nope(x)  # the bug


class AsyncBug(Model):
    """The same bug after an await."""

    async def predict(self, x):
        return self.nope(x)  # the async bug


class Helped(Model):
    """Raises in another module."""

    def predict(self, x):
        return fail_far_away(x)  # the call


def _decorated(method):
    @functools.wraps(method)
    def call(self, x):
        return method(self, x)

    return call


class Decorated(Model):
    """Raises within a decorated method."""

    @_decorated
    def predict(self, x):
        return x.nope  # the decorated bug


class Chained(Model):
    """Raises from another exception."""

    def predict(self, x):
        try:
            return {}["weights"]
        except KeyError as error:
            raise RuntimeError("no weights") from error


class Deep(Model):
    """Recurses without an end."""

    def predict(self, x):
        return self.predict([x])


class StepBug(Model):
    """Raises in each step."""

    def step(self, states, x):
        return self.nope(x)  # the bug of a step


class StreamBug(Model):
    """Raises after its first item."""

    def predict_stream(self, requests):
        for request in requests:
            yield request["x"]
            raise LookupError("the stream ends here")


class PickyCode(Model):
    """Raises the same exception for all rows below 0, and refuses rows above 1000 by RowError."""

    max_batch_rows = 64

    def __init__(self):
        self.batch_rows = []

    def predict(self, x):
        self.batch_rows.append(len(x))
        if (x > 1000).any():
            raise RowError(int(np.argmax(x[:, 0] > 1000)), "too large")
        if (x < 0).any():
            raise ValueError("a negative row")
        return x
