"""Models for Ray's actors, named by ``file.py:Class`` so that nothing is pickled."""

from pathlib import Path

import numpy as np

from headrace import Model, RowError, TensorSpec


class Sums(Model):
    """A model that refuses rows with a negative value."""

    inputs = (TensorSpec("x", "FP32", (-1, 2)),)
    outputs = (
        TensorSpec("sum", "FP32", (-1,)),
        TensorSpec("share", "FP32", (-1, 2)),
        TensorSpec("whole", "INT64", (-1,)),
    )

    def predict(self, x):
        bad = np.flatnonzero((x < 0).any(axis=1))
        if len(bad):
            raise RowError({int(row): "a value is negative" for row in bad})
        return {"sum": x.sum(axis=1), "share": x / 6, "whole": x.sum(axis=1).astype(np.int64)}


class Undeclared(Model):
    """A model of undeclared numbers and text that refuses empty text."""

    def predict(self, x, text):
        bad = {row: "no text" for row, one in enumerate(text) if not one}
        if bad:
            raise RowError(bad)
        return {"twice": x * 2, "upper": np.array([one.upper() for one in text], object)}


class OneRowShort(Model):
    """A model that returns one row too few."""

    inputs = (TensorSpec("x", "FP32", (-1, 2)),)

    def predict(self, x):
        return x.sum(axis=1)[1:]


class Means(Model):
    """The mean of a tensor of any size. It declares only the number of axes."""

    inputs = (TensorSpec("image", "FP32", (-1, -1, -1)),)
    outputs = (TensorSpec("mean", "FP32", (-1,)),)

    def predict(self, image):
        return image.mean(axis=(1, 2))


class Doubling(Model):
    inputs = (TensorSpec("id", "INT64", (-1,)),)
    outputs = (TensorSpec("doubled", "INT64", (-1,)),)

    def predict(self, id):
        return id * 2


class LoggingLifecycle(Model):
    """A model that writes a line to the file `log` when it is loaded and when it is closed."""

    inputs = (TensorSpec("id", "INT64", (-1,)),)

    def __init__(self, log):
        self.log = log

    def _log(self, event):
        with Path(self.log).open("a") as file:
            file.write(f"{event}\n")

    def load(self):
        self._log("loaded")

    def predict(self, id):
        return id * 2

    def close(self):
        self._log("closed")
