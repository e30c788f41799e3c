"""The demo: its data, and a check that can fail."""

import csv
import json
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

DEMO = Path(__file__).parents[2] / "examples" / "demo"
ROWS, FEATURES = 569, 30


def _run(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", str(DEMO / script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _make(folder: Path, *arguments: object) -> None:
    made = _run("make_demo_data.py", "--folder", folder, *arguments)
    assert made.returncode == 0, made.stderr


def _archive_rows(folder: Path) -> list[list[str]]:
    """Return the rows of all members, without headers."""
    rows = []
    with tarfile.open(folder / "store" / "breast-cancer.tar.gz") as tar:
        for member in tar:
            lines = tar.extractfile(member).read().decode().splitlines()
            rows += list(csv.reader(lines))[1:]
    return rows


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    _make(folder, "--repeat", 2, "--members", 3)
    return folder


def _write_predictions(folder: Path, probabilities) -> Path:
    """Write the output of `headrace stream` for these probabilities (rows, 2)."""
    (folder / "_headrace").mkdir(parents=True)
    (folder / "_headrace" / "report.json").write_text(
        json.dumps({"rows_per_s": 1000.0, "peak_memory_mb": 120.0})
    )
    half = len(probabilities) // 2
    for number, part in enumerate((probabilities[:half], probabilities[half:])):
        with (folder / f"part-{number:05}.csv").open("w", newline="") as lines:
            writer = csv.writer(lines)
            writer.writerow(["label", "probabilities_0", "probabilities_1"])
            writer.writerows([int(row[1] > 0.5), *row] for row in part.tolist())
    return folder


@pytest.fixture
def expected(demo):
    with np.load(demo / "expected.npz") as expected:
        return dict(expected)


@pytest.fixture
def shown(tmp_path, demo):
    """Return a function that shows the demo with given probabilities in place of headrace's."""

    def show(probabilities):
        (tmp_path / "expected.npz").write_bytes((demo / "expected.npz").read_bytes())
        _write_predictions(tmp_path / "predictions", probabilities)
        return _run("show_demo.py", "--folder", tmp_path)

    return show


def test_archive_holds_the_real_rows_over_and_over(demo, expected):
    """Features and labels of every repetition are the data's own, in order, across members."""
    rows = _archive_rows(demo)
    assert len(rows) == 2 * ROWS
    assert all(len(row) == FEATURES + 1 for row in rows)
    assert rows[:ROWS] == rows[ROWS:]
    assert [int(row[-1]) for row in rows[:ROWS]] == expected["target"].tolist()


def test_the_same_arguments_make_the_same_bytes(demo, tmp_path):
    """The archive has no time stamp and no owner, and the model does not change."""
    _make(tmp_path, "--repeat", 2, "--members", 3)
    for name in ("store/breast-cancer.tar.gz", "model.onnx"):
        assert (tmp_path / name).read_bytes() == (demo / name).read_bytes()


def test_model_agrees_with_scikit_learn(demo, expected):
    """The exported float32 model is within the demo's tolerance of the float64 pipeline."""
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(demo / "model.onnx")
    features = np.array([row[:-1] for row in _archive_rows(demo)[:ROWS]], np.float32)
    label, probabilities = session.run(None, {"x": features})
    assert np.abs(probabilities - expected["probabilities"]).max() <= 1e-5
    assert (label == expected["target"]).mean() > 0.95


def test_show_accepts_what_scikit_learn_says(shown, expected):
    """The output names the place of the predictions and the accuracy."""
    done = shown(np.tile(expected["probabilities"], (2, 1)))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "part-00000.csv" in done.stdout
    assert "98.60% on rows held out" in done.stdout


def test_show_refuses_a_difference(shown, expected):
    """One probability of one row that is off by 2e-5 fails the demo, and the message names the row."""
    probabilities = np.tile(expected["probabilities"], (2, 1))
    probabilities[700, 0] += 2e-5
    done = shown(probabilities)
    assert done.returncode == 1
    assert "row 700" in done.stdout


def test_show_refuses_missing_rows(shown, expected):
    """A short output is not compared with fewer rows."""
    done = shown(np.tile(expected["probabilities"], (2, 1))[:-1])
    assert done.returncode == 1
    assert "1137 predictions" in done.stdout


def test_show_refuses_no_output(tmp_path, demo):
    """Missing output is a failure with a hint, not a traceback."""
    done = _run("show_demo.py", "--folder", tmp_path)
    assert done.returncode == 1
    assert "run `headrace stream` first" in done.stdout
