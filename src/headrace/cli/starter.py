"""The files that ``headrace init`` writes; pure."""

import keyword
import re
from dataclasses import dataclass
from shlex import quote
from string import Template

from headrace.core.errors import ConfigError

_PREDICT_MODEL = Template('''\
"""A model: numpy in, numpy out, the first axis is rows."""

import numpy as np

from headrace import Model, RowError, TensorSpec


class $cls(Model):
    inputs = (TensorSpec("x", "FP32", (-1, 3)),)
    outputs = (TensorSpec("score", "FP32", (-1,)),)

    def load(self):
        """Once for each instance, before anything else: read weights here."""
        self.weights = np.array([0.5, 0.3, 0.2], np.float32)

    def predict(self, x):
        """A whole batch at once: the rows of one request, or of many."""
        bad = np.flatnonzero((x < 0).any(axis=1))
        if len(bad):
            raise RowError({int(row): "a value is negative" for row in bad})
        return {"score": x @ self.weights}
''')

_PREDICT_TEST = Template("""\
import numpy as np
import pytest
from $module import $cls

from headrace import RowError


@pytest.fixture
def model():
    model = $cls()
    model.load()
    return model


def test_a_row_is_scored(model):
    outputs = model.predict(x=np.array([[1, 2, 3], [0, 0, 0]], np.float32))
    np.testing.assert_allclose(outputs["score"], [1.7, 0], rtol=1e-6)


def test_a_bad_row_is_named(model):
    with pytest.raises(RowError) as refused:
        model.predict(x=np.array([[1, 2, 3], [1, -2, 3]], np.float32))
    assert refused.value.rows == {1: "a value is negative"}
""")

_STREAM_MODEL = Template('''\
"""A model that streams: a request in, and items that go to their caller one by one."""

from headrace import Model, TensorSpec


class $cls(Model):
    inputs = (TensorSpec("text", "BYTES", (-1,)),)
    outputs = (TensorSpec("token", "BYTES", (-1,)),)

    def load(self):
        """Once for each instance, before anything else: read weights here."""
        self.max_tokens = 32

    def predict_stream(self, requests):
        """Yield as soon as there is something. A caller who goes away closes this generator."""
        for request in requests:
            words = str(request["text"][0]).split()
            wanted = int(request.parameters.get("max_tokens", self.max_tokens))
            for word in words[::-1][:wanted]:
                yield {"token": [word + " "]}
''')

_STREAM_TEST = Template("""\
import numpy as np
import pytest
from $module import $cls

from headrace import InferRequest, Tensor


@pytest.fixture
def model():
    model = $cls()
    model.load()
    return model


def tokens(model, text, **parameters):
    request = InferRequest((Tensor("text", np.array([text], object)),), parameters=parameters)
    return [item["token"][0] for item in model.predict_stream([request])]


def test_words_come_one_by_one(model):
    assert tokens(model, "to be or") == ["or ", "be ", "to "]


def test_it_stops_when_it_has_said_enough(model):
    assert tokens(model, "to be or", max_tokens=1) == ["or "]
""")

_SETTINGS = Template("""\
name = "$name"
version = "1"
model = "$module.py:$cls"

[serve]
# How many copies, and where each runs: auto, inline, thread or process.
instances = 1
isolation = "auto"
# Rows that go to the model in one call, and how long one may wait for company that is expected.
max_batch_rows = 64
max_batch_delay_ms = 2.0
# Rows that may wait; beyond, callers are told to ask again later.
queue_rows_max = 4096
""")


@dataclass(frozen=True, slots=True)
class Starter:
    """Files by name, and what to type next."""

    name: str
    files: dict[str, str]
    streams: bool

    def commands(self, folder: str) -> list[str]:
        """For a shell, in order; `folder` is where the files are."""
        ask = "--text 'to be or not' --stream" if self.streams else "--input '[[1, 2, 3]]'"
        return [
            f"pytest {quote(folder)}",
            f"headrace serve {quote(folder)}",
            f"headrace infer {quote(self.name)} {ask}",
        ]


def starter(name: str, *, streams: bool) -> Starter:
    """A model called `name` to begin with. ConfigError for a name that no model can have."""
    module = re.sub(r"[-.]", "_", name)
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_.-]*", name) or keyword.iskeyword(module):
        raise ConfigError(
            f"{name!r} cannot be a model's name: it begins with a letter, and has letters, digits, - _ and . in it"
        )
    words = {
        "name": name,
        "module": module,
        "cls": "".join(p[:1].upper() + p[1:] for p in module.split("_")),
    }
    model, test = (_STREAM_MODEL, _STREAM_TEST) if streams else (_PREDICT_MODEL, _PREDICT_TEST)
    files = {
        f"{module}.py": model.substitute(words),
        "model.toml": _SETTINGS.substitute(words),
        f"test_{module}.py": test.substitute(words),
    }
    return Starter(name, files, streams)
