"""For pipelines of Ray Data: a callable class for ``map_batches``. Nothing here imports ray; Ray makes the instances.

Batches arrive, as Ray cuts them; they leave with the predictions beside their columns, as many rows as came.
"""

from headrace.ray.predict import Predict

__all__ = ["Predict"]
