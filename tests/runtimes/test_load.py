"""From what a user writes to a model: every way to name one, and every way to get it wrong."""

import hashlib
import importlib
import json
import pickle
import subprocess
import sys
import textwrap
import zipfile

import numpy as np
import pytest

from headrace.core.errors import ConfigError, MissingExtraError, ModelLoadError
from headrace.core.model import Model
from headrace.runtimes.load import model_factory

ONE = """
    import numpy as np
    from headrace import Model, RowError

    class Helper:
        pass

    class Doubles(Model):
        def predict(self, x):
            return x * 2
"""
TWO = ONE + "\n    class Triples(Doubles):\n        pass\n"


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write a Python file, and forget the modules that it becomes."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)

    def write(text, name="my_model.py"):
        path = tmp_path / name
        path.write_text(textwrap.dedent(text))
        importlib.invalidate_caches()
        return path

    yield write
    for name in set(sys.modules) - before:
        if name.startswith(("headrace_model_", "my_")):
            del sys.modules[name]


def doubled(make):
    return make().predict(np.arange(3.0)).tolist() == [0, 2, 4]


# Python files


def test_a_file_with_one_model_needs_no_class_name(write):
    """Models that it imports are not its own."""
    path = write(ONE + "\n    from headrace.testing import EchoModel\n")
    source = model_factory(str(path))
    assert (source.name, doubled(source.make)) == ("my_model", True)
    assert source.fingerprint == hashlib.sha256(path.read_bytes()).hexdigest()
    assert source.make() is not source.make()


def test_a_class_of_several_is_named(write):
    path = write(TWO)
    assert type(model_factory(f"{path}:Triples").make()).__name__ == "Triples"
    assert type(model_factory(f"{path}:Doubles").make()).__name__ == "Doubles"


def test_a_folder_may_have_a_colon(write, tmp_path):
    (tmp_path / "a:b").mkdir()
    path = write(ONE, "a:b/my_model.py")
    assert doubled(model_factory(str(path)).make)
    assert doubled(model_factory(f"{path}:Doubles").make)


def test_several_models_without_a_name_are_listed(write):
    path = write(TWO)
    with pytest.raises(ConfigError) as caught:
        model_factory(str(path))
    assert str(caught.value) == (
        f"{path} defines several models (Doubles, Triples): say which, as in {path}:Doubles"
    )


def test_a_file_without_a_model(write):
    with pytest.raises(ConfigError, match=r"my_model\.py defines no subclass of headrace\.Model"):
        model_factory(str(write("x = 1")))


def test_a_class_that_is_not_there_names_those_that_are(write):
    with pytest.raises(ConfigError, match=r"has no class 'Dubles'; it has Doubles, Triples"):
        model_factory(f"{write(TWO)}:Dubles")
    with pytest.raises(ConfigError, match=r"has no class 'X'; it has no models"):
        model_factory(f"{write('')}:X")


@pytest.mark.parametrize("name", ["Helper", "np", "number"])
def test_what_is_named_must_be_a_model(write, name):
    path = write(ONE + "\n    number = 3\n")
    with pytest.raises(
        ConfigError, match=rf"my_model\.py:{name} is no subclass of headrace\.Model; .* has Doubles"
    ):
        model_factory(f"{path}:{name}")


def test_a_function_may_make_the_model(write):
    path = write(ONE + "\n    def tuned():\n        return Doubles()\n    def wrong():\n        return 3\n")
    assert doubled(model_factory(f"{path}:tuned").make)
    with pytest.raises(ModelLoadError, match=r"my_model\.py:wrong: it returned a int, which is no headrace"):
        model_factory(f"{path}:wrong").make()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import nowhere_to_be_found", "1: ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
        ("x = 1\nclass (:", "2: SyntaxError: "),
        ("def f():\n    return 1 / 0\n\nf()", "2: ZeroDivisionError: division by zero"),
        ("import json\njson.loads('{')", "2: JSONDecodeError: "),
        ("\nraise SystemExit('usage: ...')", "2: SystemExit: usage: ..."),
        ("x = '\0'", "SyntaxError: source code string cannot contain null bytes"),
    ],
)
def test_a_file_that_does_not_import_names_the_line(write, text, why):
    path = write(text)
    with pytest.raises(ModelLoadError) as caught:
        model_factory(str(path))
    assert f"model {path}: it does not import: " in str(caught.value)
    assert why in str(caught.value)
    assert not [name for name in sys.modules if name.startswith("headrace_model_my_model")]


