# ruff: noqa: ANN001, ANN201, D102, INP001
"""Species of irises by logistic regression, with coefficients from scikit-learn's 150 flowers."""

import numpy as np

from headrace import Model, TensorSpec

SPECIES = ("setosa", "versicolor", "virginica")
WEIGHTS = np.array([[-0.42, 0.97, -2.52, -1.08], [0.53, -0.32, -0.21, -0.94], [-0.11, -0.65, 2.72, 2.03]])
BIAS = np.array([9.86, 2.23, -12.09])


class Iris(Model):
    """A model from lengths and widths of sepals and petals, in centimetres, to species."""

    inputs = (TensorSpec("x", "FP64", (-1, 4)),)
    outputs = (TensorSpec("species", "BYTES", (-1,)), TensorSpec("probability", "FP64", (-1,)))

    def predict(self, x):
        scores = x @ WEIGHTS.T + BIAS
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        species = [SPECIES[index] for index in shares.argmax(axis=1)]
        return {"species": np.array(species, object), "probability": shares.max(axis=1)}
