"""Daft: read_csv, a class with a batch method (`daft.cls`, `daft.method.batch`), write_csv, native
runner.
"""

import daft
import numpy as np
from daft import DataType, Series
from job import BATCH_ROWS, COLUMNS, Job, Mlp, read_arguments

NAMES = [f"c{i}" for i in range(COLUMNS)]


@daft.cls
class Predictor:
    def __init__(self, onnx: str) -> None:
        self._mlp = Mlp(onnx)

    @daft.method.batch(return_dtype=DataType.float32(), batch_size=BATCH_ROWS)
    def predict(self, *columns: Series) -> np.ndarray:
        return self._mlp(
            np.stack([column.to_arrow().to_numpy() for column in columns], axis=1).astype(np.float32)
        )


def main() -> None:
    arguments = read_arguments(__doc__)
    job = Job("daft")
    schema = dict.fromkeys(NAMES, DataType.float64())
    rows = daft.read_csv(arguments.csv, has_headers=False, infer_schema=False, schema=schema)
    scores = Predictor(arguments.onnx).predict(*(rows[name] for name in NAMES))
    rows.with_column("prediction", scores).write_csv(arguments.out, header=False)
    job.end(arguments)


if __name__ == "__main__":
    main()
