"""A model that takes a moment per batch, so that a kill finds it at work."""

import time

import numpy as np

from headrace import Model


class Slow(Model):
    max_batch_rows = 20

    def predict(self, x: np.ndarray) -> np.ndarray:
        time.sleep(0.002)
        return (x * np.arange(1, x.shape[1] + 1, dtype=x.dtype)).sum(axis=1)
