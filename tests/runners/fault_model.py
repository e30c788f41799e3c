"""A model for workers in other processes, with rows that fail, kill or block the process.

The first call with the row WAITS writes its process id to the file ``waits`` in the folder of the
environment variable FAULT_MODEL_FOLDER, and never returns.
"""

import os
import threading
from pathlib import Path

import numpy as np

import headrace

WAITS = 7777.0
KILLS = 6666.0
FAILS = 5555.0


class FaultModel(headrace.Model):
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
            raise headrace.RowError(dict.fromkeys(bad, "on purpose"))
        return x.sum(axis=1)

    def _wait_once(self) -> None:
        folder = Path(os.environ["FAULT_MODEL_FOLDER"])
        complete = folder / f"{os.getpid()}.tmp"
        complete.write_text(str(os.getpid()))
        try:
            (folder / "waits").hardlink_to(complete)
        except FileExistsError:
            return
        threading.Event().wait()


SPEC = f"{__file__}:FaultModel"
