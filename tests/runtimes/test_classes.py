"""Classes by name. test_load.py tests the rules for models."""

import textwrap

import pytest

from cases import for_each
from headrace.core.errors import ConfigError, ModelLoadError
from headrace.core.model import Model
from headrace.runtimes.classes import (
    find_model_factory,
    import_file,
    is_mlserver_class,
    load_class,
    split_spec,
)


@for_each(
    ("spec", "parts"),
    [
        ("net.py:Net", ("net.py", "Net")),
        ("a:b/net.py:Net", ("a:b/net.py", "Net")),
        ("net.py", ("net.py", "")),
        ("my.module:Net", ("my.module", "Net")),
        ("my.module", ("my.module", "")),
    ],
)
def test_spec_is_split_into_module_and_class(spec, parts):
    assert split_spec(spec) == parts


def test_class_is_loaded_by_name(tmp_path):
    (tmp_path / "net.py").write_text("class Net:\n    pass\nvalue = 3\n")
    assert load_class("net.py:Net", tmp_path).__name__ == "Net"
    assert load_class("collections:OrderedDict", tmp_path).__name__ == "OrderedDict"
    for spec in ("net.py:value", "net.py:Gone", "net.py:"):
        with pytest.raises(ConfigError, match=r"net\.py has no class '\w*'; it has Net"):
            load_class(spec, tmp_path)
    for spec in ("net", "a b:C", ""):
        with pytest.raises(ConfigError, match=r"is not the name of a class: write file\.py:Class or module:"):
            load_class(spec, tmp_path)
    with pytest.raises(ModelLoadError, match="its file cannot be read"):
        load_class("gone.py:Net", tmp_path)


def test_mlserver_class_is_recognized_without_mlserver(tmp_path):
    """The names of its base class and of the base's package identify it."""
    source = """
        class MLModel:
            __module__ = "mlserver.model"

        class Theirs(MLModel):
            pass

        class Other:
            pass
    """
    (tmp_path / "theirs.py").write_text(textwrap.dedent(source))
    imported = import_file(tmp_path / "theirs.py")
    assert find_model_factory(imported, "").__name__ == "Theirs"
    assert is_mlserver_class(find_model_factory(imported, "Theirs"))
    with pytest.raises(ConfigError, match=r"Other is not a subclass of headrace\.Model"):
        find_model_factory(imported, "Other")
    assert not is_mlserver_class(Model)
    assert not is_mlserver_class(Model())
