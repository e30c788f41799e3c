"""An unpacked model copy has the fingerprint and the predictions of the original."""

import numpy as np
import pytest

from headrace.app import runners
from headrace.app.runners import copy_model
from headrace.runtimes.load import model_factory, model_files

MODEL = "import headrace\n\n\nclass Twice(headrace.Model):\n    def predict(self, x):\n        return x * 2\n"


@pytest.mark.parametrize("named", ["twice.py", "twice.py:Twice"])
def test_unpacked_file_is_the_same_model(tmp_path, named):
    (tmp_path / "twice.py").write_text(MODEL)
    copy = copy_model(str(tmp_path / named))
    unpacked = copy.unpack(tmp_path / "there")
    assert unpacked == str(tmp_path / "there" / named)
    source = model_factory(unpacked)
    assert source.fingerprint == model_factory(str(tmp_path / named)).fingerprint
    assert source.make().predict(np.float32([1.5])).tolist() == [3.0]


def test_folder_is_copied_whole(tmp_path):
    folder = tmp_path / "model"
    (folder / "deep").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "deep" / "weights").write_bytes(b"w" * 1000)
    unpacked = copy_model(str(folder)).unpack(tmp_path / "there")
    assert model_factory(unpacked).fingerprint == model_factory(str(folder)).fingerprint


def test_weights_are_copied_with_the_file_of_their_class(tmp_path):
    (tmp_path / "net.pt").write_bytes(b"weights")
    (tmp_path / "net.py").write_text("x = 1\n")
    options = {"class": "net.py:Net"}
    assert [p.name for p in model_files(str(tmp_path / "net.pt"), options)] == ["net.pt", "net.py"]
    copy_model(str(tmp_path / "net.pt"), options).unpack(tmp_path / "there")
    assert (tmp_path / "there" / "net.py").read_text() == "x = 1\n"


def test_class_of_a_module_is_not_copied():
    assert copy_model("json:JSONDecoder") is None


def test_model_above_the_size_limit_is_not_copied(tmp_path, monkeypatch):
    (tmp_path / "a.onnx").write_bytes(b"x" * 101)
    monkeypatch.setattr(runners, "COPY_BYTES_MAX", 100)
    assert copy_model(str(tmp_path / "a.onnx")) is None
