"""Classes by name, of any kind; what is special to models stands in test_load.py."""

import textwrap

import pytest

from headrace.core.errors import ConfigError, ModelLoadError
from headrace.core.model import Model
from headrace.runtimes.classes import class_named, import_file, is_mlserver_class, model_maker, split_spec


@pytest.mark.parametrize(
    ("spec", "parts"),
    [
        ("net.py:Net", ("net.py", "Net")),
        ("a:b/net.py:Net", ("a:b/net.py", "Net")),
        ("net.py", ("net.py", "")),
        ("my.module:Net", ("my.module", "Net")),
        ("my.module", ("my.module", "")),
    ],
)
def test_a_spec_in_two(spec, parts):
    assert split_spec(spec) == parts


def test_any_class_by_name(tmp_path):
    (tmp_path / "net.py").write_text("class Net:\n    pass\nvalue = 3\n")
    assert class_named("net.py:Net", tmp_path).__name__ == "Net"
    assert class_named("collections:OrderedDict", tmp_path).__name__ == "OrderedDict"
    for spec in ("net.py:value", "net.py:Gone", "net.py:"):
        with pytest.raises(ConfigError, match=r"net\.py has no class '\w*'; it has Net"):
            class_named(spec, tmp_path)
    for spec in ("net", "a b:C", ""):
        with pytest.raises(ConfigError, match=r"names no class: write file\.py:Class or module:Class"):
            class_named(spec, tmp_path)
    with pytest.raises(ModelLoadError, match="its file cannot be read"):
        class_named("gone.py:Net", tmp_path)


def test_a_class_of_mlserver_is_known_without_mlserver(tmp_path):
    """By the name of its base and of the package that this comes from."""
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
    assert model_maker(imported, "").__name__ == "Theirs"
    assert is_mlserver_class(model_maker(imported, "Theirs"))
    with pytest.raises(ConfigError, match=r"Other is no subclass of headrace\.Model"):
        model_maker(imported, "Other")
    assert not is_mlserver_class(Model)
    assert not is_mlserver_class(Model())
