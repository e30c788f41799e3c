"""Models with a step, and what is asked of them."""

import time

import numpy as np

from headrace import InferRequest, Model, Tensor

CALL_S = 0.005
WIDTH = 8


class Counting(Model):
    """Adds one to what each sequence has, in `call_s` a call, whatever the rows; goes on `tokens` times where asked to."""

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
                state.go_on()
        return counts


class Slow(Counting):
    """A call of 5 ms."""

    call_s = CALL_S


class Apart(Slow):
    """In a process of its own."""

    isolation = "process"


class Plain(Model):
    """What `Counting` does in a call, without a state."""

    isolation = "thread"

    def predict(self, x):
        return x + 1


def request(**parameters) -> InferRequest:
    return InferRequest((Tensor("x", np.ones((1, WIDTH), np.float32)),), parameters=parameters)
