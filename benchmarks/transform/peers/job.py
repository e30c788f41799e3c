"""Shared parts of the peers' scripts: arguments, the model's call, the clock, and the row count.

Each script runs as `python SCRIPT ROWS.csv MODEL.onnx OUT`. OUT is an empty folder. The interpreter
has the peer, onnxruntime, numpy and psutil; headrace's `src` and `benchmarks` are on its path.
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
    """Return options with one thread, as in headrace and the limit: only the engines' parallelism
    differs.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    return options


class Mlp:
    """The model: a matrix of 30 columns in, one number for each row out."""

    def __init__(self, path: str) -> None:
        self._session = onnxruntime.InferenceSession(
            path, session_options(), providers=["CPUExecutionProvider"]
        )
        self._input = self._session.get_inputs()[0].name

    def __call__(self, matrix: np.ndarray) -> np.ndarray:
        """Return scores of shape (rows,), float32."""
        return self._session.run(None, {self._input: matrix})[0].reshape(-1)


@dataclass(frozen=True)
class Arguments:
    csv: str
    onnx: str
    out: str


def read_arguments(description: str | None) -> Arguments:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("csv")
    parser.add_argument("onnx")
    parser.add_argument("out")
    parsed = parser.parse_args()
    # Engines that run tasks in other processes need absolute paths.
    return Arguments(*(str(Path(path).resolve()) for path in (parsed.csv, parsed.onnx, parsed.out)))


class Job:
    """The clock of one job: create it when the engine runs, end it when the output is written."""

    def __init__(self, package: str) -> None:
        self._package = package
        self._measurement = Measurement(tree_cpu_s)

    def end(self, arguments: Arguments) -> None:
        """Stop the clock, check the number of rows written, and print the figures."""
        self._measurement.stop()
        written = [path for path in Path(arguments.out).rglob("*") if path.is_file()]
        rows, out = count_lines(Path(arguments.csv)), sum(map(count_lines, written))
        if out != rows:
            raise SystemExit(f"{out} rows out for {rows} rows in")
        self._measurement.report(rows, version=version(self._package), files=len(written))


def count_lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b""))
