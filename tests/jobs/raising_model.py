"""A model that raises on demand. A model process imports it by name."""

from headrace.core.model import Model, RowError
from headrace.core.tensor import TensorSpec


class Raises(Model):
    """Raises the error of the number in its second column if the first is 1."""

    inputs = (TensorSpec("x", "FP64", (-1, 2)),)

    def predict(self, x):
        if x[0, 0] == 1:
            raise [ValueError("odd"), MemoryError("full"), SystemExit(3), RowError(0, "no")][int(x[0, 1])]
        return x
