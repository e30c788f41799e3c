"""MODEL arguments: each form finds one model with its name, options and settings."""

import functools
import os
import tarfile
from pathlib import Path

import pytest

from cases import for_each
from headrace.config.model_argument import (
    FoundModel,
    find_model,
    find_models,
    is_fetched,
    join_name,
    split_name,
)
from headrace.core.errors import ConfigError, ModelNotFoundError
from headrace.core.model import Model
from headrace.engine.settings import ServeSettings
from headrace.runtimes.model_cache import CACHE_VARIABLE
from headrace.storage.resolve import Stores

CODE = """
from headrace import Model
class M(Model):
    def __init__(self, factor=1, shift=0): self.factor, self.shift = factor, shift
    def predict(self, x): return x * self.factor + self.shift
"""
TOML = 'name = "churn"\nversion = 2\nmodel = "m.py:M"\n[options]\nfactor = 3\n[serve]\nmax_batch_rows = 7\n'


class Twice(Model):
    def predict(self, x):
        return x * 2


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def write_model(folder: Path, text: str | None = TOML) -> Path:
    folder.mkdir(parents=True)
    (folder / "m.py").write_text(CODE)
    if text is not None:
        (folder / "model.toml").write_text(text)
    return folder


def facts(found: FoundModel) -> tuple[str, str, int, int | None]:
    definition = found.definition
    made = definition.make()
    return definition.name, definition.version, made.factor, definition.settings.max_batch_rows


def pack(folder: Path, archive: Path) -> Path:
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(folder, folder.name)
    return archive


# Forms


def test_all_names_of_a_model_file_find_it(tmp_path, monkeypatch):
    folder = write_model(tmp_path / "churn-folder")
    archive = pack(folder, tmp_path / "churn-7.tar.gz")
    with Stores() as stores:
        for path in folder.iterdir():
            stores.for_uri("memory://m/").put(f"memory://m/churn-folder/{path.name}", path.read_bytes())
        monkeypatch.chdir(folder)
        names = [
            folder, str(folder), f"{folder}/", ".", archive, f"file://{folder}", f"file://{archive}",
            str(tmp_path / "churn-folder" / ".." / "churn-folder"), "memory://m/churn-folder/",
        ]  # fmt: skip
        found = [find_model(name, stores=stores) for name in names]
        assert {facts(each) for each in found} == {("churn", "2", 3, 7)}
        assert len({each.definition.fingerprint for each in found}) == 1
        again = [find_model(each.local, stores=Stores()) for each in found]
        assert {facts(each) for each in again} == {("churn", "2", 3, 7)}
        named = find_model(f"other={folder}")
        assert (facts(named), named.local) == (("other", "2", 3, 7), f"other={folder}")


def test_default_name_is_that_of_the_folder(tmp_path, monkeypatch):
    folder = write_model(tmp_path / "spam", "")
    monkeypatch.chdir(folder)
    archive = pack(folder, tmp_path / "v1.tar.gz")
    for name in (str(folder), ".", str(archive)):
        assert find_model(name).definition.name == "spam"


def test_folder_with_one_model_file_needs_no_model_file(tmp_path):
    """The folder has a name of its own, wherever it is."""
    folder = write_model(tmp_path / "spam", None)
    archive = pack(folder, tmp_path / "v1.tar.gz")
    found = [find_model(str(folder)), find_model(str(archive))]
    assert [each.definition.name for each in found] == ["spam", "spam"]
    assert found[0].definition.fingerprint == found[1].definition.fingerprint


def test_file_and_class(tmp_path):
    folder = write_model(tmp_path / "m", None)
    settings = ServeSettings(instances=2)
    for name in (f"{folder}/m.py", folder / "m.py", f"{folder}/m.py:M", f"file://{folder}/m.py:M"):
        found = find_model(name, settings=settings)
        assert (found.definition.name, found.definition.version) == ("m", "1")
        assert found.definition.settings == settings
    named = find_model(f"my-model.2={folder}/m.py:M")
    assert (named.definition.name, named.local) == ("my-model.2", f"my-model.2={folder}/m.py:M")


@for_each(
    ("argument", "parts"),
    [
        ("a=b.onnx", ("a", "b.onnx")),
        ("my-model.2=m.py:M", ("my-model.2", "m.py:M")),
        ("b.onnx", ("", "b.onnx")),
        ("https://h/m.onnx?a=1", ("", "https://h/m.onnx?a=1")),
        ("a=https://h/m.onnx?a=1", ("a", "https://h/m.onnx?a=1")),
        ("folder/a=b.onnx", ("", "folder/a=b.onnx")),
        ("a=", ("", "a=")),
    ],
)
def test_name_before_a_model(argument, parts):
    assert split_name(argument) == parts
    assert join_name(*parts) == argument


def test_only_uris_are_fetched_by_other_machines():
    assert is_fetched("s3://b/m.onnx")
    assert is_fetched("spam=s3://b/m.onnx")
    assert not any(
        map(is_fetched, ("m.tar.gz", "m.onnx", Path("m"), Twice, None, "file:///m.onnx", "memory://m/a.py"))
    )


