"""What the peers' scripts share: what they are told, the model's call, the clock, and the count of what came out.

Each runs as `python SCRIPT ROWS.csv MODEL.onnx OUT`, where OUT is a folder of its own that exists and is empty, under
an interpreter that has the peer, onnxruntime, numpy and psutil; `src` and `benchmarks` of headrace are on its path.
"""

import argparse
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
import onnxruntime
from measure import Measurement
from process_tree import tree_cpu_s

COLUMNS = 30
BATCH_ROWS = 4096


def session_options() -> onnxruntime.SessionOptions:
    """One thread a model, as headrace and the limit have it: the engine's own parallelism is what differs."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    return options


class Mlp:
    """The model: a matrix of 30 columns in, one number a row out."""

    def __init__(self, path: str) -> None:
        self._session = onnxruntime.InferenceSession(
            path, session_options(), providers=["CPUExecutionProvider"]
        )
        self._input = self._session.get_inputs()[0].name

    def __call__(self, matrix: np.ndarray) -> np.ndarray:
        """Scores of shape (rows,), float32."""
        return self._session.run(None, {self._input: matrix})[0].reshape(-1)


@dataclass(frozen=True)
class Told:
    csv: str
    onnx: str
    out: str


def told(description: str | None) -> Told:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("csv")
    parser.add_argument("onnx")
    parser.add_argument("out")
    given = parser.parse_args()
    # Engines that run tasks elsewhere take absolute paths.
    return Told(*(str(Path(path).resolve()) for path in (given.csv, given.onnx, given.out)))


class Job:
    """The clock of one job: begin it when the engine is up, end it when the output is written."""

    def __init__(self, package: str) -> None:
        self._package = package
        self._measurement = Measurement(tree_cpu_s)

    def end(self, told: Told) -> None:
        """Stop the clock, count what was written, print the figures. As many rows must come out as went in."""
        self._measurement.stop()
        written = [path for path in Path(told.out).rglob("*") if path.is_file()]
        rows, out = lines_of(Path(told.csv)), sum(map(lines_of, written))
        if out != rows:
            raise SystemExit(f"{out} rows came out of {rows}")
        self._measurement.report(rows, version=version(self._package), files=len(written))


def lines_of(path: Path) -> int:
    with path.open("rb") as file:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b""))
