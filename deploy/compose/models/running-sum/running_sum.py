# ruff: noqa: ANN001, ANN201, D102, INP001
"""The smallest model with a state between requests."""

from headrace import Model, TensorSpec


class RunningSum(Model):
    """A model from a number to the sum of all numbers of its sequence so far."""

    inputs = (TensorSpec("x", "FP64", (-1, 1)),)
    outputs = (TensorSpec("sum", "FP64", (-1, 1)),)

    def step(self, states, x):
        sums = states.stack("sum", (1,), "float64") + x
        states.keep("sum", sums)
        return {"sum": sums}
