"""A pipeline over two worker processes, whose model returns its process id.

The argument is an output folder.

Beam pickles the functions of a script by value, as for a user's script.
"""

import os
import sys

import apache_beam as beam
import numpy as np
from apache_beam.ml.inference.base import RunInference

from headrace import Model, RowError
from headrace.beam import ModelHandler


class ProcessId(Model):
    """A model that returns its process id and refuses 13."""

    def predict(self, x):
        if (x == 13).any():
            raise RowError({int(row): "unlucky" for row in np.flatnonzero(x[:, 0] == 13)})
        return np.full(len(x), os.getpid(), np.int64)


def line(result) -> str:
    """Return the element, the process of the prediction, and the process of the pipeline step."""
    inference = result.inference
    output = inference.why if hasattr(inference, "why") else inference["output"]
    return f"{int(result.example[0])} {output} {os.getpid()}"


def main(folder: str) -> None:
    """Run a model per process, and one model that both processes share."""
    options = ["--runner=FnApiRunner", "--direct_running_mode=multi_processing", "--direct_num_workers=2"]
    with beam.Pipeline(argv=options) as p:
        rows = p | beam.Create([np.array([i], np.float32) for i in range(40)])
        for kind in ("own", "shared"):
            handler = ModelHandler(
                ProcessId, failures="return", max_batch_size=4, large_model=kind == "shared"
            )
            lines = rows | f"{kind} model" >> RunInference(handler) | f"{kind} lines" >> beam.Map(line)
            _ = lines | f"write {kind}" >> beam.io.WriteToText(f"{folder}/{kind}")


if __name__ == "__main__":
    main(*sys.argv[1:])
