"""Lookup of models by their specs: all valid forms, and errors."""

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

from cases import for_each
from headrace.core.errors import ConfigError, MissingExtraError, ModelLoadError
from headrace.core.model import Model
from headrace.runtimes.load import model_candidates, model_factory

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
    """Write a Python file, and remove the modules that it becomes."""
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
    """Imported models do not count."""
    path = write(ONE + "\n    from headrace.testing import EchoModel\n")
    source = model_factory(str(path))
    assert (source.name, doubled(source.make)) == ("my_model", True)
    assert source.fingerprint == hashlib.sha256(path.read_bytes()).hexdigest()
    assert source.make() is not source.make()


def test_one_of_several_classes_is_named(write):
    path = write(TWO)
    assert type(model_factory(f"{path}:Triples").make()).__name__ == "Triples"
    assert type(model_factory(f"{path}:Doubles").make()).__name__ == "Doubles"


def test_a_folder_may_have_a_colon(write, tmp_path):
    (tmp_path / "a:b").mkdir()
    path = write(ONE, "a:b/my_model.py")
    assert doubled(model_factory(str(path)).make)
    assert doubled(model_factory(f"{path}:Doubles").make)


def test_ambiguous_file_lists_its_models(write):
    path = write(TWO)
    with pytest.raises(ConfigError) as caught:
        model_factory(str(path))
    assert str(caught.value) == (
        f"{path} defines several models (Doubles, Triples): name one, as in {path}:Doubles"
    )


def test_file_without_model_is_refused(write):
    with pytest.raises(ConfigError, match=r"my_model\.py defines no subclass of headrace\.Model"):
        model_factory(str(write("x = 1")))


def test_missing_class_lists_existing_ones(write):
    with pytest.raises(ConfigError, match=r"has no class 'Dubles'; it has Doubles, Triples"):
        model_factory(f"{write(TWO)}:Dubles")
    with pytest.raises(ConfigError, match=r"has no class 'X'; it has no models"):
        model_factory(f"{write('')}:X")


@for_each("name", ["Helper", "np", "number"])
def test_named_object_must_be_a_model(write, name):
    path = write(ONE + "\n    number = 3\n")
    with pytest.raises(
        ConfigError, match=rf"my_model\.py:{name} is not a subclass of headrace\.Model; .* has Doubles"
    ):
        model_factory(f"{path}:{name}")


def test_function_may_make_the_model(write):
    path = write(ONE + "\n    def tuned():\n        return Doubles()\n    def wrong():\n        return 3\n")
    assert doubled(model_factory(f"{path}:tuned").make)
    refusal = r"my_model\.py:wrong: it returned a int, which is not a headrace"
    with pytest.raises(ModelLoadError, match=refusal):
        model_factory(f"{path}:wrong").make()


