"""Polars: scan_csv, map_batches and sink_csv on the streaming engine, as in its guide."""

import numpy as np
import polars as pl
from job import COLUMNS, Job, Mlp, read_arguments

NAMES = [f"c{i}" for i in range(COLUMNS)]


def main() -> None:
    arguments = read_arguments(__doc__)
    job = Job("polars")
    mlp = Mlp(arguments.onnx)

    def scored(frame: pl.DataFrame) -> pl.DataFrame:
        matrix = frame.to_numpy().astype(np.float32, order="C")
        return frame.with_columns(pl.Series("prediction", mlp(matrix)))

    schema = dict.fromkeys(NAMES, pl.Float64)
    rows = pl.scan_csv(arguments.csv, has_header=False, schema=schema)
    scores = rows.map_batches(scored, schema={**schema, "prediction": pl.Float32}, streamable=True)
    scores.sink_csv(f"{arguments.out}/scored.csv", include_header=False, engine="streaming")
    job.end(arguments)


if __name__ == "__main__":
    main()
