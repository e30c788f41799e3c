"""The plain loop over objects: read one, parse it, call the model once, write its output. In one process, no HTTP.

python benchmarks/transform/object_loop.py FOLDER MODEL.onnx OUT
"""

import sys
from pathlib import Path

import numpy as np
import onnxruntime
import orjson
from measure import Measurement


def score(folder: Path, model: Path, out: Path) -> int:
    """Score every object; how many rows there were."""
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


def main() -> None:
    folder, model, out = map(Path, sys.argv[1:])
    measurement = Measurement()
    measurement.report(score(folder, model, out))


if __name__ == "__main__":
    main()
