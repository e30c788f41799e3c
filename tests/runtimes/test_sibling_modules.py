"""Modules beside a model's file: each model imports its own, and its fingerprint covers them."""

import sys
import threading

import pytest

from engine.support import fresh_response, values
from headrace.app.runners import copy_model
from headrace.core.errors import ModelLoadError
from headrace.runtimes.classes import import_file, load_class
from headrace.runtimes.load import model_factory, model_files

MODEL = """
import helper
from headrace import Model


class Adds(Model):
    def predict(self, x):
        return x + helper.value()
"""


@pytest.fixture(autouse=True)
def _imported_modules_are_removed():
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("headrace_model_"):
            del sys.modules[name]


@pytest.fixture
def write(tmp_path):
    """Write files below a folder, by name, and return the folder."""

    def write(folder="m", **files):
        for name, text in files.items():
            path = tmp_path / folder / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path / folder

    return write


def helper(value):
    return f"def value():\n    return {value}\n"


def predicted(spec):
    return values(fresh_response(model_factory(str(spec)).make, [[1.0]]))


def test_models_import_their_own_modules(write):
    """The files of both models have the same name and content."""
    one = write("one", model=MODEL, helper=helper(1)) / "model.py"
    two = write("two", model=MODEL, helper=helper(2)) / "model.py"
    sources = [model_factory(str(path)) for path in (one, two)]
    assert [values(fresh_response(source.make, [[1.0]])) for source in sources] == [[2.0], [3.0]]
    assert "helper" not in sys.modules
    assert not list(one.parent.glob("__pycache__"))


@pytest.mark.slow  # starts processes
def test_model_processes_import_their_own_modules(write):
    from headrace.engine.settings import ServeSettings

    settings = ServeSettings(isolation="process")
    for folder, expected in (("one", 1), ("two", 2)):
        path = write(folder, model=MODEL, helper=helper(expected)) / "model.py"
        response = fresh_response(model_factory(str(path)).make, [[1.0]], serving=settings)
        assert values(response) == [1.0 + expected]


@pytest.mark.parametrize(
    "statement",
    [
        "import helper",
        "from . import helper",
        "import package.inner as helper",
        "from package import inner as helper",
        "from package.inner import value; import package.inner; helper = package.inner",
        "from package import absolute as helper",
        "from package import relative as helper",
        "from folder import helper",
        "helper = __import__('helper')",
    ],
)
def test_all_import_statements_find_modules(write, statement):
    write("m/package", __init__="", inner=helper(1))
    write(
        "m/package", absolute="import helper\nfrom helper import value", relative="from .inner import value"
    )
    write("m/folder", helper=helper(1))
    folder = write(model=MODEL.replace("import helper\n", statement + "\n"), helper=helper(1))
    assert predicted(folder / "model.py") == [2.0]


def test_import_in_a_method_finds_modules_in_any_thread(write):
    text = MODEL.replace("import helper\n", "").replace("return x", "import helper\n        return x")
    model = model_factory(str(write(model=text, helper=helper(1)) / "model.py")).make()
    results = []
    threads = [threading.Thread(target=lambda: results.append(model.predict(1))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [2] * 4


def test_standard_library_and_own_file_are_not_replaced(write):
    """A model in onnx.py can import onnx. A folder without `__init__.py` replaces no package."""
    text = "import json, numpy, numpy.linalg\nassert json.dumps and numpy.linalg.norm\n" + MODEL
    write("m/yaml", module="")
    write(json="1 / 0", helper=helper(1))
    folder = write(numpy="import yaml\nassert yaml.safe_load\n" + text)
    assert predicted(folder / "numpy.py") == [2.0]


def test_reloaded_model_imports_changed_modules(write):
    """The earlier model keeps its modules."""
    folder = write(model=MODEL, helper=helper(1))
    first = model_factory(str(folder / "model.py"))
    write(helper=helper(2))
    second = model_factory(str(folder / "model.py"))
    assert (first.make().predict(1), second.make().predict(1)) == (2, 3)
    assert model_factory(str(folder / "model.py")).fingerprint == second.fingerprint != first.fingerprint


def test_failed_reload_leaves_the_earlier_model_intact(write, tmp_path):
    text = f"open({str(tmp_path / 'data')!r}).close()\n" + MODEL.replace("import helper\n", "")
    text = text.replace("return x", "import helper\n        return x")
    folder = write(model=text, helper=helper(1))
    (tmp_path / "data").touch()
    model = model_factory(str(folder / "model.py")).make()
    (tmp_path / "data").unlink()
    with pytest.raises(ModelLoadError, match=r"model\.py:1: FileNotFoundError"):
        model_factory(str(folder / "model.py"))
    assert model.predict(1) == 2


def test_missing_and_broken_modules_name_the_model_line(write):
    folder = write(model="\nimport helper\n")
    with pytest.raises(ModelLoadError, match=r"model\.py:2: ModuleNotFoundError: No module named 'helper'"):
        model_factory(str(folder / "model.py"))
    write(helper="1 / 0")
    with pytest.raises(ModelLoadError, match=r"model\.py:2: ZeroDivisionError"):
        model_factory(str(folder / "model.py"))
    write(helper="class (:")
    with pytest.raises(ModelLoadError, match=r"model\.py:2: SyntaxError"):
        model_factory(str(folder / "model.py"))


def test_class_of_weights_imports_modules(write):
    folder = write(net="from layers import Base\nclass Net(Base):\n    pass", layers="class Base:\n    x = 1")
    assert load_class("net.py:Net", folder).x == 1
    (folder / "net.pt").write_bytes(b"weights")
    options = {"class": "net.py:Net"}
    files = model_files(str(folder / "net.pt"), options)
    assert [f.name for f in files] == ["net.pt", "net.py", "layers.py"]
    before = model_factory(str(folder / "net.pt"), options).fingerprint
    write(layers="class Base:\n    x = 2")
    assert model_factory(str(folder / "net.pt"), options).fingerprint != before


def test_file_may_import_the_modules_of_another_folder(write):
    """As an MLServer folder whose settings name a class of a package."""
    write("m/package", model="import helper")
    folder = write(helper=helper(1))
    imported = import_file(folder / "package" / "model.py", folder)
    assert imported.module.helper.value() == 1


def test_copied_model_has_its_modules(write, tmp_path):
    """Also modules that it imports late or through other modules, but no others."""
    write("m/package", __init__="from . import inner", inner="import deep", unused="")
    text = MODEL.replace("return x", "import package\n        return x")
    folder = write(model=text, helper="from helper_of_helper import value", helper_of_helper=helper(1))
    write(deep="", other="1 / 0")
    unpacked = copy_model(str(folder / "model.py")).unpack(tmp_path / "there")
    names = sorted(p.relative_to(tmp_path / "there").as_posix() for p in (tmp_path / "there").rglob("*.py"))
    assert names == [
        "deep.py",
        "helper.py",
        "helper_of_helper.py",
        "model.py",
        "package/__init__.py",
        "package/inner.py",
        "package/unused.py",
    ]
    assert model_factory(unpacked).fingerprint == model_factory(str(folder / "model.py")).fingerprint
    assert predicted(unpacked) == [2.0]
