"""What ``headrace init`` writes has the model's name everywhere, and is code."""

import ast
import tomllib

import pytest

from headrace.cli.starter import starter
from headrace.config.model_file import read_definition
from headrace.core.errors import ConfigError


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(
    ("name", "module", "cls"), [("churn", "churn", "Churn"), ("my-model.v2", "my_model_v2", "MyModelV2")]
)
def test_names_are_those_of_the_model(name, module, cls, streams):
    start = starter(name, streams=streams)
    assert list(start.files) == [f"{module}.py", "model.toml", f"test_{module}.py"]
    classes = [n.name for n in ast.parse(start.files[f"{module}.py"]).body if isinstance(n, ast.ClassDef)]
    assert classes == [cls]
    settings = tomllib.loads(start.files["model.toml"])
    assert (settings["name"], settings["model"]) == (name, f"{module}.py:{cls}")
    assert not any("$" in text for text in start.files.values())


@pytest.mark.parametrize("streams", [False, True])
def test_every_setting_that_is_written_is_known(tmp_path, streams):
    for file, text in starter("churn", streams=streams).files.items():
        (tmp_path / file).write_text(text)
    definition = read_definition(tmp_path / "model.toml")
    assert (definition.name, definition.settings.max_batch_rows) == ("churn", 64)


@pytest.mark.parametrize("name", ["", "1st", "a b", "class", "../x", "a/b", "é", "-x"])
def test_a_name_that_no_model_can_have_is_refused(name):
    with pytest.raises(ConfigError, match="cannot be a model's name"):
        starter(name, streams=False)


def test_what_to_type_next_is_quoted_for_a_shell():
    assert starter("churn", streams=False).commands("my models/churn") == [
        "pytest 'my models/churn'",
        "headrace serve 'my models/churn'",
        "headrace infer churn --input '[[1, 2, 3]]'",
    ]
