"""The plain loop over objects: read one, parse it, call the model once, write its output.

    PYTHONPATH=benchmarks python benchmarks/transform/object_loop.py FOLDER MODEL.onnx OUT

It runs in one process, without HTTP. With --copy each object is only copied, to measure the file
system. With --slow the model is that of slow_model.py: 5 ms for each call, whatever the rows, like
a large model on a separate device.
"""

import argparse
from pathlib import Path

import numpy as np
import onnxruntime
import orjson
from measure import Measurement


def score(folder: Path, model: Path, out: Path) -> int:
    """Score every object. Return the number of rows."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    rows = 0
    for path in sorted(folder.iterdir()):
        lines = path.read_bytes().splitlines()
        matrix = np.array([line.split(b",") for line in lines], np.float32)
        predictions = session.run(None, {name: matrix})[0].reshape(-1)
        texts = orjson.dumps(predictions, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1].split(b",")
        scored = b"".join(b"%b,%b\n" % pair for pair in zip(lines, texts, strict=True))
        (out / f"{path.name}.out").write_bytes(scored)
        rows += len(lines)
    return rows


def score_slowly(folder: Path, out: Path) -> int:
    """Score every object with the slow model. Return the number of rows."""
    from slow_model import Slow

    model, rows = Slow(), 0
    for path in sorted(folder.iterdir()):
        lines = path.read_bytes().splitlines()
        predictions = model.predict(np.array([line.split(b",") for line in lines], np.float32))
        texts = orjson.dumps(np.ascontiguousarray(predictions), option=orjson.OPT_SERIALIZE_NUMPY)[
            1:-1
        ].split(b",")
        scored = b"".join(b"%b,%b\n" % pair for pair in zip(lines, texts, strict=True))
        (out / f"{path.name}.out").write_bytes(scored)
        rows += len(lines)
    return rows


def copy(folder: Path, out: Path) -> int:
    """Copy every object. Return the number of rows."""
    rows = 0
    for path in sorted(folder.iterdir()):
        text = path.read_bytes()
        (out / f"{path.name}.out").write_bytes(text)
        rows += text.count(b"\n")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("onnx", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--copy", action="store_true")
    parser.add_argument("--slow", action="store_true")
    arguments = parser.parse_args()
    measurement = Measurement()
    if arguments.slow:
        rows = score_slowly(arguments.folder, arguments.out)
    else:
        rows = (
            copy(arguments.folder, arguments.out)
            if arguments.copy
            else score(arguments.folder, arguments.onnx, arguments.out)
        )
    measurement.report(rows)


if __name__ == "__main__":
    main()
