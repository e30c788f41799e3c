"""The models of the job benchmark. Their calls take time, as on a separate device, but no CPU."""

import time

import numpy as np

from headrace import Model, TensorSpec


class Instant(Model):
    """Return twice the row's sum, without a delay, so that everything else is measured."""

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
    """`Instant` with a delay of a millisecond."""

    call_s = 0.001


class Tenth(Instant):
    """A tenth of a second for each call: ten rows and more cost as much as one."""

    call_s = 0.1
    max_batch_rows = 16


class Stamp(Model):
    """Return the time of the call, in nanoseconds since the epoch."""

    inputs = (TensorSpec("x", "FP32", (-1, 4)),)
    outputs = (TensorSpec("at_ns", "INT64", (-1,)),)

    def predict(self, x):
        return np.full(len(x), time.time_ns(), np.int64)
