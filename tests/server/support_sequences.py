"""Models with a `step`, for tests of listeners."""

import os
import threading

import numpy as np

from headrace.core import Model, SequenceLimits, TensorSpec

RESCHEDULED = 3.0
"""A row of this value is answered twice."""
FAILS = 99.0
BLOCKED = 1000.0
"""A row of this value waits until `gate` is opened."""


class RunningSum(Model):
    """A model ``x[n, 1] -> sum[n, 1]``: the sum of all inputs of a sequence."""

    inputs = (TensorSpec("x", "FP32", (-1, 1)),)
    outputs = (TensorSpec("sum", "FP32", (-1, 1)),)
    max_batch_rows = 8
    isolation = "thread"
    sequences = SequenceLimits(live_max=8, requests_max=3)

    def __init__(self):
        self.entered = threading.Event()
        self.gate = threading.Event()
        self.ended = []
        self.told = threading.Condition()

    def step(self, states, x):
        """Return the sums."""
        if (x == BLOCKED).any():
            self.entered.set()
            assert self.gate.wait(30)
        if (x == FAILS).any():
            raise ValueError("no such number")
        sums = states.stack("sum", (1,)) + x
        states.keep("sum", sums)
        for state, value in zip(states, x[:, 0], strict=True):
            if value == RESCHEDULED and not state.again:
                state.reschedule()
        return {"sum": np.asarray(sums)}

    def sequence_ended(self, state, why):
        """Record the end."""
        with self.told:
            self.ended.append((state.id, str(why)))
            self.told.notify_all()

    def wait_for_end(self, id, why):
        """Wait until the sequence ended for this reason."""
        with self.told:
            assert self.told.wait_for(lambda: (id, why) in self.ended, 10), self.ended


class TextSoFar(Model):
    """A model ``text_input -> text_output`` that adds one capital letter per step."""

    inputs = (TensorSpec("text_input", "BYTES", (-1,)),)
    outputs = (TensorSpec("text_output", "BYTES", (-1,)),)
    isolation = "thread"

    def step(self, states, text_input):
        """Return the text so far. A request is rescheduled while its text has more letters."""
        message = []
        for state, text in zip(states, text_input, strict=True):
            state["at"] = at = int(state.get("at", 0)) + 1 if state.again else 1
            state["said"] = str(state.get("said", "")) + (str(text)[at - 1].upper() if text else "")
            if at < len(str(text)):
                state.reschedule()
            message.append(state["said"])
        return np.array(message, object)


class DyingSum(RunningSum):
    """A running sum whose process ends at a row of -1."""

    isolation = "process"

    def step(self, states, x):
        """Return the sums."""
        if (x == -1).any():
            os._exit(3)
        return super().step(states, x)
