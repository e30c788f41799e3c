"""Make the benchmark's input: ROWS rows of 30 numbers as CSV (``%.5f``), and an ONNX MLP 30-64-32-1 beside it.

    python benchmarks/make_data.py 1000000 /tmp/rows.csv

writes /tmp/rows.csv (255 MB) and /tmp/rows.onnx. The same arguments make the same bytes. With --tar the CSV goes
into PATH as members of an archive instead.
"""

import argparse
import io
import json
import tarfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np

COLUMNS = 30
HIDDEN = (64, 32)
_CHUNK_ROWS = 65_536
_CELL_BYTES = 9  # "-1.23456,"


def csv_chunks(rows: int, seed: int) -> Iterator[bytes]:
    """The file in chunks of whole lines: normal deviates, cut at one digit before the point."""
    rng = np.random.default_rng(seed)
    for start in range(0, rows, _CHUNK_ROWS):
        shape = (min(_CHUNK_ROWS, rows - start), COLUMNS)
        yield _csv_text(np.clip(rng.standard_normal(shape, np.float32), -9.99, 9.99))


def _csv_text(values: np.ndarray) -> bytes:
    """``%.5f`` of all values at once: digits into fixed places, then the signs that are not there taken out."""
    scaled = np.rint(np.abs(values) * 1e5).astype(np.int32)
    cells = np.empty((*values.shape, _CELL_BYTES), np.uint8)
    cells[..., 0] = ord("-")
    cells[..., 2] = ord(".")
    for place in (7, 6, 5, 4, 3, 1):
        scaled, digit = np.divmod(scaled, 10)
        cells[..., place] = digit + ord("0")
    cells[..., 8] = ord(",")
    cells[:, -1, 8] = ord("\n")
    kept = np.ones(cells.shape, bool)
    kept[..., 0] = values < 0
    return cells[kept].tobytes()


def write_csv(rows: int, path: Path, seed: int) -> None:
    with path.open("wb") as file:
        for chunk in csv_chunks(rows, seed):
            file.write(chunk)


def write_tar(rows: int, path: Path, seed: int) -> None:
    """Members of 65,536 rows; compressed when the name ends in .gz."""
    with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w") as tar:
        for number, chunk in enumerate(csv_chunks(rows, seed)):
            member = tarfile.TarInfo(f"rows-{number:05d}.csv")
            member.size = len(chunk)
            tar.addfile(member, io.BytesIO(chunk))


def write_onnx(path: Path, seed: int) -> None:
    """Input ``x`` float32 [N, 30], output ``y`` float32 [N, 1]: two ReLU layers and a sigmoid, random weights."""
    from onnx import TensorProto, checker, helper, numpy_helper

    rng = np.random.default_rng(seed)
    sizes = (COLUMNS, *HIDDEN, 1)
    nodes, weights, last = [], [], "x"
    for layer, (takes, gives) in enumerate(pairwise(sizes)):
        weight = rng.standard_normal((takes, gives)).astype(np.float32) / np.float32(takes**0.5)
        bias = rng.standard_normal(gives).astype(np.float32) / 10
        weights += [numpy_helper.from_array(weight, f"w{layer}"), numpy_helper.from_array(bias, f"b{layer}")]
        out = layer == len(sizes) - 2
        nodes += [
            helper.make_node("Gemm", [last, f"w{layer}", f"b{layer}"], [f"h{layer}"]),
            helper.make_node("Sigmoid" if out else "Relu", [f"h{layer}"], ["y" if out else f"a{layer}"]),
        ]
        last = f"a{layer}"
    graph = helper.make_graph(
        nodes,
        "mlp",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", COLUMNS])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 1])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    checker.check_model(model)
    path.write_bytes(model.SerializeToString())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", type=int)
    parser.add_argument("path", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tar", action="store_true", help="make an archive of CSV members")
    parser.add_argument(
        "--model", type=Path, help="where the ONNX file goes (default: PATH's name with .onnx)"
    )
    arguments = parser.parse_args()
    began = time.perf_counter()
    write = write_tar if arguments.tar else write_csv
    write(arguments.rows, arguments.path, arguments.seed)
    model = arguments.model or arguments.path.with_suffix(".onnx")
    write_onnx(model, arguments.seed)
    print(
        json.dumps(
            {
                "path": str(arguments.path),
                "model": str(model),
                "rows": arguments.rows,
                "bytes": arguments.path.stat().st_size,
                "wall_s": round(time.perf_counter() - began, 3),
            }
        )
    )


if __name__ == "__main__":
    main()
