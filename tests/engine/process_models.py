"""Models that other processes make by name, each with one behaviour."""

import asyncio
import ctypes
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from headrace.core import Model, RowError, TensorSpec, current_call

POISON = -1.0
"""A value that kills the process that predicts it."""


class Echo(Model):
    """Returns its inputs."""

    def predict(self, **tensors):
        return tensors


class Identity(Model):
    """Returns its one declared input."""

    max_batch_rows = 64

    def predict(self, x):
        return x


class Declared(Identity):
    """Declares its outputs, and fails without rows."""

    inputs = (TensorSpec("x", "FP32", (-1, 4)),)
    outputs = (TensorSpec("y", "FP64", (-1, 3)), TensorSpec("text", "BYTES", (-1, -1)))

    def predict(self, x):
        assert len(x)
        return {"y": np.ones((len(x), 3)), "text": np.full((len(x), 2), "t", object)}


class DeclaredSteps(Declared):
    """The same, one row for each step of a sequence."""

    predict = Model.predict

    def step(self, states, x):
        return Declared.predict(self, x)


class Undeclared(Declared):
    """Declares inputs only."""

    outputs = ()


class Pid(Identity):
    """Returns the id of its process for each row; dies of poison."""

    def predict(self, x):
        if (x == POISON).any():
            os.kill(os.getpid(), signal.SIGKILL)
        return np.full((len(x), 1), os.getpid())


class Apart(Pid):
    """Chooses process isolation itself."""

    isolation = "process"


class Erring(Model):
    """Raises the error that the first value selects."""

    def predict(self, x):
        kind = int(x[0, 0])
        if kind == 1:
            raise RowError(0, "refused")
        if kind == 2:
            raise MemoryError("too large")
        if kind == 3:
            raise ValueError("odd é \ud800")
        if kind == 4:
            return x[1:]
        if kind == 5:
            sys.exit(3)
        if kind == 6:
            return {"o": np.array([None] * len(x), object)}
        return x


class Small(Model):
    """Accepts up to two rows at once, as a small graphics card does."""

    def predict(self, x):
        if len(x) > 2:
            raise MemoryError
        return x


class Writing(Model):
    """Writes into its inputs, and returns that memory."""

    def predict(self, x):
        assert x.flags.c_contiguous
        assert x.flags.writeable
        x *= 2
        return x[::-1]


class Keeping(Model):
    """Returns the inputs of the previous call."""

    def load(self):
        self.last = None

    def predict(self, x):
        last, self.last = self.last, x
        return x if last is None else last


class Growing(Model):
    """Returns as many columns as the first value says."""

    def predict(self, x):
        return np.full((len(x), int(x[0, 0])), 7, np.uint8)


class Waiting(Model):
    """Makes a file when it begins, then works until its call is cancelled."""

    def __init__(self, folder):
        self.folder = Path(folder)

    def predict(self, x):
        if x[0, 0] == 0:
            return x
        (self.folder / "began").touch()
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            if current_call().cancelled:
                (self.folder / "cancelled").touch()
                raise TimeoutError("nobody waits")
            time.sleep(0.001)
        return x


class WaitingAsync(Waiting):
    """The same with an asynchronous `predict`, which is cancelled."""

    async def predict(self, x):
        if x[0, 0] == 0:
            return x
        (self.folder / "began").touch()
        try:
            await asyncio.sleep(20)
        except asyncio.CancelledError:
            (self.folder / "cancelled").touch()
            raise
        return x


class Unloadable(Identity):
    """Fails to load in the way that its argument names."""

    def __init__(self, how):
        self.how = how

    def load(self):
        if self.how == "raises":
            raise OSError("no weights")
        if self.how == "dies":
            os.kill(os.getpid(), signal.SIGKILL)


class LoadsOnce(Pid):
    """Loads the first time only."""

    def __init__(self, folder):
        self.mark = Path(folder) / "loaded"

    def load(self):
        if self.mark.exists():
            raise OSError("weights are gone")
        self.mark.touch()


