"""Add up the numbers that a client sends, like TorchServe's example of stateful inference.

The response to an even number is the sum so far. An odd number gets the sum six times, as a stream.
0 ends the sequence.
"""

import numpy as np

from headrace import Model, TensorSpec

REPEATS = 5


class RunningSum(Model):
    """A model from a whole number to the sum of all numbers of its sequence so far."""

    inputs = (TensorSpec("x", "INT64", (-1,)),)
    outputs = (TensorSpec("sum", "INT64", (-1,)),)

    def step(self, states, x):
        for state, number in zip(states, x.tolist(), strict=True):
            if state.again:  # the same row again: its last step called reschedule()
                state["left"] -= 1
            else:
                state["sum"] = state.get("sum", 0) + number
                state["left"] = REPEATS if number % 2 else 0
            if state["left"]:
                state.reschedule()
            elif number == 0:
                state.end_sequence()
        return np.array([state["sum"] for state in states], np.int64)
