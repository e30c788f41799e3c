"""A model that returns each text unchanged, byte for byte: ``--model echo_model.py``."""

import numpy as np

from headrace import Model, TensorSpec


class Echo(Model):
    """One text in, the same text out."""

    max_batch_rows = 256
    bytes_as = "bytes"
    inputs = (TensorSpec("text", "BYTES", (-1,)),)
    outputs = (TensorSpec("echo", "BYTES", (-1,)),)

    def predict(self, text: np.ndarray) -> np.ndarray:
        return text
