"""Continue texts of many clients, one character per step, with textgenrnn's network in numpy.

The network reads the last 40 characters. Two LSTMs of 128 cells run over them, each from an empty
state. An average over the 40 positions, weighted by attention, and a softmax give the probabilities
of the next character.

The LSTMs' output for a position depends on the start of the window, which moves with every
character. Continuing from their last state would save the work for 39 of 40 positions, but would be
another network: half of all positions would get another most likely character. So the state of a
sequence is its window, and each step runs over the whole window.

In `Network`, no sum of a row depends on the other rows of the batch: `np.matmul` multiplies
matrices row by row (its first axis is a loop). So a text with a seed is identical to the last
character, alone or in a batch.
"""

import secrets
from pathlib import Path

import numpy as np
from threadpoolctl import ThreadpoolController

from headrace import Model, RowError, SequenceLimits, SequenceState, TensorSpec

WINDOW = 40
END = "<s>"
"""Mark before and after a text."""
CHARACTERS_MAX = 1000


class Characters(Model):
    """A model that continues a text, one character per step.

    Parameters of a request: max_characters (100, limit 1000), temperature (0.5; 0 always takes the
    most likely character), seed (a number; random at the start of a sequence if absent). The next
    request of the sequence appends its text, which may be empty, and continues. When the network
    ends its text, the request ends, and the next request begins another text.
    """

    inputs = (TensorSpec("text", "BYTES", (-1,)),)
    outputs = (TensorSpec("character", "BYTES", (-1,)),)
    max_batch_rows = 32
    sequences = SequenceLimits(live_max=1024)

    def __init__(self, weights: str | None = None):
        self.weights = Path(weights) if weights else Path(__file__).with_name("weights.npz")

    def load(self):
        if not self.weights.exists():
            raise FileNotFoundError(f"{self.weights} does not exist: run get_weights.py")
        with np.load(self.weights) as weights:
            self.network = Network(weights)
            self.characters = weights["characters"].tolist()
        self.blas = ThreadpoolController().select(user_api="blas")
        self.numbers = {character: number for number, character in enumerate(self.characters) if character}

    def step(self, states, text):
        wrong = {}
        for row, state in enumerate(states):
            try:
                if not state.again:
                    self.begin(state, str(text[row]))
            except ValueError as error:
                wrong[row] = str(error)
        if wrong:
            raise RowError(wrong)  # no state has changed
        windows = np.stack([state["window"] for state in states])
        # For matrices this small, one thread is faster than the synchronisation of several.
        with self.blas.limit(limits=1):
            probabilities = self.network.probabilities(windows)
        chosen = [self.choose(state, p) for state, p in zip(states, probabilities, strict=True)]
        return {"character": np.array(chosen, object)}

    def begin(self, state: SequenceState, text: str) -> None:
        """Prepare the first step of a request. Raise ValueError for invalid parameters."""
        state["left"] = parameter(state, "max_characters", 100, 1, CHARACTERS_MAX)
        state["temperature"] = parameter(state, "temperature", 0.5, 0, 100, whole=False)
        if "drawn" not in state:
            state["seed"], state["drawn"] = secrets.randbits(32), 0
        state["seed"] = parameter(state, "seed", state["seed"], 0, 2**63 - 1)
        known = [self.numbers[character] for character in text if character in self.numbers]
        self.write(state, known)

    def choose(self, state: SequenceState, probabilities: np.ndarray) -> str:
        """Choose the next character and append it to the window.

        Where the text ends, return an empty character and skip the output.
        """
        number = pick(probabilities, state["temperature"], (state["seed"], state["drawn"]))
        state["drawn"] += 1
        if self.characters[number] in ("", END):
            del state["window"]
            state.skip_output()
            return ""
        self.write(state, [number])
        state["left"] -= 1
        if state["left"]:
            state.reschedule()
        return self.characters[number]

    def write(self, state: SequenceState, numbers: list[int]) -> None:
        """Append characters to the window, which begins with the end mark of a previous text."""
        window = state.get("window", [0] * (WINDOW - 1) + [self.numbers[END]])
        state["window"] = np.array([*window, *numbers][-WINDOW:], np.int16)


class Network:
    """The probabilities of the next character for windows of character numbers."""

    def __init__(self, weights):
        self.embeddings = weights["embeddings"]
        self.layers = [[weights[f"{name}_{n}"] for name in ("kernel", "recurrent", "bias")] for n in (1, 2)]
        self.attention, self.kernel, self.bias = (weights[name] for name in ("attention", "kernel", "bias"))

    def probabilities(self, windows: np.ndarray) -> np.ndarray:
        """Return probabilities [rows, characters] for windows [rows, 40].

        Each row is identical to the last bit to the result for this row alone.
        """
        embedded = self.embeddings[windows]
        first = run_lstm(embedded, *self.layers[0])
        second = run_lstm(first, *self.layers[1])
        outputs = np.concatenate([embedded, first, second], axis=2)
        weights = softmax((outputs @ self.attention)[..., 0])
        average = weights[:, None] @ outputs
        return softmax((average @ self.kernel)[:, 0] + self.bias)


def run_lstm(
    positions: np.ndarray, kernel: np.ndarray, recurrent: np.ndarray, bias: np.ndarray
) -> np.ndarray:
    """Return the outputs of one layer for each position [rows, 40, cells], from an empty state."""
    inputs = positions @ kernel + bias
    output = np.zeros((len(positions), 1, len(recurrent)), np.float32)
    cell = np.zeros_like(output)
    outputs = []
    for position in range(WINDOW):
        enter, forget, new, show = np.split(
            inputs[:, position : position + 1] + output @ recurrent, 4, axis=2
        )
        cell = sigmoid(forget) * cell + sigmoid(enter) * np.tanh(new)
        output = sigmoid(show) * np.tanh(cell)
        outputs.append(output)
    return np.concatenate(outputs, axis=1)


def pick(probabilities: np.ndarray, temperature: float, seed: tuple[int, int]) -> int:
    """Return the most likely character at temperature 0, otherwise a random one by probability."""
    if temperature == 0:
        return int(probabilities.argmax())
    weights = softmax(np.log(probabilities.astype(np.float64) + 1e-7) / temperature).cumsum()
    return int(weights.searchsorted(np.random.default_rng(seed).random() * weights[-1], side="right"))


def parameter(
    state: SequenceState, name: str, default: float, low: int, high: int, *, whole: bool = True
) -> float:
    """Return a parameter of the request. Raise ValueError if it is out of range."""
    value = state.parameters.get(name, default)
    kinds = int if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not low <= value <= high:
        what = "a whole number" if whole else "a number"
        raise ValueError(f"{name} must be {what} from {low} to {high}, not {value!r:.40}")
    return value


def softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))
