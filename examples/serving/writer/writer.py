"""Writes on from a text, a character at a time: textgenrnn's trained network, in numpy.

Two LSTMs of 128 cells over the last 40 characters, an attention-weighted average over what they say, and a softmax over 465
characters. It was trained on headlines and posts, and knows how words look rather than what they mean.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np

from headrace import Model, TensorSpec

WINDOW = 40
END = "<s>"
TOKENS_MAX = 1000


class Writer(Model):
    """Parameters of a request: max_tokens (100), temperature (0.5; 0 always takes the likeliest), seed.

    The two files of the network are looked for in `weights`, or where ``make setup`` unpacks them.
    """

    inputs = (TensorSpec("text", "BYTES", (-1,)),)
    outputs = (TensorSpec("token", "BYTES", (-1,)),)

    def __init__(self, weights: str | None = None):
        self.folder = Path(weights) if weights else Path(sys.prefix) / "share" / "textgenrnn"

    def load(self):
        self.index = json.loads((self.folder / "textgenrnn_vocab.json").read_text())
        self.characters = {i: c for c, i in self.index.items()}
        with h5py.File(self.folder / "textgenrnn_weights.hdf5") as file:
            self.embeddings = file["embedding/embedding/embeddings:0"][()]
            self.layers = [read_lstm(file, name) for name in ("rnn_1", "rnn_2")]
            self.attention = file["attention/attention/attention_W:0"][()][:, 0]
            self.kernel = file["output/output/kernel:0"][()]
            self.bias = file["output/output/bias:0"][()]

    def predict_stream(self, requests):
        for request in requests:
            parameters = request.parameters
            random = np.random.default_rng(parameters.get("seed"))
            temperature = float(parameters.get("temperature", 0.5))
            wanted = min(int(parameters.get("max_tokens", 100)), TOKENS_MAX)
            for character in self.write(as_text(request["text"].flat[0]), wanted, temperature, random):
                yield {"token": [character]}

    def write(self, text: str, wanted: int, temperature: float, random: np.random.Generator) -> Iterator[str]:
        """What follows the text, until the network says that it ends, or enough is written."""
        written = [self.index[END], *(self.index[c] for c in text if c in self.index)]
        for _ in range(wanted):
            character = self.characters.get(pick(self.probabilities(written[-WINDOW:]), temperature, random))
            if character in (None, END):
                return
            yield character
            written.append(self.index[character])

    def probabilities(self, window: list[int]) -> np.ndarray:
        """Of each character to come next; 0 stands for none."""
        padded = np.zeros(WINDOW, np.int64)
        padded[WINDOW - len(window) :] = window
        embedded = self.embeddings[padded]
        first = run_lstm(embedded, *self.layers[0])
        second = run_lstm(first, *self.layers[1])
        said = np.concatenate([embedded, first, second], axis=1)
        weights = softmax(said @ self.attention)
        return softmax(weights @ said @ self.kernel + self.bias)


def read_lstm(file: h5py.File, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Kernels and bias of a layer. They are stored as CuDNN has them: gates transposed, and two biases to be added."""
    group = file[f"{name}/{name}"]
    kernel, recurrent, bias = (group[f"{part}:0"][()] for part in ("kernel", "recurrent_kernel", "bias"))
    gates = [g.T.reshape(g.shape, order="F") for g in np.hsplit(kernel, 4)]
    recurrent_gates = [g.T for g in np.hsplit(recurrent, 4)]
    return np.hstack(gates), np.hstack(recurrent_gates), bias.reshape(2, -1).sum(axis=0)


def run_lstm(steps: np.ndarray, kernel: np.ndarray, recurrent: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """The outputs of one layer (steps, cells), from an empty state."""
    cells = recurrent.shape[0]
    output, state = np.zeros(cells, np.float32), np.zeros(cells, np.float32)
    outputs = np.empty((len(steps), cells), np.float32)
    given = steps @ kernel + bias
    for step in range(len(steps)):
        gates = given[step] + output @ recurrent
        enter, forget, show = (sigmoid(gates[cells * i : cells * (i + 1)]) for i in (0, 1, 3))
        state = forget * state + enter * np.tanh(gates[2 * cells : 3 * cells])
        output = show * np.tanh(state)
        outputs[step] = output
    return outputs


def pick(probabilities: np.ndarray, temperature: float, random: np.random.Generator) -> int:
    """The likeliest at temperature 0; else one at random, the rarer the unlikelier."""
    if temperature <= 0:
        return int(probabilities.argmax())
    weights = softmax(np.log(probabilities.astype(np.float64) + 1e-7) / temperature)
    return int(random.choice(len(weights), p=weights))


def softmax(x: np.ndarray) -> np.ndarray:
    raised = np.exp(x - x.max())
    return raised / raised.sum()


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def as_text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
