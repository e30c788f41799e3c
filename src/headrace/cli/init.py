"""``headrace init``: create a model project with settings and a passing test."""

import keyword
import re
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from string import Template

import click

from headrace.cli.commands import exit_on_error
from headrace.core.errors import ConfigError

_EPILOG = """\b
Examples:
  Create a model that predicts batches of rows:
    headrace init churn
  Create a model that streams words in response to text:
    headrace init writer --stream
"""


@click.command("init", epilog=_EPILOG)
@click.argument("name")
@click.option("--stream", "streams", is_flag=True, help="Create a model that streams its responses.")
def init_command(name: str, streams: bool) -> None:
    """Create a folder NAME with a model, a model.toml and a test. Existing files are never overwritten."""
    with exit_on_error():
        project = starter_project(Path(name).name, streams=streams)
        write_new(Path(name), project.files)
    for file in project.files:
        click.echo(f"wrote {Path(name) / file}", err=True)
    click.echo("Next:", err=True)
    for command in project.commands(name):
        click.echo(f"  {command}")


def write_new(folder: Path, files: dict[str, str]) -> None:
    """Write new files into the folder and create it if necessary.

    If one of the files exists, write nothing and raise ConfigError.
    """
    existing = [file for file in files if (folder / file).exists()]
    if existing:
        raise ConfigError(
            f"{folder} already contains {', '.join(existing)}: choose another name or move the files"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            with (folder / file).open("x", encoding="utf-8") as target:
                target.write(text)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror or error}") from error


_PREDICT_MODEL = Template('''\
"""A model with numpy inputs and outputs; the first axis is rows."""

import numpy as np

from headrace import Model, RowError, TensorSpec


class $cls(Model):
    inputs = (TensorSpec("x", "FP32", (-1, 3)),)
    outputs = (TensorSpec("score", "FP32", (-1,)),)

    def load(self):
        """Load the weights. Called once per instance, before predict."""
        self.weights = np.array([0.5, 0.3, 0.2], np.float32)

    def predict(self, x):
        """Return the outputs of a batch: rows of one or several requests."""
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


def test_row_is_scored(model):
    outputs = model.predict(x=np.array([[1, 2, 3], [0, 0, 0]], np.float32))
    np.testing.assert_allclose(outputs["score"], [1.7, 0], rtol=1e-6)


def test_bad_row_is_named(model):
    with pytest.raises(RowError) as refused:
        model.predict(x=np.array([[1, 2, 3], [1, -2, 3]], np.float32))
    assert refused.value.rows == {1: "a value is negative"}
""")

_STREAM_MODEL = Template('''\
"""A model that streams its responses item by item."""

from headrace import Model, TensorSpec


class $cls(Model):
    inputs = (TensorSpec("text", "BYTES", (-1,)),)
    outputs = (TensorSpec("token", "BYTES", (-1,)),)

    def load(self):
        """Load the weights. Called once per instance, before predict_stream."""
        self.max_tokens = 32

    def predict_stream(self, requests):
        """Yield items as soon as they are ready. A cancelled request closes this generator."""
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


def test_words_are_streamed_one_by_one(model):
    assert tokens(model, "to be or") == ["or ", "be ", "to "]


def test_stream_stops_at_max_tokens(model):
    assert tokens(model, "to be or", max_tokens=1) == ["or "]
""")

_SETTINGS = Template("""\
name = "$name"
version = "1"
model = "$module.py:$cls"

[serve]
# Number of model instances, and their isolation: auto, inline, thread or process.
instances = 1
isolation = "auto"
# Batch size limit in rows, and the longest wait of a row for rows of other requests.
max_batch_rows = 64
max_batch_delay_ms = 2.0
# Limit of waiting rows; requests above it are refused with status 429.
queue_rows_max = 4096
""")


@dataclass(frozen=True, slots=True)
class StarterProject:
    """The files of a new model project by name."""

    name: str
    files: dict[str, str]
    streams: bool

    def commands(self, folder: str) -> list[str]:
        """Return the next shell commands in order; `folder` contains the files."""
        request_options = "--text 'to be or not' --stream" if self.streams else "--input '[[1, 2, 3]]'"
        return [
            f"pytest {quote(folder)}",
            f"headrace serve {quote(folder)}",
            f"headrace infer {quote(self.name)} {request_options}",
        ]


def starter_project(name: str, *, streams: bool) -> StarterProject:
    """Return a project for a model called `name`. Raise ConfigError for an invalid model name."""
    module = re.sub(r"[-.]", "_", name)
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_.-]*", name) or keyword.iskeyword(module):
        raise ConfigError(
            f"{name!r} is not a valid model name: use a letter, then letters, digits, '-', '_' or '.'"
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
    return StarterProject(name, files, streams)
