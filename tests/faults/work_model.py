"""The model of the fault tests: slow, on request harmful, and it leaves word of each row that it was asked for."""

import ctypes
import os
import select
import signal
import sys
from pathlib import Path

import numpy as np

from headrace import Model, TensorSpec

FOLDER = "FAULTS_FOLDER"
"""The variable that names the folder where `EXECUTIONS` is."""
EXECUTIONS = "executions"
"""A line for each time that a row was asked for: the job's number, the process, and how often before."""

WORK_MS_MAX = 10_000
"""What says more is no job but what is left of a spoilt file."""
DEEDS = ("wait_once", "segfault", "hog", "loop", "hold", "leave", "fork", "wait")


def deed_number(name: str) -> int:
    """What the third column names: 0 is work, and the others are numbers that no spoilt file holds by chance."""
    return 0 if name == "work" else -1000 - DEEDS.index(name)


def _sleep(seconds: float) -> None:
    # Not time.sleep, which fails under faketime.
    select.select([], [], [], seconds)


class Work(Model):
    """``y = 2 n + 1`` for rows of (n, milliseconds, deed): a job's number, how long it takes, and what it does."""

    inputs = (TensorSpec("x", "FP64", (-1, 3)),)
    outputs = (TensorSpec("y", "FP64", (-1,)),)
    max_batch_rows = 4

    def load(self) -> None:
        """Where to leave word."""
        self.path = Path(os.environ[FOLDER], EXECUTIONS)

    def warm_up(self) -> None:
        """Nothing: no job asks for it."""

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Leave word, do what is asked for, and take as long as the longest row says."""
        self._leave_word(x[:, 0])
        work_ms = np.where(x[:, 1] <= WORK_MS_MAX, x[:, 1], 0)
        for number, _, deed in x[np.isin(x[:, 2], [deed_number(name) for name in DEEDS])]:
            name = DEEDS[-1000 - int(deed)]
            if name != "wait_once" or not self._asked_before(number):
                getattr(self, name)()
        _sleep(work_ms.max() / 1000)
        return 2 * x[:, 0] + 1

    def _asked_before(self, number: float) -> bool:
        known = self.path.read_text().splitlines()
        return sum(line.startswith(f"{number:.0f} ") for line in known) > 1

    def _leave_word(self, numbers: np.ndarray) -> None:
        text = "".join(f"{n:.0f} {os.getpid()}\n" for n in numbers)
        # One write at the end of the file, so that what others leave stays whole.
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(file, text.encode())
        os.close(file)

    def wait(self) -> None:
        """Until somebody kills this process, or a file named `go` is there."""
        while not self.path.with_name("go").exists():
            _sleep(0.02)

    wait_once = wait

    def segfault(self) -> None:
        """Touch what is not ours."""
        ctypes.string_at(0)

    def hog(self) -> None:
        """Touch ever more memory, up to far above the bound that holds."""
        self.held = [np.ones(2**21) for _ in range(256)]

    def loop(self) -> None:
        """Without end, in Python."""
        while True:
            pass

    def hold(self) -> None:
        """Python's lock, in compiled code that sleeps."""
        ctypes.PyDLL(None).sleep(600)

    def leave(self) -> None:
        """As a handler that thinks it is a script."""
        sys.exit(3)

    def fork(self) -> None:
        """Children that live, up to a bound that is far above the one that holds."""
        for _ in range(200):
            if not os.fork():
                signal.pause()
                os._exit(0)
        self.loop()