def test_a_file_that_is_not_there(tmp_path):
    for name in ("none.py", "none.py:Model", "none.onnx"):
        with pytest.raises(ModelLoadError, match=r"none\.\w+: its file cannot be read: No such file"):
            model_factory(str(tmp_path / name))
    (tmp_path / "folder.py").mkdir()
    with pytest.raises(ModelLoadError, match="its file cannot be read: Is a directory"):
        model_factory(str(tmp_path / "folder.py"))


def test_classes_of_a_file_are_found_again_by_pickle_and_dataclasses(write):
    """Both look a class's module up by name."""
    dataclass = """
    from dataclasses import dataclass

    @dataclass
    class Settings:
        factor: "int" = 2
    """
    path = write(ONE + dataclass)
    model = model_factory(str(path)).make()
    module = sys.modules[type(model).__module__]
    assert module.__file__ == str(path)
    assert pickle.loads(pickle.dumps(module.Settings(3))) == module.Settings(3)


def test_fingerprints_change_with_the_content(write):
    first = model_factory(str(write(ONE)))
    assert model_factory(str(write(ONE))).fingerprint == first.fingerprint
    changed = model_factory(str(write(ONE.replace("x * 2", "x * 3"))))
    assert changed.fingerprint != first.fingerprint
    assert changed.make().predict(np.ones(1)).tolist() == [3]
    # The old one is what it was.
    assert doubled(first.make)


# Modules


def test_a_class_of_a_module(write):
    path = write(ONE, "my_package_module.py")
    source = model_factory("my_package_module:Doubles")
    assert (source.name, doubled(source.make)) == ("Doubles", True)
    assert source.fingerprint == hashlib.sha256(path.read_bytes()).hexdigest()


def test_our_own_models_are_found_so():
    source = model_factory("headrace.testing.models:EchoModel")
    assert isinstance(source.make(), Model)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import nowhere_to_be_found", "ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
        ("class (:", "SyntaxError: "),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("import sys\nsys.exit(2)", "SystemExit: 2"),
    ],
)
def test_a_module_that_does_not_import(write, text, why):
    write(text, "my_broken.py")
    with pytest.raises(ModelLoadError, match=f"model my_broken:Any: it does not import: {why}"):
        model_factory("my_broken:Any")


def test_a_module_that_is_not_there():
    with pytest.raises(ModelLoadError, match=r"it does not import: ModuleNotFoundError: .*nowhere"):
        model_factory("nowhere.to.be.found:Model")


def test_a_module_without_the_class(write):
    write(TWO, "my_two.py")
    with pytest.raises(ConfigError, match="my_two has no class 'Other'; it has Doubles, Triples"):
        model_factory("my_two:Other")


def test_a_module_without_a_file_is_known_by_its_name(write, tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "models.zip", "w") as file:
        file.writestr("my_zipped.py", textwrap.dedent(ONE))
    monkeypatch.syspath_prepend(str(tmp_path / "models.zip"))
    source = model_factory("my_zipped:Doubles")
    assert doubled(source.make)
    assert source.fingerprint == hashlib.sha256(b"my_zipped").hexdigest()


# What is no model


@pytest.mark.parametrize(
    "spec",
    [
        "",
        ":",
        "model",
        "module:",
        ":Class",
        ".module:Class",
        "a..b:C",
        "a b:C",
        "m:C()",
        "m:C:D",
        "a/b:C",
    ],
)
def test_what_is_no_model_says_what_is(spec):
    with pytest.raises(ConfigError, match=r"is no model: a model is a file model\.onnx, file\.py or"):
        model_factory(spec)


