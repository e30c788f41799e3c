"""--model and -O of stream, transform and retry-failed: the same models and options as for serve."""

import json
from pathlib import Path

import pytest

from cases import for_each
from integration.command import headrace

MODEL = """
from headrace import Model
class Scaled(Model):
    def __init__(self, factor=1, label=""): self.factor, self.label = factor, label
    def predict(self, x): return {"score": x[:, 0] * self.factor, "label": [self.label] * len(x)}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    Path("scaled.py").write_text(MODEL)
    Path("rows.csv").write_text("1,2,3\n4,5,6\n")
    return tmp_path


def predictions(command: str, *arguments: str) -> list[dict]:
    """Return the predictions that a command writes as JSON Lines."""
    if command == "stream":
        places = ["rows.csv", "--output", "stream/", "--output-format", "jsonl"]
    else:
        places = ["rows.csv", "transform/", "--accept", "jsonl"]
    done = headrace(command, *places, "--overwrite", *arguments)
    assert done.code == 0, done.err
    (file,) = [p for p in Path(command).iterdir() if p.is_file() and p.name != "_report.json"]
    return [json.loads(line) for line in file.read_text().splitlines()]


@for_each("command", ["transform", "stream"])
def test_starter_project_is_a_model_of_every_command(command, tmp_path_factory):
    name = f"m-{command}"
    assert headrace("init", name).code == 0
    found = predictions(command, "--model", name)
    assert [round(p["score"], 5) for p in found] == [1.7, 4.7]
    assert predictions(command, "--model", f"other={name}/") == found


@for_each("command", ["transform", "stream"])
def test_options_are_toml_values_or_text(command):
    found = predictions(command, "--model", "scaled.py", "-O", "factor=3", "--option", "label=a b")
    assert [(p["score"], p["label"]) for p in found] == [(3, "a b"), (12, "a b")]
    found = predictions(command, "--model", "scaled.py", "-O", 'label="3"')
    assert [p["label"] for p in found] == ["3", "3"]


@for_each("command", ["transform", "stream"])
@for_each(
    ("arguments", "code", "why"),
    [
        (
            ["--model", "scaled.py", "-O", "speed=3"],
            1,
            "scaled.py has no option 'speed'; it has factor, label",
        ),
        (["--model", "scaled.py", "-O", "factor"], 1, "--option 'factor' must be KEY=VALUE"),
        (["--endpoint", "http://localhost:1/v2/models/m", "-O", "factor=3"], 2, "-O requires --model"),
        (["--model", "nothing.here"], 1, "'nothing.here' is not a model: a model is a file model.onnx"),
    ],
)
def test_invalid_models_and_options_are_refused(command, arguments, code, why):
    places = ["rows.csv", "--output", "no/"] if command == "stream" else ["rows.csv", "no/"]
    done = headrace(command, *places, *arguments)
    assert (done.code, why in done.err) == (code, True), done.err
    assert not Path("no").exists()


def test_spec_file_has_options_of_its_model():
    Path("job.toml").write_text(
        '[headrace]\nmodel = "scaled.py"\nsource = "rows.csv"\noutput = "spec/"\naccept = "jsonl"\n'
        "[headrace.model_options]\nfactor = 3\nlabel = 'a'\n"
    )

    def first(*arguments: str) -> dict:
        done = headrace("transform", "--spec", "job.toml", "--overwrite", *arguments)
        assert done.code == 0, done.err
        return json.loads(Path("spec/rows.csv.out").read_text().splitlines()[0])

    assert first() == {"score": 3, "label": "a"}
    assert first("-O", "label=b") == {"score": 3, "label": "b"}
    assert first("--model", "scaled.py") == {"score": 1, "label": ""}, (
        "the options are those of the spec's model"
    )


def test_dry_run_has_the_options():
    done = headrace("transform", "rows.csv", "no/", "--model", "scaled.py", "-O", "speed=3", "--dry-run")
    assert (done.code, "has no option 'speed'" in done.err) == (1, True)
    done = headrace("transform", "rows.csv", "no/", "--model", "scaled.py", "-O", "factor=3", "--dry-run")
    assert done.code == 0, done.err


@for_each("command", ["transform", "stream"])
def test_retry_has_the_options(command):
    predictions(command, "--model", "scaled.py", "-O", "factor=3")
    assert headrace(command, "retry-failed", f"{command}/").code == 0
    other = headrace(command, "retry-failed", f"{command}/", "-O", "factor=4")
    assert (other.code, "--other-model" in other.err) == (1, True)
    assert headrace(command, "retry-failed", f"{command}/", "-O", "factor=4", "--other-model").code == 0


@for_each("command", ["transform", "stream", "serve", "up", "work"])
def test_help_refers_to_the_page_of_models(command):
    done = (
        headrace(command, "run", "--help")
        if command in ("transform", "stream")
        else headrace(command, "--help")
    )
    assert "docs/models.md" in done.out
    assert "-O, --option KEY=VALUE" in done.out


@pytest.mark.slow
@for_each("command", ["transform", "stream", "serve", "work"])
@for_each("suffix", ["joblib", "pkl"])
def test_error_for_a_pickle_names_an_option_that_works(command, suffix):
    import re
    import shlex

    import joblib
    import numpy as np
    from sklearn.linear_model import LinearRegression

    x = np.array([[1.0, 2, 3], [4, 5, 6], [7, 8, 10], [1, 0, 0]])
    joblib.dump(LinearRegression().fit(x, x[:, 0]), f"line.{suffix}")
    arguments = {
        "stream": ["rows.csv", "--output", "no/", "--model"],
        "transform": ["rows.csv", "no/", "--model"],
        "serve": ["--rest-port", "0", "--no-grpc", "--no-metrics"],
        "work": ["--isolation", "thread"],
    }[command]
    refused = headrace(command, *arguments, f"line.{suffix}")
    assert refused.code == 1
    option = re.search(r"on the command line (-O .+?), in a model", refused.err)
    assert option is not None, refused.err
    if command in ("stream", "transform"):
        found = predictions(command, "--model", f"line.{suffix}", *shlex.split(option[1]))
        assert [round(p["predict"], 6) for p in found] == [1, 4]
