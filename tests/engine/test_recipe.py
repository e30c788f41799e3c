"""Recipes: models made again elsewhere by an importable name."""

import functools
import importlib.util
import sys

import pytest

from cases import for_each
from engine import process_models as models
from headrace.core import Model, ModelRecipe
from headrace.core.errors import ConfigError, ModelLoadError
from headrace.engine.recipe import make_recipe, recipe_factory
from headrace.runtimes.load import model_factory

_HERE = "engine.process_models"


def test_class_and_function_are_named():
    assert make_recipe(models.Echo, "m") == ModelRecipe(f"{_HERE}:Echo")
    part = functools.partial(models.make_identity, rows_max=3)
    assert make_recipe(part, "m") == ModelRecipe(f"{_HERE}:make_identity", {"rows_max": 3})


def test_recipe_attribute_has_precedence():
    def make():
        return models.Echo()

    make.recipe = ModelRecipe(f"{_HERE}:Echo")
    assert make_recipe(make, "m") is make.recipe


def test_recipe_makes_named_model():
    made = recipe_factory(ModelRecipe(f"{_HERE}:make_identity", {"rows_max": 3}), "m")()
    assert isinstance(made, models.Identity)
    assert made.max_batch_rows == 3


class _Main(Model):
    __module__ = "__main__"


class _Instance:
    def __call__(self):
        return models.Echo()


@for_each(
    ("make", "says"),
    [
        (lambda: models.Echo(), "defined inside a function"),  # noqa: PLW0108 - the test needs a lambda
        (_Main, "in the main script"),
        (_Instance(), "cannot be imported by name"),
        (functools.partial(models.make_identity, 3), "positional arguments"),
        (functools.partial(models.make_identity, rows_max=object()), "must be plain values"),
    ],
)
def test_local_factory_is_refused_with_advice(make, says):
    with pytest.raises(ConfigError, match=says):
        make_recipe(make, "m")


def test_name_of_another_object_is_refused(monkeypatch):
    """Decorated, or bound again."""
    original = models.Echo
    monkeypatch.setattr(models, "Echo", models.Identity)
    with pytest.raises(ConfigError, match="another object"):
        make_recipe(original, "m")


def test_class_of_file_is_not_importable(tmp_path, monkeypatch):
    """Its module is in `sys.modules` here only. The factory of a file travels as its path."""
    path = tmp_path / "churn.py"
    path.write_text("from headrace import Model\nclass Churn(Model):\n    def predict(self, x): return x\n")
    found = importlib.util.spec_from_file_location("churn_by_path", path)
    module = importlib.util.module_from_spec(found)
    monkeypatch.setitem(sys.modules, "churn_by_path", module)
    found.loader.exec_module(module)
    with pytest.raises(ConfigError, match="cannot be imported"):
        make_recipe(module.Churn, "m")
    recipe = make_recipe(model_factory(str(path)).make, "m")
    assert recipe.arguments["spec"] == str(path)
    assert type(recipe_factory(recipe, "m")()).__name__ == "Churn"


@for_each("function", ["no.such.module:x", f"{_HERE}:Nothing", f"{_HERE}:make_nothing"])
def test_recipe_without_model_is_load_error(function):
    with pytest.raises(ModelLoadError):
        recipe_factory(ModelRecipe(function), "m")()
