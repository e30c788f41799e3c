"""Ray Data: read_csv, map_batches with a class in a pool of actors, write_csv, as in its guide.

Ray starts before the clock.
"""

import os

import numpy as np
import ray
import ray.data
from job import BATCH_ROWS, COLUMNS, Job, Mlp, read_arguments
from pyarrow import csv

NAMES = [f"c{i}" for i in range(COLUMNS)]


class Predictor:
    def __init__(self, onnx: str) -> None:
        self._mlp = Mlp(onnx)

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        matrix = np.stack([batch[name] for name in NAMES], axis=1).astype(np.float32)
        return {**batch, "prediction": self._mlp(matrix)}


def main() -> None:
    arguments = read_arguments(__doc__)
    # One core is left for reading and writing if there are more.
    actors = max(1, (os.cpu_count() or 1) - 1)
    ray.init(include_dashboard=False, log_to_driver=False, logging_level="error")
    ray.data.DataContext.get_current().enable_progress_bars = False
    job = Job("ray")
    rows = ray.data.read_csv(arguments.csv, read_options=csv.ReadOptions(column_names=NAMES))
    scores = rows.map_batches(
        Predictor,
        fn_constructor_args=(arguments.onnx,),
        batch_size=BATCH_ROWS,
        compute=ray.data.ActorPoolStrategy(size=actors),
    )
    scores.write_csv(
        arguments.out, arrow_csv_args_fn=lambda: {"write_options": csv.WriteOptions(include_header=False)}
    )
    job.end(arguments)


if __name__ == "__main__":
    main()
