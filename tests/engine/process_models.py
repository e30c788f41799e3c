"""Models that processes of their own make by name, each with one thing that it does."""

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

from headrace.core import Model, RowError, current_call

POISON = -1.0
"""A value that kills the process that is asked about it."""


class Echo(Model):
    """What it is given."""

    def predict(self, **tensors):
        return tensors


class Identity(Model):
    """One input, checked."""

    max_batch_rows = 64

    def predict(self, x):
        return x


class Pid(Identity):
    """The process that it runs in, for each row; dies of poison."""

    def predict(self, x):
        if (x == POISON).any():
            os.kill(os.getpid(), signal.SIGKILL)
        return np.full((len(x), 1), os.getpid())


class Apart(Pid):
    """Asks for a process itself."""

    isolation = "process"


class Erring(Model):
    """Raises what it is told to, by the first value."""

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
    """Takes no more than two rows at once, as a graphics card might."""

    def predict(self, x):
        if len(x) > 2:
            raise MemoryError
        return x


class Writing(Model):
    """Writes into what it is given, and answers out of that memory."""

    def predict(self, x):
        assert x.flags.c_contiguous
        assert x.flags.writeable
        x *= 2
        return x[::-1]


class Keeping(Model):
    """Answers with what it was given the last time."""

    def load(self):
        self.last = None

    def predict(self, x):
        last, self.last = self.last, x
        return x if last is None else last


class Growing(Model):
    """As many columns as the first value says."""

    def predict(self, x):
        return np.full((len(x), int(x[0, 0])), 7, np.uint8)


class Waiting(Model):
    """Says that it began by making a file, then works until nobody waits for it any more."""

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
    """The same, in an event loop that is told by cancelling."""

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
    """Does not load: how, its argument says."""

    def __init__(self, how):
        self.how = how

    def load(self):
        if self.how == "raises":
            raise OSError("no weights")
        if self.how == "dies":
            os.kill(os.getpid(), signal.SIGKILL)


class LoadsOnce(Pid):
    """Loads the first time, and never again."""

    def __init__(self, folder):
        self.mark = Path(folder) / "loaded"

    def load(self):
        if self.mark.exists():
            raise OSError("weights are gone")
        self.mark.touch()


class Closing(Identity):
    """Makes a file when it is closed; hangs there when told to."""

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
    """For each request of a stream, as many items as it says; dies, errs or hangs by the number."""

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
    """The same without an event loop, for as long as somebody takes it."""

    def predict(self, x):
        return x

    def predict_stream(self, requests):
        for request in requests:
            for i in range(int(request["n"][0])):
                yield {"i": np.array([i])}


def make_identity(rows_max):
    """A maker with an argument."""
    model = Identity()
    model.max_batch_rows = rows_max
    return model


def make_nothing():
    """Makes no model."""


class Whole(Model):
    """An adapter that is called with requests, not with arrays."""

    def predict(self, x):
        return x

    def predict_request(self, request):
        raise NotImplementedError


class Poisonous(Identity):
    """Answers with what it was given, but for one value each that does harm: which, the name of a harm says.

    `folder` is where it leaves word of what it began, and of what it started.
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
        """Python's lock, in compiled code that sleeps."""
        ctypes.PyDLL(None).sleep(600)

    def refuse(self):
        """Every signal that can be, and go on."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.loop()

    def fork(self):
        """Children that live, up to a bound that is far above the one that holds."""
        for _ in range(200):
            if not (pid := os.fork()):
                signal.pause()
                os._exit(0)
            with (self.folder / "started").open("a") as started:
                started.write(f"{pid}\n")
        self.loop()

    def fork_and_hide(self):
        """One child of its own session, which has one in turn, and go on for ever."""
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
        """A child of its own group, in the same session, and go on for ever."""
        child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], process_group=0)
        (self.folder / "started").write_text(f"{child.pid}\n")
        self.loop()

    def hog(self):
        """Touch ever more memory, up to a bound that is far above the one that holds."""
        self.held = [np.ones(2**21) for _ in range(256)]

    def hog_at_once(self):
        """Ask for more memory than there may be, in one piece."""
        self.held = np.ones(2**29)


class Environment(Model):
    """The variables of its environment, for each row."""

    def predict(self, x):
        return np.array([",".join(sorted(os.environ))] * len(x), object)
