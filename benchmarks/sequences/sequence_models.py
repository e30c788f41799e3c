"""Models with a step, and their requests."""

import time

import numpy as np

from headrace import InferRequest, Model, Tensor

CALL_S = 0.005
WIDTH = 8


class Counting(Model):
    """A counter for each sequence, in `call_s` seconds for each call, whatever the rows.

    It is rescheduled until it reaches the request parameter `tokens`.
    """

    call_s = 0.0
    isolation = "thread"
    max_batch_rows = 64

    def step(self, states, x):
        if self.call_s:
            time.sleep(self.call_s)
        counts = states.stack("count", (WIDTH,)) + x
        states.keep("count", counts)
        for state, count in zip(states, counts[:, 0].tolist(), strict=True):
            if count < state.parameters.get("tokens", 0):
                state.reschedule()
        return counts


class Slow(Counting):
    """A call of 5 ms."""

    call_s = CALL_S


class SlowInProcess(Slow):
    """`Slow` in a separate process."""

    isolation = "process"


class Plain(Model):
    """The computation of `Counting` without a state."""

    isolation = "thread"

    def predict(self, x):
        return x + 1


def request(**parameters) -> InferRequest:
    return InferRequest((Tensor("x", np.ones((1, WIDTH), np.float32)),), parameters=parameters)
