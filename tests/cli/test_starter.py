"""The files of a new project: valid code with the model's name."""

import ast
import tomllib

import pytest

from cases import for_each
from headrace.cli.init import starter_project
from headrace.config.model_file import read_definition
from headrace.core.errors import ConfigError


@for_each("streams", [False, True])
@for_each(
    ("name", "module", "cls"), [("churn", "churn", "Churn"), ("my-model.v2", "my_model_v2", "MyModelV2")]
)
def test_files_contain_the_model_name(name, module, cls, streams):
    project = starter_project(name, streams=streams)
    assert list(project.files) == [f"{module}.py", "model.toml", f"test_{module}.py"]
    classes = [n.name for n in ast.parse(project.files[f"{module}.py"]).body if isinstance(n, ast.ClassDef)]
    assert classes == [cls]
    settings = tomllib.loads(project.files["model.toml"])
    assert (settings["name"], settings["model"]) == (name, f"{module}.py:{cls}")
    assert not any("$" in text for text in project.files.values())


@for_each("streams", [False, True])
def test_settings_file_is_valid(tmp_path, streams):
    for file, text in starter_project("churn", streams=streams).files.items():
        (tmp_path / file).write_text(text)
    definition = read_definition(tmp_path / "model.toml")
    assert (definition.name, definition.settings.max_batch_rows) == ("churn", 64)


@for_each("name", ["", "1st", "a b", "class", "../x", "a/b", "é", "-x"])
def test_invalid_model_name_is_refused(name):
    with pytest.raises(ConfigError, match="is not a valid model name"):
        starter_project(name, streams=False)


def test_commands_are_quoted_for_a_shell():
    assert starter_project("churn", streams=False).commands("my models/churn") == [
        "pytest 'my models/churn'",
        "headrace serve 'my models/churn'",
        "headrace infer churn --input '[[1, 2, 3]]'",
    ]
