"""A model that computes on one core, in plain Python, so long that reading and writing do not
matter.
"""

import time

import numpy as np

import headrace

ROW_US = 200.0
"""CPU time per row."""


class Busy(headrace.Model):
    inputs = (headrace.TensorSpec("x", "FP32", (-1, 30)),)
    outputs = (headrace.TensorSpec("y", "FP32", (-1,)),)
    max_batch_rows = 500

    def predict(self, x: np.ndarray) -> np.ndarray:
        ends_s = time.thread_time() + len(x) * ROW_US / 1e6
        while time.thread_time() < ends_s:
            pass
        return x.sum(axis=1)
