"""A model that returns the whole state of its sequence, stores that fail on demand, and engines
around them.
"""

import asyncio
import os
import signal
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from engine.sequences.batch_loops import start_with_loops
from headrace.checkpoints.store import MemoryCheckpointStore
from headrace.core import InferRequest, Model, RowError, Tensor
from headrace.core.errors import UnavailableError
from headrace.engine import Engine
from headrace.engine.sequences.sequence_store import PROBE_ID
from headrace.engine.settings import ServeSettings

WAIT_S = 20.0


class SumModel(Model):
    """Adds up: `x` is a value and the number of steps that add it, each with an output.

    A value below zero is refused. The parameter `die` names a file of sums: in a step that reaches
    one of them the process dies, once for each occurrence. The parameter `over` makes the model end
    the sequence.
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
                state.reschedule()
            if state.parameters.get("over"):
                state.end_sequence()
            self.die_once(state.parameters, now)
        return total

    @staticmethod
    def die_once(parameters, total):
        """Kill the process if the sum is in the file."""
        if "die" not in parameters:
            return
        marker = Path(parameters["die"])
        at = [float(sum_) for sum_ in marker.read_text().split()]
        if total in at:
            at.remove(total)
            marker.write_text(" ".join(map(str, at)))
            os.kill(os.getpid(), signal.SIGKILL)


class HangingModel(SumModel):
    """Hangs on a value of 1000, until it is killed."""

    def step(self, states, x):
        if (x[:, 0] == 1000).any():
            time.sleep(600)
        return super().step(states, x)


class SlowModel(SumModel):
    """Slow enough to be killed during a step."""

    def step(self, states, x):
        time.sleep(0.004)
        return super().step(states, x)


class FaultyStore(MemoryCheckpointStore):
    """A store that outlives its opener, and fails on demand: before or after an operation."""

    is_remote = True

    def __init__(self, **settings):
        super().__init__("m", **settings)
        self.faults = {}
        """By method name, or "probe" for a probe: "before", "after", or a function that is called first."""
        self.saves = []
        self.calls = Counter()

    def _do(self, name, *args, **settings):
        self.calls[name] += 1
        fault = self.faults.get(name)
        if callable(fault):
            fault()
        if fault == "before":
            raise UnavailableError("memory:", "it does not answer")
        done = getattr(MemoryCheckpointStore, "load" if name == "probe" else name)(self, *args, **settings)
        if fault == "after":
            raise UnavailableError("memory:", "its answer was lost")
        return done

    def save(self, checkpoints):
        self.saves += checkpoints
        return self._do("save", checkpoints)

    def load(self, ids, *, idle_ms_max):
        name = "probe" if list(ids) == [PROBE_ID] else "load"
        return self._do(name, ids, idle_ms_max=idle_ms_max)

    def delete(self, ids, steps=None):
        self._do("delete", ids, steps)

    def purge(self, *, idle_ms_max, count_max):
        return self._do("purge", idle_ms_max=idle_ms_max, count_max=count_max)

    def close(self):
        pass

    @property
    def ids(self):
        """The ids that have a checkpoint."""
        return sorted(self._states)

    def rewrite(self, id, change):
        """Change a state under another mark, as another process would."""
        there = self._states[id]
        self._states[id] = there._replace(steps=there.steps ^ 1 << 40, state=change(there.state))


def sum_request(*values, times=1, namespace="", **parameters):
    """Return a request of these rows."""
    x = np.array([(value, times) for value in values], np.float32).reshape(-1, 2)
    tensors = (Tensor("x", x),) if values else ()
    return InferRequest(tensors, parameters=parameters, namespace=namespace)


@contextmanager
def engine(store, make=SumModel, *, clock=None, isolation="thread", **settings):
    """Yield a started engine with a shared store or the address of one; `loops` are its batch loops."""
    serving = ServeSettings(
        isolation=isolation, checkpoints=store if isinstance(store, str) else None, **settings
    )
    opens = None if store is None or isinstance(store, str) else lambda: store
    made = Engine(make, name="m", serving=serving, clock=clock, open_checkpoints=opens)
    made.loops = start_with_loops(made)
    try:
        yield made
    finally:
        made.stop(drain=False)


async def infer_sums(of, *values, **settings):
    """Return the sums of a request, or the name of its error."""
    try:
        response = await asyncio.wait_for(of.infer(sum_request(*values, **settings)), WAIT_S)
    except Exception as error:
        return type(error).__name__
    return response.outputs[0].data.tolist() if response.outputs else []


def sums(of, *values, **settings):
    """Return the result of `infer_sums`, outside of any event loop."""
    return asyncio.run(infer_sums(of, *values, **settings))
