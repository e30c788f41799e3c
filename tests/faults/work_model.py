"""The model of the fault tests: slow, harmful on request, with a log of its rows."""

import ctypes
import fcntl
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

from headrace import Model, TensorSpec

FOLDER = "FAULTS_FOLDER"
"""The environment variable that names the folder of `EXECUTIONS` and `HELD`."""
EXECUTIONS = "executions"
"""A file with a line per row that the model was called with: the job's number and the process."""
HELD = "held"
"""A file that the test locks: the actions `wait` and `wait_once` wait for its lock."""

WORK_MS_MAX = 10_000
"""Longer work does not come from a job, but from a damaged file: the model does not do it."""
ACTIONS = ("wait_once", "segfault", "hog", "loop", "hold", "leave", "fork", "wait")


def action_number(name: str) -> int:
    """Return the third column of an action: 0 for work, else no number that damage makes by chance."""
    return 0 if name == "work" else -1000 - ACTIONS.index(name)


class Work(Model):
    """``y = 2 n + 1`` for rows of (n, milliseconds, action): number, duration and action of a job."""

    inputs = (TensorSpec("x", "FP64", (-1, 3)),)
    outputs = (TensorSpec("y", "FP64", (-1,)),)
    max_batch_rows = 4

    def load(self) -> None:
        self.folder = Path(os.environ[FOLDER])

    def warm_up(self) -> None:
        """Do nothing: a call would count as an execution."""

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Log the rows, do their actions, and take as long as the longest row."""
        self._log(x[:, 0])
        for number, _, action in x[np.isin(x[:, 2], [action_number(name) for name in ACTIONS])]:
            name = ACTIONS[-1000 - int(action)]
            if name != "wait_once" or self._first_call(number):
                getattr(self, name)()
        time.sleep(np.where(x[:, 1] <= WORK_MS_MAX, x[:, 1], 0).max() / 1000)
        return 2 * x[:, 0] + 1

    def _first_call(self, number: float) -> bool:
        lines = (self.folder / EXECUTIONS).read_text().splitlines()
        return sum(line.startswith(f"{number:.0f} ") for line in lines) == 1

    def _log(self, numbers: np.ndarray) -> None:
        text = "".join(f"{n:.0f} {os.getpid()}\n" for n in numbers)
        # One write at the end of the file, so that processes do not mix their lines.
        file = os.open(self.folder / EXECUTIONS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(file, text.encode())
        os.close(file)

    def wait(self) -> None:
        """Wait until the test unlocks the file, or kills this process."""
        with (self.folder / HELD).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH)

    wait_once = wait

    def segfault(self) -> None:
        """Read from address 0."""
        ctypes.string_at(0)

    def hog(self) -> None:
        """Allocate memory until far above the limit."""
        self.held = [np.ones(2**21) for _ in range(256)]

    def loop(self) -> None:
        """Loop without an end, in Python."""
        while True:
            pass

    def hold(self) -> None:
        """Hold the global interpreter lock in compiled code that sleeps."""
        ctypes.PyDLL(None).sleep(600)

    def leave(self) -> None:
        """Call `sys.exit`, like a script."""
        sys.exit(3)

    def fork(self) -> None:
        """Start processes that stay, until far above the limit."""
        for _ in range(200):
            if not os.fork():
                signal.pause()
                os._exit(0)
        self.loop()
