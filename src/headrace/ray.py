"""Prediction in pipelines of Ray Data: a callable class for ``map_batches``. Imports no ray."""

from headrace.contrib.ray import Predict

__all__ = ["Predict"]
