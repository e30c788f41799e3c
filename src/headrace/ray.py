"""Prediction in pipelines of Ray Data: a callable class for ``map_batches``. Imports no ray."""

from headrace.contrib.ray.predict import Predict

__all__ = ["Predict"]