@for_each(
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
def test_import_error_names_the_line(write, text, why):
    path = write(text)
    with pytest.raises(ModelLoadError) as caught:
        model_factory(str(path))
    assert f"model {path}: it cannot be imported: " in str(caught.value)
    assert why in str(caught.value)
    assert not [name for name in sys.modules if name.startswith("headrace_model_my_model")]


def test_missing_file_fails(tmp_path):
    for name in ("none.py", "none.py:Model", "none.onnx"):
        with pytest.raises(ModelLoadError, match=r"none\.\w+: its file cannot be read: No such file"):
            model_factory(str(tmp_path / name))
    (tmp_path / "folder.py").mkdir()
    with pytest.raises(ModelLoadError, match="its file cannot be read: Is a directory"):
        model_factory(str(tmp_path / "folder.py"))


def test_file_classes_work_with_pickle_and_dataclasses(write):
    """Both look up a class's module by name."""
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
    # The earlier model is unchanged.
    assert doubled(first.make)


# Modules


def test_a_class_of_a_module(write):
    path = write(ONE, "my_package_module.py")
    source = model_factory("my_package_module:Doubles")
    assert (source.name, doubled(source.make)) == ("Doubles", True)
    assert source.fingerprint == hashlib.sha256(path.read_bytes()).hexdigest()


def test_headrace_models_are_found_by_module():
    source = model_factory("headrace.testing.doubles:EchoModel")
    assert isinstance(source.make(), Model)


@for_each(
    ("text", "why"),
    [
        ("import nowhere_to_be_found", "ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
        ("class (:", "SyntaxError: "),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("import sys\nsys.exit(2)", "SystemExit: 2"),
    ],
)
def test_module_import_error_is_reported(write, text, why):
    write(text, "my_broken.py")
    with pytest.raises(ModelLoadError, match=f"model my_broken:Any: it cannot be imported: {why}"):
        model_factory("my_broken:Any")


def test_missing_module_fails():
    with pytest.raises(ModelLoadError, match=r"it cannot be imported: ModuleNotFoundError: .*nowhere"):
        model_factory("nowhere.to.be.found:Model")


def test_module_without_the_class_fails(write):
    write(TWO, "my_two.py")
    with pytest.raises(ConfigError, match="my_two has no class 'Other'; it has Doubles, Triples"):
        model_factory("my_two:Other")


def test_module_without_file_is_identified_by_name(write, tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "models.zip", "w") as file:
        file.writestr("my_zipped.py", textwrap.dedent(ONE))
    monkeypatch.syspath_prepend(str(tmp_path / "models.zip"))
    source = model_factory("my_zipped:Doubles")
    assert doubled(source.make)
    assert source.fingerprint == hashlib.sha256(b"my_zipped").hexdigest()


# Invalid specs


@for_each(
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
def test_invalid_spec_lists_valid_forms(spec):
    with pytest.raises(ConfigError, match=r"is not a model: a model is a file model\.onnx, file\.py or"):
        model_factory(spec)


@for_each("spec", ["s3://box/model.onnx", "https://host/model.py", "s3://box/model.py:Class"])
def test_model_uris_are_refused(spec):
    with pytest.raises(ConfigError, match=r"://.*a URI is only accepted as MODEL itself"):
        model_factory(spec)


# ONNX


def test_onnx_file_is_read_only_for_its_fingerprint(tmp_path):
    """Each instance loads the file."""
    path = tmp_path / "churn.v2.onnx"
    path.write_bytes(b"junk")
    source = model_factory(str(path))
    assert (source.name, source.fingerprint) == ("churn.v2", hashlib.sha256(b"junk").hexdigest())
    with pytest.raises(ModelLoadError, match=r"churn\.v2\.onnx is not an ONNX model"):
        source.make().load()
    path.write_bytes(b"other")
    assert model_factory(str(path)).fingerprint != source.fingerprint


def test_missing_onnxruntime_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.delitem(sys.modules, "headrace.runtimes.onnx", raising=False)
    (tmp_path / "m.onnx").write_bytes(b"")
    source = model_factory(str(tmp_path / "m.onnx"))
    with pytest.raises(MissingExtraError, match=r"headrace\[onnx\]"):
        source.make()


# Other files, and folders


RUNTIME_FILES = ["m.skops", "m.pt", "m.ts", "m.pt2", "m.safetensors", "m.joblib", "m.pkl", "m.pickle"]


@for_each("name", RUNTIME_FILES)
def test_runtime_files_are_read_only_for_their_fingerprint(tmp_path, name):
    (tmp_path / name).write_bytes(b"junk")
    source = model_factory(str(tmp_path / name))
    assert (source.name, source.fingerprint) == ("m", hashlib.sha256(b"junk").hexdigest())


@pytest.mark.slow  # imports torch and scikit-learn
@for_each("name", RUNTIME_FILES)
def test_invalid_runtime_files_fail_to_load(tmp_path, name):
    (tmp_path / name).write_bytes(b"junk")
    source = model_factory(str(tmp_path / name))
    with pytest.raises((ModelLoadError, ConfigError)):
        source.make().load()


@pytest.mark.parametrize(
    ("file", "module", "extra"),
    [
        # The modules of the slow cases import other large packages first.
        pytest.param("MLmodel", "mlflow.pyfunc", "mlflow", marks=pytest.mark.slow),
        pytest.param("config.json", "transformers", "huggingface", marks=pytest.mark.slow),
        pytest.param("model.skops", "skops.io", "sklearn", marks=pytest.mark.slow),
        ("model.pt", "torch", "torch"),
    ],
)
def test_missing_runtime_packages_name_the_extra(tmp_path, monkeypatch, file, module, extra):
    monkeypatch.setitem(sys.modules, module, None)
    for runtime in ("mlflow", "huggingface", "sklearn", "torch"):
        monkeypatch.delitem(sys.modules, f"headrace.runtimes.{runtime}", raising=False)
    (tmp_path / file).write_bytes(b"")
    source = model_factory(str(tmp_path / file if file.startswith("model.") else tmp_path))
    with pytest.raises(MissingExtraError, match=rf"headrace\[{extra}\]"):
        source.make()


def test_missing_mlserver_names_the_extra(write, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlserver", None)
    path = write("class MLModel:\n    __module__ = 'mlserver.model'\n\nclass Theirs(MLModel):\n    pass\n")
    with pytest.raises(MissingExtraError, match=r"headrace\[mlserver\]"):
        model_factory(str(path)).make()


def test_folder_fingerprint_covers_its_files(tmp_path):
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


def test_folder_without_model_is_refused(tmp_path):
    why = r"is not a model: it has no model\.toml, no MLmodel, no config\.json, no model-settings\.json, and "
    with pytest.raises(ConfigError, match=why + "no model file; a model is a file"):
        model_factory(str(tmp_path))
    for name in ("a.onnx", "b.onnx"):
        (tmp_path / name).touch()
    with pytest.raises(ConfigError, match=why + r"several model files: a\.onnx, b\.onnx; a model"):
        model_factory(str(tmp_path))


def test_single_model_file_is_the_model_of_its_folder(write, tmp_path):
    """The fingerprint covers the whole folder: the file may read others, such as its weights."""
    path = write(ONE)
    source = model_factory(str(tmp_path))
    assert (source.name, doubled(source.make)) == (tmp_path.name, True)
    assert source.make.recipe.arguments["spec"] == str(tmp_path)
    before = {model_factory(str(tmp_path)).fingerprint, model_factory(str(path)).fingerprint}
    (tmp_path / "weights.bin").write_bytes(b"1")
    assert model_factory(str(tmp_path)).fingerprint not in before


@pytest.mark.parametrize(
    ("settings", "refusal"),
    [
        ("{", (ModelLoadError, "it is not a JSON object with an implementation")),
        ("[]", (ModelLoadError, "it is not a JSON object with an implementation")),
        ("{}", (ModelLoadError, "it is not a JSON object with an implementation")),
        ('{"implementation": "gone.Model"}', (ModelLoadError, "gone:Model: it cannot be imported")),
        ('{"implementation": "theirs.Other"}', (ConfigError, "not a subclass of headrace")),
        ('{"implementation": "theirs.Ours"}', (ConfigError, r"Ours is not a subclass of mlserver\.MLModel")),
        ('{"implementation": "theirs.Theirs"}', (MissingExtraError, r"headrace\[mlserver\]")),
    ],
)
def test_mlserver_folders(write, tmp_path, monkeypatch, settings, refusal):
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


def test_options_change_the_fingerprint(write):
    """Another option may give another output, so a resumed run must refuse it."""
    path = write(OPTIONS)
    prints = [
        model_factory(f"{path}:Scaled", o).fingerprint for o in (None, {}, {"factor": 2}, {"factor": 3})
    ]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3


def test_spec_makes_the_model_in_another_process(write):
    """Only text crosses; nothing is pickled."""
    source = model_factory(f"{write(OPTIONS)}:Scaled", {"factor": 2, "offset": 1})
    recipe = json.dumps([source.spec, source.options])
    code = (
        "import json, sys, numpy as np\n"
        "from headrace.runtimes.load import model_factory\n"
        "source = model_factory(*json.loads(sys.argv[1]))\n"
        "print(json.dumps([source.make().predict(np.arange(3.0)).tolist(), source.fingerprint]))"
    )
    made = subprocess.run([sys.executable, "-c", code, recipe], capture_output=True, check=True, text=True)
    assert json.loads(made.stdout) == [[1, 3, 5], source.fingerprint]


@for_each(
    ("files", "expected"),
    [
        (["model.onnx", "weights.safetensors"], ["model.onnx"]),
        (["model.py", "scaler.pkl", "model.toml"], ["model.py"]),
        (["model.joblib"], ["model.joblib"]),
        (["model.safetensors", "config.json"], ["."]),
        (["model.pkl", "MLmodel"], ["."]),
        (["model.py", "MLmodel"], ["model.py"]),
        (["model-settings.json"], ["."]),
        (["a.py", "b.onnx", "c.pkl"], ["a.py", "b.onnx"]),
        (["a.joblib", "b.pkl"], ["a.joblib", "b.pkl"]),
        (["model.toml", "notes.txt"], []),
    ],
)
def test_candidates_in_a_folder(tmp_path, files, expected):
    folder = tmp_path / "+".join(files)
    folder.mkdir()
    for name in files:
        (folder / name).touch()
    assert model_candidates(folder) == [folder / name for name in expected]
