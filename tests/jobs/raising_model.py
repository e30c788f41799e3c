"""A model that raises on demand. Model processes import this module by name."""

from headrace.core.model import Model, RowError
from headrace.core.tensor import TensorSpec


class Raises(Model):
    """A model that raises if the first column is 1; the second column selects the error."""

    inputs = (TensorSpec("x", "FP64", (-1, 2)),)

    def predict(self, x):
        if x[0, 0] == 1:
            raise [ValueError("odd"), MemoryError("full"), SystemExit(3), RowError(0, "no")][int(x[0, 1])]
        return x