class Closing(Identity):
    """Makes a file when it is closed; hangs there if its argument says so."""

    def __init__(self, folder, hangs=False):
        self.folder = Path(folder)
        self.hangs = hangs

    def close(self):
        if self.hangs:
            time.sleep(60)
        (self.folder / "closed").touch()


class Talking(Identity):
    """Writes to the log."""

    def predict(self, x):
        logging.getLogger("model.talking").warning("saw %d rows", len(x))
        return x


class Hanging(Identity):
    """Hangs on poison."""

    def predict(self, x):
        if (x == POISON).any():
            time.sleep(60)
        return x


class Counting(Model):
    """Yields as many items per request as it says; dies, raises or hangs by the number."""

    def predict(self, x):
        return x

    async def predict_stream(self, requests):
        async for request in requests:
            count = int(request["n"][0])
            if count == -1:
                os.kill(os.getpid(), signal.SIGKILL)
            if count == -2:
                raise ValueError("odd")
            if count == -3:
                await asyncio.sleep(60)
            if count == -4:
                yield {"bad": np.array([object()], object)}
            for i in range(count):
                yield {"i": np.array([i]), "text": request["text"] if i % 2 else "täxt"}


class CountingPlain(Model):
    """The same with a plain generator."""

    def predict(self, x):
        return x

    def predict_stream(self, requests):
        for request in requests:
            for i in range(int(request["n"][0])):
                yield {"i": np.array([i])}


def make_identity(rows_max):
    """Return a model; takes an argument."""
    model = Identity()
    model.max_batch_rows = rows_max
    return model


def make_nothing():
    """Return None instead of a model."""


class Whole(Model):
    """An adapter that is called with whole requests."""

    def predict(self, x):
        return x

    def predict_request(self, request):
        raise NotImplementedError


class Poisonous(Identity):
    """Returns its inputs, except for a poison value on which it does the harm that its argument
    names.

    `folder` is where it records what it began and what it started.
    """

    max_batch_delay_ms = 20

    def __init__(self, harm, folder):
        self.harm = harm
        self.folder = Path(folder)

    def predict(self, x):
        if (x == POISON).any():
            with (self.folder / "begun").open("a") as begun:
                begun.write("x")
            getattr(self, self.harm)()
        return x

    def segfault(self):
        ctypes.string_at(0)

    def abort(self):
        os.abort()

    def leave(self):
        os._exit(7)

    def exit_politely(self):
        sys.exit(3)

    def loop(self):
        while True:
            pass

    def hold(self):
        """Hold the GIL in compiled code that sleeps."""
        ctypes.PyDLL(None).sleep(600)

    def refuse(self):
        """Ignore every signal that can be ignored, and loop."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.loop()

    def fork(self):
        """Fork children that stay, up to a number far above the tested limit."""
        for _ in range(200):
            if not (pid := os.fork()):
                signal.pause()
                os._exit(0)
            with (self.folder / "started").open("a") as started:
                started.write(f"{pid}\n")
        self.loop()

    def fork_and_hide(self):
        """Fork a child in a session of its own, which forks another, and loop."""
        reading, writing = os.pipe()
        if not os.fork():
            os.setsid()
            if not os.fork():
                os.write(writing, b"%d\n" % os.getpid())
            signal.pause()
        pid = os.read(reading, 20)
        (self.folder / "started").write_bytes(pid)
        self.loop()

    def spawn(self):
        """Start a child in a process group of its own, in the same session, and loop."""
        child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], process_group=0)
        (self.folder / "started").write_text(f"{child.pid}\n")
        self.loop()

    def hog(self):
        """Touch ever more memory, up to an amount far above the tested limit."""
        self.held = [np.ones(2**21) for _ in range(256)]

    def hog_at_once(self):
        """Allocate more memory than the limit in one piece."""
        self.held = np.ones(2**29)


class Environment(Model):
    """Returns its environment variables for each row."""

    def predict(self, x):
        return np.array([",".join(sorted(os.environ))] * len(x), object)
