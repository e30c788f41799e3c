"""Models with a step that other processes make by name; each row says what happens."""

import asyncio
import json
import os
import signal
import time
from pathlib import Path

import numpy as np

from headrace.core import Model, RowError, TensorSpec, current_call
from headrace.core.sequence import SequenceLimits


class Summing(Model):
    """Adds up `x` by sequence; `do` says what else happens, row by row."""

    sequences = SequenceLimits(live_max=7, idle_ms=float("inf"), time_ms_max=600_000.0, interleave=True)

    def __init__(self):
        self.ended = []
        self.buffer = np.zeros((4, 3), np.float32)

    def step(self, states, x, do):
        total = states.stack("total", (1,)) + x
        states.keep("total", total)
        for state, what, row in zip(states, do, x, strict=True):
            if what == "use_input":
                state["input"] = row
            elif what:
                getattr(self, what)(state)
        seen = [self._seen(state) for state in states]
        if "drop_states" in do:
            states.clear()
        return {
            "total": total[:-1] if "lack" in do else total,
            "seen": np.array([None if "unsendable" in do else json.dumps(one) for one in seen], object),
            "ended": np.array([json.dumps(self.ended)] * len(x), object),
        }

    def _seen(self, state):
        described = {name: getattr(state, name) for name in ("id", "steps", "start", "again", "end")}
        return {
            **described,
            "parameters": dict(state.parameters),
            "names": sorted(state),
            "log": state.get("log"),
        }

    def sequence_ended(self, state, why):
        self.ended.append([state.id, state.steps, why.value, float(sum(state.get("total", [0.0])))])
        if state.id == "stuck":
            raise SystemExit("stuck")

    def log(self, state):
        state.setdefault("log", []).append(state.steps)
        state.setdefault("deep", ({"at": []},))[0]["at"].append(state.steps)

    def check_deep(self, state):
        assert state["deep"][0]["at"] == state["log"]

    def go(self, state):
        state.reschedule()

    def silent(self, state):
        state.skip_output()

    def over(self, state):
        state.end_sequence()

    def fail(self, state):
        self.log(state)
        state["new"] = 1
        state.steps = 99
        del state["total"]
        raise ValueError("odd")

    def refuse(self, state):
        self.log(state)
        raise RowError(1, "refused")

    def lost(self, state):
        raise MemoryError("full")

    def write(self, state):
        state["buffer"][0] = 1.0

    def use_buffer(self, state):
        self.buffer += 1.0
        state["buffer"], state["row"], state["rows"] = self.buffer, self.buffer[1], [self.buffer[2]]

    def check_buffer(self, state):
        assert {*state["buffer"].ravel(), *state["row"], *state["rows"][0]} == {1.0}
        assert not any(a.flags.writeable for a in (state["buffer"], state["row"], state["rows"][0]))
        assert all(a.base is None for a in (state["buffer"], state["row"], state["rows"][0]))

    def unsaveable(self, state):
        state["bad"] = object()

    def drop_states(self, state):
        pass

    def lack(self, state):
        pass

    def unsendable(self, state):
        pass

    def die(self, state):
        os.kill(os.getpid(), signal.SIGKILL)

    def hang(self, state):
        time.sleep(60)

    def many(self, state):
        state["values"] = {
            "n": np.arange(3, dtype=">i2"),
            "t": np.array(["ä", b"\xff"], object),
            "list": [1, 2.5, None, "x", b"y", (True, np.float32(3))],
        }

    def check_many(self, state):
        kept = state["values"]
        assert (kept["n"].tolist(), kept["t"].tolist()) == ([0, 1, 2], ["ä", b"\xff"])
        assert kept["list"] == [1, 2.5, None, "x", b"y", (True, np.float32(3))]
        assert not kept["n"].flags.writeable


class Waiting(Model):
    """Changes its state, then waits on positive values until its call is cancelled."""

    def __init__(self, folder):
        self.folder = Path(folder)

    def step(self, states, x):
        (state,) = states
        state["n"] = state.get("n", 0) + 1
        (self.folder / "began").touch()
        while x.any() and not current_call().cancelled:
            time.sleep(0.001)
        if x.any():
            raise TimeoutError("nobody waits")
        return np.array([state["n"]])


class WaitingAsync(Waiting):
    """The same with an asynchronous `step`, which is cancelled."""

    async def step(self, states, x):
        (state,) = states
        state["n"] = state.get("n", 0) + 1
        (self.folder / "began").touch()
        if x.any():
            await asyncio.Event().wait()
        return np.array([state["n"]])


class Stubborn(Waiting):
    """The same, but ignores its cancellation."""

    def step(self, states, x):
        (self.folder / "began").touch()
        if x.any():
            time.sleep(60)
        return x


class Declared(Model):
    """Takes exactly its declared inputs, by position, and frees the resources of each sequence."""

    inputs = (TensorSpec("x", "FP32", (-1, 2)), TensorSpec("n", "INT64", (-1,)))
    outputs = (TensorSpec("y", "FP32", (-1, 2)),)

    def __init__(self):
        self.held = set()
        self.calls = []

    async def step(self, states, first, /, *rest):
        (second,) = rest
        self.calls.append((first.dtype.name, first.shape, second.dtype.name, second.shape))
        self.held |= {state.id for state in states}
        await asyncio.sleep(0)
        return first * second[:, None].astype(np.float32)

    async def sequence_ended(self, state, why):
        await asyncio.sleep(0)
        self.held.remove(state.id)