@pytest.mark.parametrize("spec", ["s3://box/model.onnx", "https://host/model.py", "s3://box/model.py:Class"])
def test_models_in_stores_must_be_fetched_first(spec):
    with pytest.raises(ConfigError, match=r"://.*download it first, then --model FILE"):
        model_factory(spec)


# ONNX


def test_an_onnx_file_is_read_for_its_fingerprint_only(tmp_path):
    """Loading it is the business of each instance."""
    path = tmp_path / "churn.v2.onnx"
    path.write_bytes(b"junk")
    source = model_factory(str(path))
    assert (source.name, source.fingerprint) == ("churn.v2", hashlib.sha256(b"junk").hexdigest())
    with pytest.raises(ModelLoadError, match=r"churn\.v2\.onnx is no ONNX model"):
        source.make().load()
    path.write_bytes(b"other")
    assert model_factory(str(path)).fingerprint != source.fingerprint


def test_onnx_without_its_package_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.delitem(sys.modules, "headrace.runtimes.onnx", raising=False)
    (tmp_path / "m.onnx").write_bytes(b"")
    source = model_factory(str(tmp_path / "m.onnx"))
    with pytest.raises(MissingExtraError, match=r"headrace\[onnx\]"):
        source.make()


# Other files, and folders


@pytest.mark.parametrize(
    "name", ["m.skops", "m.pt", "m.ts", "m.pt2", "m.safetensors", "m.joblib", "m.pkl", "m.pickle"]
)
def test_files_of_runtimes_are_read_for_their_fingerprint_only(tmp_path, name):
    (tmp_path / name).write_bytes(b"junk")
    source = model_factory(str(tmp_path / name))
    assert (source.name, source.fingerprint) == ("m", hashlib.sha256(b"junk").hexdigest())
    with pytest.raises((ModelLoadError, ConfigError)):
        source.make().load()


@pytest.mark.parametrize(
    ("file", "module", "extra"),
    [
        ("MLmodel", "mlflow.pyfunc", "mlflow"),
        ("config.json", "transformers", "huggingface"),
        ("model.skops", "skops.io", "sklearn"),
        ("model.pt", "torch", "torch"),
    ],
)
def test_runtimes_without_their_packages_name_the_extra(tmp_path, monkeypatch, file, module, extra):
    monkeypatch.setitem(sys.modules, module, None)
    for runtime in ("mlflow", "huggingface", "sklearn", "torch"):
        monkeypatch.delitem(sys.modules, f"headrace.runtimes.{runtime}", raising=False)
    (tmp_path / file).write_bytes(b"")
    source = model_factory(str(tmp_path / file if file.startswith("model.") else tmp_path))
    with pytest.raises(MissingExtraError, match=rf"headrace\[{extra}\]"):
        source.make()


def test_a_model_for_mlserver_without_it_names_the_extra(write, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlserver", None)
    path = write("class MLModel:\n    __module__ = 'mlserver.model'\n\nclass Theirs(MLModel):\n    pass\n")
    with pytest.raises(MissingExtraError, match=r"headrace\[mlserver\]"):
        model_factory(str(path)).make()


def test_a_folder_is_its_files(tmp_path):
    folder = tmp_path / "churn"
    (folder / "data").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "data" / "weights").write_bytes(b"1")
    first = model_factory(str(folder))
    assert first.name == "churn"
    assert model_factory(f"{folder}/").fingerprint == first.fingerprint
    for left_out in ("__pycache__/x.pyc", ".git/HEAD"):
        (folder / left_out).parent.mkdir()
        (folder / left_out).write_bytes(b"x")
    assert model_factory(str(folder)).fingerprint == first.fingerprint
    (folder / "data" / "weights").rename(folder / "data" / "moved")
    assert model_factory(str(folder)).fingerprint != first.fingerprint


def test_a_folder_that_is_no_model(tmp_path):
    with pytest.raises(
        ConfigError, match=r"is no model: it has no MLmodel, no config\.json, no model-settings\.json"
    ):
        model_factory(str(tmp_path))


