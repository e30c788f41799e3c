"""A model that tells the test of every call before it answers: ``--model integration.hooked_model:Hooked``."""

from collections.abc import Callable

import numpy as np

from headrace import Model, TensorSpec


class Hooked(Model):
    """Doubles the first of two numbers. `before_call` is given the number of the call, from 0."""

    max_batch_rows = 500
    inputs = (TensorSpec("x", "FP32", (-1, 2)),)
    before_call: Callable[[int], None] = staticmethod(lambda call: None)

    def __init__(self) -> None:
        self.calls = 0

    def warm_up(self) -> None:
        """No call of ours counts but those for records."""

    def predict(self, x: np.ndarray) -> np.ndarray:
        call, self.calls = self.calls, self.calls + 1
        type(self).before_call(call)
        return x[:, 0] * 2


SPEC = "integration.hooked_model:Hooked"
