"""Models that Ray's actors make: by ``file.py:Class``, so that nothing is pickled."""

from pathlib import Path

import numpy as np

from headrace import Model, RowError, TensorSpec


class Sums(Model):
    """Refuses rows with a negative value."""

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


class Lossless(Model):
    """Numbers without a type of their own, and text; refuses text that is empty."""

    def predict(self, x, text):
        bad = {row: "no text" for row, one in enumerate(text) if not one}
        if bad:
            raise RowError(bad)
        return {"twice": x * 2, "upper": np.array([one.upper() for one in text], object)}


class Lossy(Model):
    """Returns a row too few."""

    inputs = (TensorSpec("x", "FP32", (-1, 2)),)

    def predict(self, x):
        return x.sum(axis=1)[1:]


class Means(Model):
    """Tensors of any size, one mean a row; declares the number of axes alone."""

    inputs = (TensorSpec("image", "FP32", (-1, -1, -1)),)
    outputs = (TensorSpec("mean", "FP32", (-1,)),)

    def predict(self, image):
        return image.mean(axis=(1, 2))


class Doubled(Model):
    inputs = (TensorSpec("id", "INT64", (-1,)),)
    outputs = (TensorSpec("doubled", "INT64", (-1,)),)

    def predict(self, id):
        return id * 2


class Closing(Model):
    """Writes a line to the file `log` when it is loaded, and when it is closed."""

    inputs = (TensorSpec("id", "INT64", (-1,)),)

    def __init__(self, log):
        self.log = log

    def _say(self, word):
        with Path(self.log).open("a") as file:
            file.write(f"{word}\n")

    def load(self):
        self._say("loaded")

    def predict(self, id):
        return id * 2

    def close(self):
        self._say("closed")
