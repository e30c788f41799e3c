"""A model whose calls can be waited for, and that some rows kill: for workers in other processes.

The folder is named by the environment's DOOMED: there a first call for a row WAITS leaves its process's number, and never returns.
"""

import os
import threading
from pathlib import Path

import numpy as np

import headrace

WAITS = 7777.0
KILLS = 6666.0
FAILS = 5555.0


class Doomed(headrace.Model):
    """The sum of two numbers."""

    inputs = (headrace.TensorSpec("x", "FP64", (-1, 2)),)
    outputs = (headrace.TensorSpec("y", "FP64", (-1,)),)
    max_batch_rows = 50

    def predict(self, x: np.ndarray) -> np.ndarray:
        first = x[:, 0]
        if (first == KILLS).any():
            os._exit(9)
        if (first == WAITS).any():
            self._wait_once()
        bad = np.flatnonzero(first == FAILS).tolist()
        if bad:
            raise headrace.RowError(dict.fromkeys(bad, "as it was told"))
        return x.sum(axis=1)

    def _wait_once(self) -> None:
        try:
            file = (Path(os.environ["DOOMED"]) / "waits").open("x")
        except FileExistsError:
            return
        with file:
            file.write(f"{os.getpid()}\n")
        threading.Event().wait()


SPEC = f"{__file__}:Doomed"
