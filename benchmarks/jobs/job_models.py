"""The models whose jobs are measured: what they take is time on a device of their own, and no processor."""

import time

import numpy as np

from headrace import Model, TensorSpec


class Instant(Model):
    """Twice the row's sum, at once: what is measured is everything else."""

    inputs = (TensorSpec("x", "FP32", (-1, 4)),)
    outputs = (TensorSpec("y", "FP32", (-1,)),)
    max_batch_rows = 64
    writes_inputs = False
    call_s = 0.0

    def predict(self, x):
        if self.call_s:
            time.sleep(self.call_s)
        return 2 * x.sum(axis=1)


class Millisecond(Instant):
    """The same, a millisecond later."""

    call_s = 0.001


class Tenth(Instant):
    """A tenth of a second a call, whatever the rows: ten rows and more cost what one does."""

    call_s = 0.1
    max_batch_rows = 16


class Stamp(Model):
    """Says when it was called, in nanoseconds since the epoch."""

    inputs = (TensorSpec("x", "FP32", (-1, 4)),)
    outputs = (TensorSpec("at_ns", "INT64", (-1,)),)

    def predict(self, x):
        return np.full(len(x), time.time_ns(), np.int64)
