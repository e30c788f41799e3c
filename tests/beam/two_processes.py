"""A pipeline over two worker processes, whose model answers with its process. Its argument is a folder to write to.

As a script: what Beam hands to its workers it pickles by value then, as it does with a user's.
"""

import os
import sys

import apache_beam as beam
import numpy as np
from apache_beam.ml.inference.base import RunInference

from headrace import Model, RowError
from headrace.beam import ModelHandler


class Where(Model):
    """The process that it runs in; refuses 13."""

    def predict(self, x):
        if (x == 13).any():
            raise RowError({int(row): "unlucky" for row in np.flatnonzero(x[:, 0] == 13)})
        return np.full(len(x), os.getpid(), np.int64)


def line(result) -> str:
    """The element, where its answer was worked out, and where it was asked for."""
    inference = result.inference
    said = inference.why if hasattr(inference, "why") else inference["output"]
    return f"{int(result.example[0])} {said} {os.getpid()}"


def main(folder: str) -> None:
    """Ask a model that each process has, and one that both share."""
    options = ["--runner=FnApiRunner", "--direct_running_mode=multi_processing", "--direct_num_workers=2"]
    with beam.Pipeline(argv=options) as p:
        rows = p | beam.Create([np.array([i], np.float32) for i in range(40)])
        for kind in ("own", "shared"):
            handler = ModelHandler(Where, failures="return", max_batch_size=4, large_model=kind == "shared")
            lines = rows | f"{kind} model" >> RunInference(handler) | f"{kind} lines" >> beam.Map(line)
            _ = lines | f"write {kind}" >> beam.io.WriteToText(f"{folder}/{kind}")


if __name__ == "__main__":
    main(*sys.argv[1:])
