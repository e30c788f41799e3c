"""Adds up the numbers that a client sends, one at a time: what TorchServe's example of stateful inference does.

An even number is answered by the sum so far; an odd one by a stream, which says it six times; 0 ends the sequence.
"""

import numpy as np

from headrace import Model, TensorSpec

SAID_AGAIN = 5


class RunningSum(Model):
    """A whole number in, the sum of all that came before and of itself out."""

    inputs = (TensorSpec("x", "INT64", (-1,)),)
    outputs = (TensorSpec("sum", "INT64", (-1,)),)

    def step(self, states, x):
        for state, number in zip(states, x.tolist(), strict=True):
            if state.again:  # the same row, since the last step of it asked for another
                state["left"] -= 1
            else:
                state["sum"] = state.get("sum", 0) + number
                state["left"] = SAID_AGAIN if number % 2 else 0
            if state["left"]:
                state.go_on()
            elif number == 0:
                state.end_sequence()
        return np.array([state["sum"] for state in states], np.int64)
