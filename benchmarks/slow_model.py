"""A model like one on a separate device: 5 ms for a batch, without CPU."""

import time

from headrace import Model, TensorSpec


class Slow(Model):
    max_batch_rows = 1024
    inputs = (TensorSpec("x", "FP32", (-1, 30)),)

    def predict(self, x):
        time.sleep(0.005)
        return x[:, 0]
