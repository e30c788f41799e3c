"""Models for workers in other processes: a quick one, a slow one, and one that cannot be loaded."""

import os
from pathlib import Path

import numpy as np

from headrace import Model, RowError

POISON = 1_000_000
NOISE = np.random.default_rng(0).random(100_000)


class Quick(Model):
    """The weighted sum of a row.

    A negative first number is refused. POISON ends the process unless a file ``harmless`` is next to
    this module.
    """

    max_batch_rows = 20

    def predict(self, x: np.ndarray) -> np.ndarray:
        if (x[:, 0] == POISON).any() and not Path(__file__).with_name("harmless").exists():
            os._exit(9)
        bad = dict.fromkeys(np.flatnonzero(x[:, 0] < 0).tolist(), "negative")
        if bad:
            raise RowError(bad)
        return (x * np.arange(1, x.shape[1] + 1, dtype=x.dtype)).sum(axis=1)


class Slow(Quick):
    """The quick model with some milliseconds of computation per batch, so that kills hit a busy worker."""

    def predict(self, x: np.ndarray) -> np.ndarray:
        np.sort(NOISE)
        return super().predict(x)


class Broken(Model):
    """A model that cannot be loaded."""

    def __init__(self) -> None:
        raise OSError("the weights of broken are gone")

    def predict(self, x: np.ndarray) -> np.ndarray:
        return x