@pytest.mark.parametrize(
    ("settings", "refusal"),
    [
        ("{", (ModelLoadError, "it is no JSON object with an implementation")),
        ("[]", (ModelLoadError, "it is no JSON object with an implementation")),
        ("{}", (ModelLoadError, "it is no JSON object with an implementation")),
        ('{"implementation": "gone.Model"}', (ModelLoadError, "gone:Model: it does not import")),
        ('{"implementation": "theirs.Other"}', (ConfigError, "no subclass of headrace")),
        ('{"implementation": "theirs.Ours"}', (ConfigError, r"Ours is no subclass of mlserver\.MLModel")),
        ('{"implementation": "theirs.Theirs"}', (MissingExtraError, r"headrace\[mlserver\]")),
    ],
)
def test_folders_of_mlserver(write, tmp_path, monkeypatch, settings, refusal):
    error, why = refusal
    monkeypatch.setitem(sys.modules, "mlserver", None)
    theirs = "class MLModel:\n    __module__ = 'mlserver.model'\n\nclass Theirs(MLModel):\n    pass\n"
    ours = "from headrace import Model\n\nclass Ours(Model):\n    pass\n\nclass Other:\n    pass\n"
    write(theirs + ours, "theirs.py")
    (tmp_path / "model-settings.json").write_text(settings)
    with pytest.raises(error, match=why):
        model_factory(str(tmp_path)).make()


# Options

OPTIONS = (
    ONE
    + """
    class Scaled(Model):
        def __init__(self, factor=1.0, *, offset=0):
            self.factor, self.offset = factor, offset

        def predict(self, x):
            return x * self.factor + self.offset

    def tuned(factor):
        return Scaled(factor)
"""
)


def test_options_reach_classes_and_functions(write):
    path = write(OPTIONS)
    scaled = model_factory(f"{path}:Scaled", {"factor": 2, "offset": 1})
    assert scaled.make().predict(np.arange(3.0)).tolist() == [1, 3, 5]
    assert doubled(model_factory(f"{path}:tuned", {"factor": 2}).make)
    with pytest.raises(ConfigError, match=r"Scaled has no option 'speed'; it has factor, offset"):
        model_factory(f"{path}:Scaled", {"speed": 3})
    with pytest.raises(ConfigError, match=r"tuned has no option 'offset'; it has factor"):
        model_factory(f"{path}:tuned", {"offset": 3})
    with pytest.raises(ConfigError, match=r"Doubles has no option 'factor'; it has none"):
        model_factory(f"{path}:Doubles", {"factor": 3})


def test_options_reach_a_runtime(tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"")
    model = model_factory(str(tmp_path / "m.onnx"), {"intra_op_threads": 3}).make()
    assert model._threads == 3
    source = model_factory(str(tmp_path / "m.onnx"), {"threads": 3})
    with pytest.raises(
        ConfigError, match=r"m\.onnx has no option 'threads'; it has intra_op_threads, providers"
    ):
        source.make()


def test_options_are_part_of_the_fingerprint(write):
    """Another option may be another answer, so a resumed run must refuse it."""
    path = write(OPTIONS)
    prints = [
        model_factory(f"{path}:Scaled", o).fingerprint for o in (None, {}, {"factor": 2}, {"factor": 3})
    ]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3


def test_the_same_model_is_made_in_another_process(write):
    """What crosses is text alone: nothing is pickled."""
    source = model_factory(f"{write(OPTIONS)}:Scaled", {"factor": 2, "offset": 1})
    asked = json.dumps([source.spec, source.options])
    code = (
        "import json, sys, numpy as np\n"
        "from headrace.runtimes.load import model_factory\n"
        "source = model_factory(*json.loads(sys.argv[1]))\n"
        "print(json.dumps([source.make().predict(np.arange(3.0)).tolist(), source.fingerprint]))"
    )
    answer = subprocess.run([sys.executable, "-c", code, asked], capture_output=True, check=True, text=True)
    assert json.loads(answer.stdout) == [[1, 3, 5], source.fingerprint]
