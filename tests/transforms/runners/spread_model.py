"""Models for workers elsewhere: one that takes its time, so that a kill finds it at work; one that kills; one that never loads."""

import os
import time
from pathlib import Path

import numpy as np

from headrace import Model, RowError

POISON = 1_000_000


class Quick(Model):
    """The sum of a row with weights; a negative first number is refused, and POISON ends the process unless a file
    ``harmless`` is beside this one."""

    max_batch_rows = 20
    _batch_s = 0.0

    def predict(self, x: np.ndarray) -> np.ndarray:
        time.sleep(self._batch_s)
        if (x[:, 0] == POISON).any() and not Path(__file__).with_name("harmless").exists():
            os._exit(9)
        bad = dict.fromkeys(np.flatnonzero(x[:, 0] < 0).tolist(), "negative")
        if bad:
            raise RowError(bad)
        return (x * np.arange(1, x.shape[1] + 1, dtype=x.dtype)).sum(axis=1)


class Slow(Quick):
    """The same, of which a batch takes as long as one of a real model."""

    _batch_s = 0.01


class Broken(Model):
    """Cannot be loaded."""

    def __init__(self) -> None:
        raise OSError("the weights of broken are gone")

    def predict(self, x: np.ndarray) -> np.ndarray:
        return x
