"""Continue a text character by character, with textgenrnn's trained network in numpy.

Two LSTMs of 128 cells run over the last 40 characters. Their outputs are averaged with attention
weights, and a softmax gives the probabilities of 465 characters. The network was trained on
headlines and posts. It imitates the form of words rather than their meaning.
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
    """A model that continues a text and streams each character.

    Parameters of a request: max_tokens (100), temperature (0.5; 0 always takes the most likely
    character), seed. The two files of the network are read from `weights`, or from the folder to
    which ``make setup-all`` unpacks them.
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
        """Yield the characters that follow the text, until the network ends it or `wanted` are
        written.
        """
        written = [self.index[END], *(self.index[c] for c in text if c in self.index)]
        for _ in range(wanted):
            character = self.characters.get(pick(self.probabilities(written[-WINDOW:]), temperature, random))
            if character in (None, END):
                return
            yield character
            written.append(self.index[character])

    def probabilities(self, window: list[int]) -> np.ndarray:
        """Return the probability of each next character; index 0 means no character."""
        padded = np.zeros(WINDOW, np.int64)
        padded[WINDOW - len(window) :] = window
        embedded = self.embeddings[padded]
        first = run_lstm(embedded, *self.layers[0])
        second = run_lstm(first, *self.layers[1])
        outputs = np.concatenate([embedded, first, second], axis=1)
        weights = softmax(outputs @ self.attention)
        return softmax(weights @ outputs @ self.kernel + self.bias)


def read_lstm(file: h5py.File, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return kernels and bias of a layer.

    The file has them in the layout of CuDNN: transposed gates, and two biases to be added.
    """
    group = file[f"{name}/{name}"]
    kernel, recurrent, bias = (group[f"{part}:0"][()] for part in ("kernel", "recurrent_kernel", "bias"))
    gates = [g.T.reshape(g.shape, order="F") for g in np.hsplit(kernel, 4)]
    recurrent_gates = [g.T for g in np.hsplit(recurrent, 4)]
    return np.hstack(gates), np.hstack(recurrent_gates), bias.reshape(2, -1).sum(axis=0)


def run_lstm(steps: np.ndarray, kernel: np.ndarray, recurrent: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Return the outputs of one layer (steps, cells), from an empty state."""
    cells = recurrent.shape[0]
    output, state = np.zeros(cells, np.float32), np.zeros(cells, np.float32)
    outputs = np.empty((len(steps), cells), np.float32)
    inputs = steps @ kernel + bias
    for step in range(len(steps)):
        gates = inputs[step] + output @ recurrent
        enter, forget, show = (sigmoid(gates[cells * i : cells * (i + 1)]) for i in (0, 1, 3))
        state = forget * state + enter * np.tanh(gates[2 * cells : 3 * cells])
        output = show * np.tanh(state)
        outputs[step] = output
    return outputs


def pick(probabilities: np.ndarray, temperature: float, random: np.random.Generator) -> int:
    """Return the most likely character at temperature 0, otherwise a random one by probability."""
    if temperature <= 0:
        return int(probabilities.argmax())
    weights = softmax(np.log(probabilities.astype(np.float64) + 1e-7) / temperature)
    return int(random.choice(len(weights), p=weights))


def softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max())
    return powers / powers.sum()


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def as_text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
