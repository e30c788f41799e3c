"""How a model is made again in another process: by the name of a function, never by a pickle.

Arrives: what the engine was given to make models. Leaves: a `ModelRecipe`, and in the other process a maker out of it.
"""

import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any, cast

import orjson

from headrace.core.errors import ConfigError, ModelLoadError
from headrace.core.model import Model, ModelRecipe
from headrace.engine.reason import reason

_HOW = (
    "put the class, or a function that makes it, into a module that can be imported, or pass a file's path to "
    "model_factory; or set isolation to thread"
)


def recipe_of(make_model: Callable[[], Model], name: str) -> ModelRecipe:
    """The recipe of a model's maker: its own attribute `recipe`, or the name that it can be imported by.

    Of a `functools.partial` with keyword arguments those are the recipe's. Raises ConfigError, which says what to do
    instead, for what only this process knows: lambdas, functions inside functions, the main script.
    """
    recipe: Any = getattr(make_model, "recipe", None)
    if not isinstance(recipe, ModelRecipe):
        recipe = _named(make_model, name)
    try:
        orjson.dumps(dict(recipe.arguments))
    except TypeError as error:
        raise ConfigError(
            f"model {name} cannot run in a process of its own: its maker's arguments must be plain values "
            f"(text, numbers, lists, tables): {error}"
        ) from None
    return recipe


def _named(make_model: Callable[[], Model], name: str) -> ModelRecipe:
    arguments: dict[str, Any] = {}
    made: Any = make_model
    if isinstance(made, functools.partial):
        part = cast("functools.partial[Model]", made)
        if part.args:
            raise _unnameable(name, "its functools.partial has arguments without names: name them")
        made, arguments = part.func, dict(part.keywords)
    module: object = getattr(made, "__module__", None)
    place: object = getattr(made, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(place, str):
        raise _unnameable(name, f"a {type(made).__name__} has no name to import it by")
    if module == "__main__":
        raise _unnameable(name, f"{place} is in the main script, which another process would run once more")
    if "<" in place:
        raise _unnameable(name, f"{place} is made inside a function")
    function = f"{module}:{place}"
    try:
        found = _imported(function)
    except (Exception, SystemExit) as error:
        raise _unnameable(name, f"{function} cannot be imported ({reason(error)})") from error
    if found is not made:
        raise _unnameable(name, f"{function} is something else")
    return ModelRecipe(function, arguments)


def _imported(function: str) -> Any:
    module, _, place = function.partition(":")
    if not _findable(module):
        raise ModuleNotFoundError(f"no module named {module!r}")
    found: Any = importlib.import_module(module)
    for part in place.split("."):
        found = getattr(found, part)
    return found


def _findable(module: str) -> bool:
    """Whether an import finds it anew: what was loaded by a file's path is in `sys.modules` here, and only here."""
    parent, _, _ = module.rpartition(".")
    path = importlib.import_module(parent).__path__ if parent else None
    return any(finder.find_spec(module, path) is not None for finder in sys.meta_path)


def _unnameable(name: str, why: str) -> ConfigError:
    return ConfigError(
        f"model {name} cannot run in a process of its own, which makes it by name: {why}; {_HOW}"
    )


def maker(recipe: ModelRecipe, name: str) -> Callable[[], Model]:
    """What makes the recipe's model, here. It raises ModelLoadError for what cannot be imported or is no model."""

    def make() -> Model:
        try:
            function = _imported(recipe.function)
        except (Exception, SystemExit) as error:
            raise ModelLoadError(
                name, f"{recipe.function} cannot be imported in its own process: {reason(error)}"
            ) from error
        model = function(**recipe.arguments)
        if not isinstance(model, Model):
            raise ModelLoadError(
                name, f"{recipe.function} returned a {type(model).__name__}, which is no headrace.Model"
            )
        return model

    return make
