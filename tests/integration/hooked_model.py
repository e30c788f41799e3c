"""A model that calls back before each response: ``--model integration.hooked_model:Hooked``."""

from collections.abc import Callable

import numpy as np

from headrace import Model, TensorSpec


class Hooked(Model):
    """Doubles the first of two numbers. `before_call` gets the number of the call, from 0."""

    max_batch_rows = 500
    inputs = (TensorSpec("x", "FP32", (-1, 2)),)
    before_call: Callable[[int], None] = staticmethod(lambda call: None)

    def __init__(self) -> None:
        self.calls = 0

    def warm_up(self) -> None:
        """Do nothing, so that only calls with records are counted."""

    def predict(self, x: np.ndarray) -> np.ndarray:
        call, self.calls = self.calls, self.calls + 1
        type(self).before_call(call)
        return x[:, 0] * 2


SPEC = "integration.hooked_model:Hooked"