# Options


def test_options_replace_those_of_the_model_file(tmp_path):
    folder = write_model(tmp_path / "m", TOML.replace("factor = 3", "factor = 3\nshift = 4"))
    made = find_model(folder, options={"factor": 5}).definition.make()
    assert (made.factor, made.shift) == (5, 4)
    fingerprints = {
        find_model(folder, options=o).definition.fingerprint for o in ({"factor": 5}, {"factor": 3}, {})
    }
    assert len(fingerprints) == 2, "options that change nothing change no fingerprint"


def test_unknown_option_lists_the_known_ones(tmp_path):
    folder = write_model(tmp_path / "m")
    for model in (folder, folder / "m.py"):
        with pytest.raises(ConfigError, match="has no option 'speed'; it has factor, shift"):
            find_model(model, options={"speed": 1})


# Folders of models


def test_folder_of_models(tmp_path):
    write_model(tmp_path / "models" / "a" / "1", "")
    write_model(tmp_path / "models" / "a" / "2", "")
    write_model(tmp_path / "models" / "b", "")
    models = tmp_path / "models"
    found = find_models(str(models))
    assert [(d.name, d.version) for d in found.definitions] == [("a", "1"), ("a", "2"), ("b", "1")]
    assert [d.version for d in found.find("a")] == ["1", "2"]
    with pytest.raises(ConfigError, match=r"models has several models: name one of .*/a/1, .*/a/2, .*/b$"):
        find_model(models)
    with pytest.raises(ConfigError, match=r"set the option factor in a model\.toml"):
        find_models(models, options={"factor": 2})
    with pytest.raises(ConfigError, match=r"set the name x in a model\.toml"):
        find_models(f"x={models}")
    assert find_model(models / "a" / "2").definition.name == "2"


def test_folder_of_one_model_is_that_model(tmp_path):
    write_model(tmp_path / "models" / "a")
    assert facts(find_model(tmp_path / "models")) == ("churn", "2", 3, 7)
    (tmp_path / "models" / "a" / "model.toml").unlink()
    with pytest.raises(ConfigError, match=r"models is not a model: it has no model\.toml"):
        find_model(tmp_path / "models")


def test_models_below_a_prefix_are_found_anew(tmp_path):
    with Stores() as stores:
        store = stores.for_uri("memory://m/")

        def put(name: str) -> None:
            store.put(f"memory://m/models/{name}/model.toml", b"")
            store.put(f"memory://m/models/{name}/m.py", CODE.encode())

        put("a")
        found = find_models("memory://m/models/", stores=stores)
        assert [d.name for d in found.definitions] == ["a"]
        with pytest.raises(ModelNotFoundError):
            found.find("b")
        put("b")
        assert [d.name for d in found.find("b")] == ["b"]


# Python objects


def test_class_and_function():
    assert find_model(Twice).definition.make() is not find_model(Twice).definition.make()
    made = functools.partial(Twice)
    for model, name in ((Twice, "Twice"), (made, "partial")):
        found = find_model(model)
        assert (found.definition.name, found.local) == (name, None)
        assert isinstance(found.definition.make(), Twice)


def test_model_object_is_the_only_instance():
    model = Twice()
    found = find_model(model)
    assert found.definition.make() is found.definition.make() is model
    assert (found.definition.name, found.local) == ("Twice", None)
    assert found.definition.fingerprint == find_model(Twice).definition.fingerprint
    with pytest.raises(
        ConfigError, match="one Twice object, which one thread at a time may call, so it cannot"
    ):
        find_model(model, settings=ServeSettings(instances=2))
    with pytest.raises(ConfigError, match="so it cannot run in a process of its own: pass the class"):
        find_model(model, settings=ServeSettings(isolation="process"))


def test_objects_have_no_options():
    for model in (Twice, Twice(), functools.partial(Twice)):
        with pytest.raises(ConfigError, match="model_options need a model that is named"):
            find_model(model, options={"factor": 2})


# Refusals


@for_each(
    ("name", "why"),
    [
        ("nothing.here", "'nothing.here' is not a model: a model is a file model.onnx"),
        ("ftp://h/m.onnx", "unknown scheme ftp"),
        ("https://h/models/", "an HTTP server cannot list a folder"),
    ],
)
def test_unknown_models_are_refused(name, why):
    with pytest.raises(ConfigError, match=why):
        find_model(name)


def test_empty_name_is_not_the_current_folder(tmp_path, monkeypatch):
    """An unset shell variable yields an empty string."""
    monkeypatch.chdir(write_model(tmp_path / "m"))
    for find in (find_model, find_models):
        with pytest.raises(ConfigError, match="MODEL is empty"):
            find("")


def test_uri_in_a_model_file_is_refused(tmp_path):
    folder = write_model(tmp_path / "m", 'model = "s3://bucket/m.onnx"\n')
    with pytest.raises(ConfigError, match="only accepted as MODEL itself"):
        find_model(folder)
    assert not os.path.exists(os.environ[CACHE_VARIABLE])  # noqa: PTH110
