"""How a model is made again elsewhere: by a name that can be imported, or not at all."""

import functools
import importlib.util
import sys

import pytest

from engine import process_models as models
from headrace.core import Model, ModelRecipe
from headrace.core.errors import ConfigError, ModelLoadError
from headrace.engine.recipe import maker, recipe_of
from headrace.runtimes.load import model_factory

_HERE = "engine.process_models"


def test_a_class_and_a_function_are_their_names():
    assert recipe_of(models.Echo, "m") == ModelRecipe(f"{_HERE}:Echo")
    part = functools.partial(models.make_identity, rows_max=3)
    assert recipe_of(part, "m") == ModelRecipe(f"{_HERE}:make_identity", {"rows_max": 3})


def test_a_recipe_of_its_own_comes_first():
    def make():
        return models.Echo()

    make.recipe = ModelRecipe(f"{_HERE}:Echo")
    assert recipe_of(make, "m") is make.recipe


def test_what_a_recipe_makes_is_what_it_names():
    made = maker(ModelRecipe(f"{_HERE}:make_identity", {"rows_max": 3}), "m")()
    assert isinstance(made, models.Identity)
    assert made.max_batch_rows == 3


class _Main(Model):
    __module__ = "__main__"


class _Instance:
    def __call__(self):
        return models.Echo()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: models.Echo(), "made inside a function"),  # noqa: PLW0108 - a lambda is what is tried
        (_Main, "in the main script"),
        (_Instance(), "has no name"),
        (functools.partial(models.make_identity, 3), "arguments without names"),
        (functools.partial(models.make_identity, rows_max=object()), "must be plain values"),
    ],
)
def test_what_only_this_process_knows_is_refused_with_advice(make, says):
    with pytest.raises(ConfigError, match=says):
        recipe_of(make, "m")


def test_a_name_that_means_something_else_is_refused(monkeypatch):
    """Decorated away, or bound again."""
    original = models.Echo
    monkeypatch.setattr(models, "Echo", models.Identity)
    with pytest.raises(ConfigError, match="something else"):
        recipe_of(original, "m")


def test_a_class_of_a_file_needs_its_spec(tmp_path, monkeypatch):
    """Its module is in `sys.modules` here, and nowhere else; a source's maker travels as what the user wrote."""
    path = tmp_path / "churn.py"
    path.write_text("from headrace import Model\nclass Churn(Model):\n    def predict(self, x): return x\n")
    found = importlib.util.spec_from_file_location("churn_by_path", path)
    module = importlib.util.module_from_spec(found)
    monkeypatch.setitem(sys.modules, "churn_by_path", module)
    found.loader.exec_module(module)
    with pytest.raises(ConfigError, match="cannot be imported"):
        recipe_of(module.Churn, "m")
    recipe = recipe_of(model_factory(str(path)).make, "m")
    assert recipe.arguments["spec"] == str(path)
    assert type(maker(recipe, "m")()).__name__ == "Churn"


@pytest.mark.parametrize("function", ["no.such.module:x", f"{_HERE}:Nothing", f"{_HERE}:make_nothing"])
def test_a_recipe_that_makes_no_model_is_a_load_error(function):
    with pytest.raises(ModelLoadError):
        maker(ModelRecipe(function), "m")()
