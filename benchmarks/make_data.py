"""Write ROWS rows of 30 numbers as CSV (``%.5f``), and an ONNX MLP 30-64-32-1.

    python benchmarks/make_data.py 1000000 /tmp/rows.csv

writes /tmp/rows.csv (255 MB) and /tmp/rows.onnx. Equal arguments give equal bytes. With --tar, PATH
is an archive of CSV members. With --object-rows, PATH is a folder of many small CSV files. With
--quoted, the rows are text that needs quotes, and there is no model.
"""

import argparse
import io
import json
import tarfile
import time
from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path

import numpy as np

COLUMNS = 30
HIDDEN = (64, 32)
_CHUNK_ROWS = 65_536
_CELL_BYTES = 9  # "-1.23456,"
_WORDS = ("a", "by", "the", "gate", "river", "record", "turbine", "measured", "of", "before")
_TEXT_WORDS = 29


def csv_chunks(rows: int, seed: int) -> Iterator[bytes]:
    """Yield the file in chunks of whole lines: normal deviates, clipped to one digit before the
    point.
    """
    rng = np.random.default_rng(seed)
    for start in range(0, rows, _CHUNK_ROWS):
        shape = (min(_CHUNK_ROWS, rows - start), COLUMNS)
        yield _csv_text(np.clip(rng.standard_normal(shape, np.float32), -9.99, 9.99))


def _csv_text(values: np.ndarray) -> bytes:
    """Return ``%.5f`` of all values: digits at fixed positions, then signs of positive values
    removed.
    """
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
    """Write members of 65,536 rows; compressed if the name ends in .gz."""
    with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w") as tar:
        for number, chunk in enumerate(csv_chunks(rows, seed)):
            member = tarfile.TarInfo(f"rows-{number:05d}.csv")
            member.size = len(chunk)
            tar.addfile(member, io.BytesIO(chunk))


def write_objects(rows: int, path: Path, seed: int, object_rows: int) -> None:
    """Write a folder of files of `object_rows` rows each; the last may have fewer."""
    path.mkdir(parents=True, exist_ok=True)
    lines = (line for chunk in csv_chunks(rows, seed) for line in chunk.splitlines(keepends=True))
    number = 0
    while text := b"".join(islice(lines, object_rows)):
        (path / f"object-{number:06d}.csv").write_bytes(text)
        number += 1


def quoted_chunks(rows: int, seed: int) -> Iterator[bytes]:
    """Yield rows of a number, a label and a text of some 170 bytes.

    Every fourth text contains a comma, doubled quotes and a newline.
    """
    rng = np.random.default_rng(seed)
    for start in range(0, rows, _CHUNK_ROWS):
        count = min(_CHUNK_ROWS, rows - start)
        words = np.array(_WORDS)[rng.integers(0, len(_WORDS), (count, _TEXT_WORDS))].tolist()
        stop = start + count
        yield "".join(
            _quoted_line(n, text) for n, text in zip(range(start, stop), words, strict=True)
        ).encode()


def _quoted_line(number: int, words: list[str]) -> str:
    text = " ".join(words)
    if number % 4:
        return f"{number},class-{number % 7},{text}\n"
    middle = len(text) // 2
    return f'{number},class-{number % 7},"{text[:middle]}, ""so""\n{text[middle:]}"\n'


def write_quoted(rows: int, path: Path, seed: int) -> None:
    with path.open("wb") as file:
        for chunk in quoted_chunks(rows, seed):
            file.write(chunk)


def write_onnx(path: Path, seed: int) -> None:
    """Write a model with input ``x`` float32 [N, 30] and output ``y`` float32 [N, 1].

    It has two ReLU layers, a sigmoid and random weights.
    """
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
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--tar", action="store_true", help="make an archive of CSV members")
    kind.add_argument(
        "--object-rows", type=int, metavar="N", help="make a folder of CSV files of N rows each"
    )
    kind.add_argument("--quoted", action="store_true", help="make CSV of text with quotes instead of numbers")
    parser.add_argument(
        "--model", type=Path, help="where the ONNX file goes (default: PATH's name with .onnx)"
    )
    arguments = parser.parse_args()
    rows, path, seed = arguments.rows, arguments.path, arguments.seed
    began = time.perf_counter()
    made = {"path": str(path), "rows": rows}
    if arguments.quoted:
        write_quoted(rows, path, seed)
    else:
        if arguments.object_rows:
            write_objects(rows, path, seed, arguments.object_rows)
        elif arguments.tar:
            write_tar(rows, path, seed)
        else:
            write_csv(rows, path, seed)
        model = arguments.model or path.with_suffix(".onnx")
        write_onnx(model, seed)
        made["model"] = str(model)
    files = path.iterdir() if path.is_dir() else [path]
    made["bytes"] = sum(file.stat().st_size for file in files)
    print(json.dumps({**made, "wall_s": round(time.perf_counter() - began, 3)}))


if __name__ == "__main__":
    main()
