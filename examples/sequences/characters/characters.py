"""Writes on from a text, a character a step, for many callers in one batch: textgenrnn's trained network, in numpy.

The network looks at the last 40 characters: two LSTMs of 128 cells run over them, each from an empty state, then an average
over the 40 places, weighted by attention, and a softmax over the characters. It was trained so, and what its LSTMs say of a
place therefore depends on where the window begins, which moves with every character. Going on from their last state would save
39 of 40 places, and be another network: it would give half of all places another likeliest character. So what is kept of a
sequence is the window, and a step runs over all of it.

`Network` never lets one row's sums depend on who else is in the batch: matrices are multiplied row by row (the first axis is a
loop in `np.matmul`). With its seed, a text is then the same to the last character, alone or among others.
"""

import secrets
from pathlib import Path

import numpy as np
from threadpoolctl import ThreadpoolController

from headrace import Model, RowError, SequenceLimits, SequenceState, TensorSpec

WINDOW = 40
END = "<s>"
"""Stands before a text, and after it."""
CHARACTERS_MAX = 1000


class Characters(Model):
    """A text in, the characters that follow it out, one by one.

    Parameters of a request: max_characters (100, at most 1000), temperature (0.5; 0 always takes the likeliest), seed (a number; drawn
    at a sequence's start where there is none). The next request of the sequence adds its text, which may be empty, to all that was
    written, and goes on. Where the network ends its text, the request is over, and the next one begins another text.
    """

    inputs = (TensorSpec("text", "BYTES", (-1,)),)
    outputs = (TensorSpec("character", "BYTES", (-1,)),)
    max_batch_rows = 32
    sequences = SequenceLimits(live_max=1024)

    def __init__(self, weights: str | None = None):
        self.weights = Path(weights) if weights else Path(__file__).with_name("weights.npz")

    def load(self):
        if not self.weights.exists():
            raise FileNotFoundError(f"{self.weights} is not there: python get_weights.py")
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
            raise RowError(wrong)  # no state has changed then
        windows = np.stack([state["window"] for state in states])
        # Matrices this small are multiplied sooner than threads meet; with company on the machine, far sooner.
        with self.blas.limit(limits=1):
            probabilities = self.network.probabilities(windows)
        chosen = [self.choose(state, p) for state, p in zip(states, probabilities, strict=True)]
        return {"character": np.array(chosen, object)}

    def begin(self, state: SequenceState, text: str) -> None:
        """A request's first step. Raises ValueError for parameters that cannot be."""
        state["left"] = given(state, "max_characters", 100, 1, CHARACTERS_MAX)
        state["temperature"] = given(state, "temperature", 0.5, 0, 100, whole=False)
        if "drawn" not in state:
            state["seed"], state["drawn"] = secrets.randbits(32), 0
        state["seed"] = given(state, "seed", state["seed"], 0, 2**63 - 1)
        known = [self.numbers[character] for character in text if character in self.numbers]
        self.write(state, known)

    def choose(self, state: SequenceState, probabilities: np.ndarray) -> str:
        """The next character, which is written down; an empty one, for nobody, where the text ends."""
        number = pick(probabilities, state["temperature"], (state["seed"], state["drawn"]))
        state["drawn"] += 1
        if self.characters[number] in ("", END):
            del state["window"]
            state.skip_output()
            return ""
        self.write(state, [number])
        state["left"] -= 1
        if state["left"]:
            state.go_on()
        return self.characters[number]

    def write(self, state: SequenceState, numbers: list[int]) -> None:
        """Move the window on. Before the first character there is an end, and nothing before it."""
        window = state.get("window", [0] * (WINDOW - 1) + [self.numbers[END]])
        state["window"] = np.array([*window, *numbers][-WINDOW:], np.int16)


class Network:
    """The next character's probabilities, from windows of characters' numbers."""

    def __init__(self, weights):
        self.embeddings = weights["embeddings"]
        self.layers = [[weights[f"{name}_{n}"] for name in ("kernel", "recurrent", "bias")] for n in (1, 2)]
        self.attention, self.kernel, self.bias = (weights[name] for name in ("attention", "kernel", "bias"))

    def probabilities(self, windows: np.ndarray) -> np.ndarray:
        """[rows, characters] of windows [rows, 40], each to the last bit as it is alone."""
        embedded = self.embeddings[windows]
        first = run_lstm(embedded, *self.layers[0])
        second = run_lstm(first, *self.layers[1])
        said = np.concatenate([embedded, first, second], axis=2)
        weights = softmax((said @ self.attention)[..., 0])
        seen = weights[:, None] @ said
        return softmax((seen @ self.kernel)[:, 0] + self.bias)


def run_lstm(places: np.ndarray, kernel: np.ndarray, recurrent: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """What one layer says of each place [rows, 40, cells], from an empty state."""
    given = places @ kernel + bias
    said = np.zeros((len(places), 1, len(recurrent)), np.float32)
    cell = np.zeros_like(said)
    outputs = []
    for place in range(WINDOW):
        enter, forget, new, show = np.split(given[:, place : place + 1] + said @ recurrent, 4, axis=2)
        cell = sigmoid(forget) * cell + sigmoid(enter) * np.tanh(new)
        said = sigmoid(show) * np.tanh(cell)
        outputs.append(said)
    return np.concatenate(outputs, axis=1)


def pick(probabilities: np.ndarray, temperature: float, seed: tuple[int, int]) -> int:
    """The likeliest at temperature 0; else one at random, the rarer the unlikelier."""
    if temperature == 0:
        return int(probabilities.argmax())
    weights = softmax(np.log(probabilities.astype(np.float64) + 1e-7) / temperature).cumsum()
    return int(weights.searchsorted(np.random.default_rng(seed).random() * weights[-1], side="right"))


def given(
    state: SequenceState, name: str, default: float, low: int, high: int, *, whole: bool = True
) -> float:
    """A parameter of the request. Raises ValueError."""
    value = state.parameters.get(name, default)
    kinds = int if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not low <= value <= high:
        what = "a whole number" if whole else "a number"
        raise ValueError(f"{name} must be {what} from {low} to {high}, not {value!r:.40}")
    return value


def softmax(x: np.ndarray) -> np.ndarray:
    raised = np.exp(x - x.max(axis=-1, keepdims=True))
    return raised / raised.sum(axis=-1, keepdims=True)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))
