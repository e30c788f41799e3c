"""A model whose every answer tells its sequence's whole state, stores that fail when they are told to, and engines around them."""

import asyncio
import os
import signal
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from headrace.checkpoints.memory import MemoryCheckpointStore
from headrace.core import InferRequest, Model, RowError, Tensor
from headrace.core.errors import UnavailableError
from headrace.engine import Engine
from headrace.engine.settings import ServeSettings

WAIT_S = 20.0


class Counted(Model):
    """`x` is a value and how often it is added: once, or in so many steps, of which each gives an output.

    A value below zero is refused. A parameter `die` names a file of sums: in a step that comes
    to one of them the process dies, once for each time that it is there. A parameter `over` ends the sequence by the model.
    """

    max_batch_rows = 8
    max_batch_delay_ms = 0.0

    def step(self, states, x):
        refused = {row: "below zero" for row, value in enumerate(x[:, 0].tolist()) if value < 0}
        if refused:
            raise RowError(refused)
        total = states.stack("total", ()) + x[:, 0]
        states.keep("total", total)
        for state, (_, times), now in zip(states, x.tolist(), total.tolist(), strict=True):
            counted = f"done {state.request}"
            done = state.pop(counted, 0) + 1
            if done < times:
                state[counted] = done
                state.go_on()
            if state.parameters.get("over"):
                state.end_sequence()
            self.die_once(state.parameters, now)
        return total

    @staticmethod
    def die_once(parameters, total):
        """As it was asked to."""
        if "die" not in parameters:
            return
        marker = Path(parameters["die"])
        at = [float(sum_) for sum_ in marker.read_text().split()]
        if total in at:
            at.remove(total)
            marker.write_text(" ".join(map(str, at)))
            os.kill(os.getpid(), signal.SIGKILL)


class Sleepy(Counted):
    """Takes its time for a value of 1000: until it is killed."""

    def step(self, states, x):
        if (x[:, 0] == 1000).any():
            time.sleep(600)
        return super().step(states, x)


class Slow(Counted):
    """Slow enough to be killed in the middle."""

    def step(self, states, x):
        time.sleep(0.004)
        return super().step(states, x)


class Shared(MemoryCheckpointStore):
    """Outlives who opened it, and fails when it is told to: before it does what it is asked for, or after."""

    def __init__(self, **settings):
        super().__init__("m", **settings)
        self.faults = {}
        """By the name of a method: "before", "after", or what is called first."""
        self.saves = []
        self.asked = Counter()

    def _do(self, name, *args, **settings):
        self.asked[name] += 1
        fault = self.faults.get(name)
        if callable(fault):
            fault()
        if fault == "before":
            raise UnavailableError("memory:", "it does not answer")
        done = getattr(MemoryCheckpointStore, name)(self, *args, **settings)
        if fault == "after":
            raise UnavailableError("memory:", "its answer was lost")
        return done

    def save(self, checkpoints):
        self.saves += checkpoints
        return self._do("save", checkpoints)

    def load(self, ids, *, idle_ms_max):
        return self._do("load", ids, idle_ms_max=idle_ms_max)

    def delete(self, ids, steps=None):
        self._do("delete", ids, steps)

    def purge(self, *, idle_ms_max, count_max):
        return self._do("purge", idle_ms_max=idle_ms_max, count_max=count_max)

    def close(self):
        pass

    @property
    def ids(self):
        """Of which something is kept."""
        return sorted(self._kept)

    def rewrite(self, id, change):
        """As another process would do: the state, changed, under another mark."""
        there = self._kept[id]
        self._kept[id] = there._replace(steps=there.steps ^ 1 << 40, state=change(there.state))


def asked(*values, times=1, **parameters):
    """A request of these rows."""
    x = np.array([(value, times) for value in values], np.float32).reshape(-1, 2)
    tensors = (Tensor("x", x),) if values else ()
    return InferRequest(tensors, parameters=parameters)


@contextmanager
def engine(store, make=Counted, *, clock=None, isolation="thread", **settings):
    """One that is started, over a shared store or an address."""
    serving = ServeSettings(
        isolation=isolation, checkpoints=store if isinstance(store, str) else None, **settings
    )
    opens = None if store is None or isinstance(store, str) else lambda: store
    made = Engine(make, name="m", serving=serving, clock=clock, open_checkpoints=opens)
    made.start()
    try:
        yield made
    finally:
        made.stop(drain=False)


async def answer(of, *values, **settings):
    """The sums that a request comes to, or the error's name."""
    try:
        response = await asyncio.wait_for(of.ask(asked(*values, **settings)), WAIT_S)
    except Exception as error:
        return type(error).__name__
    return response.outputs[0].data.tolist() if response.outputs else []


def sums(of, *values, **settings):
    """As `answer`, from outside of any loop."""
    return asyncio.run(answer(of, *values, **settings))
