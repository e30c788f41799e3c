"""Detect the kind of a file from its bytes, with the network of the package magika.

The inputs are prepared as magika's authors do.
"""

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnxruntime

from headrace import Model, RowError, TensorSpec

BYTES_MAX = 64 << 20


class FileType(Model):
    """A model from the contents of files to labels, such as python or pdf, and scores of the
    network.
    """

    inputs = (TensorSpec("content", "BYTES", (-1,)),)
    bytes_as = "bytes"  # files need not be text
    outputs = (TensorSpec("label", "BYTES", (-1,)), TensorSpec("score", "FP32", (-1,)))
    max_batch_rows = 64

    def load(self):
        spec = find_spec("magika")
        if spec is None or spec.origin is None:
            raise FileNotFoundError("the package magika is not installed: run make setup-all")
        folder = Path(spec.origin).parent / "models" / "standard_v3_3"
        config = json.loads((folder / "config.min.json").read_text())
        self.labels = np.array(config["target_labels_space"], object)
        self.renamed = config["overwrite_map"]
        self.thresholds = config["thresholds"]
        self.threshold = config["medium_confidence_threshold"]
        self.begin, self.end = config["beg_size"], config["end_size"]
        self.block, self.padding = config["block_size"], config["padding_token"]
        self.small = config["min_file_size_for_dl"]
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(folder / "model.onnx", options)

    def predict(self, content):
        contents = [c.encode() if isinstance(c, str) else bytes(c) for c in content]
        short = {
            i: f"{len(c)} bytes are too few to detect a kind"
            for i, c in enumerate(contents)
            if len(c) < self.small
        }
        if short:
            raise RowError(short)
        features = np.stack([self.features(c) for c in contents])
        (scores,) = self.session.run(["target_label"], {"bytes": features})
        best = scores.argmax(axis=1)
        score = scores[np.arange(len(best)), best]
        labels = [self.label(name, s) for name, s in zip(self.labels[best], score, strict=True)]
        return {"label": np.array(labels, object), "score": score}

    def features(self, content: bytes) -> np.ndarray:
        """Return the first and the last bytes without surrounding white space, padded in the
        middle.
        """
        first = content[: self.block].lstrip()[: self.begin]
        last = content[-self.block :].rstrip()[-self.end :]
        features = np.full(self.begin + self.end, self.padding, np.int32)
        features[: len(first)] = np.frombuffer(first, np.uint8)
        features[len(features) - len(last) :] = np.frombuffer(last, np.uint8)
        return features

    def label(self, name: str, score: float) -> str:
        """Return the network's label, or "unknown" below the label's threshold."""
        if score < self.thresholds.get(name, self.threshold):
            return "unknown"
        return self.renamed.get(name, name)
