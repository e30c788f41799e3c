"""Prediction in pipelines of Ray Data: a callable class for ``map_batches``.

No module here imports ray. Ray makes the instances, calls them with batches of its own size, and
receives each batch with the predictions beside its columns, with as many rows.
"""

from headrace.contrib.ray.predict import Predict

__all__ = ["Predict"]
