"""A model for a process of its own, which imports it by its name."""

from headrace.core.model import Model, RowError
from headrace.core.tensor import TensorSpec


class Raises(Model):
    """Raises what its first value says: it is the model that failed, not the payload."""

    inputs = (TensorSpec("x", "FP64", (-1, 2)),)

    def predict(self, x):
        if x[0, 0] == 1:
            raise [ValueError("odd"), MemoryError("full"), SystemExit(3), RowError(0, "no")][int(x[0, 1])]
        return x
