"""Recipes: make a model again in another process by the name of a function, never by a pickle.

Takes the engine's model factory; gives a `ModelRecipe`, and in the other process a factory again.
"""

import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any, cast

import orjson

from headrace.core.errors import ConfigError, ModelLoadError
from headrace.core.model import Model, ModelRecipe
from headrace.engine.model_methods import describe_error

_ADVICE = (
    "define the class, or a function that makes it, in a module that can be imported, or pass the path of a "
    "file to model_factory"
)


def make_recipe(make_model: Callable[[], Model], name: str) -> ModelRecipe:
    """Return the recipe of a model factory: its attribute `recipe`, or the name to import it by.

    The keyword arguments of a `functools.partial` become the recipe's. Raises ConfigError, with
    advice, for factories that only this process knows: lambdas, nested functions, functions of the
    main script.
    """
    recipe: Any = getattr(make_model, "recipe", None)
    if not isinstance(recipe, ModelRecipe):
        recipe = _recipe_by_name(make_model, name)
    try:
        orjson.dumps(dict(recipe.arguments))
    except TypeError as error:
        raise ConfigError(
            f"model {name} cannot run in a process of its own: the arguments of its factory must be "
            f"plain values (text, numbers, lists, mappings): {error}"
        ) from None
    return recipe


def _recipe_by_name(make_model: Callable[[], Model], name: str) -> ModelRecipe:
    arguments: dict[str, Any] = {}
    made: Any = make_model
    if isinstance(made, functools.partial):
        part = cast("functools.partial[Model]", made)
        if part.args:
            raise _no_name_error(name, "its functools.partial has positional arguments: pass them by name")
        made, arguments = part.func, dict(part.keywords)
    module: object = getattr(made, "__module__", None)
    qualname: object = getattr(made, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(qualname, str):
        raise _no_name_error(name, f"a {type(made).__name__} cannot be imported by name")
    if module == "__main__":
        raise _no_name_error(name, f"{qualname} is defined in the main script")
    if "<" in qualname:
        raise _no_name_error(name, f"{qualname} is defined inside a function")
    function = f"{module}:{qualname}"
    try:
        imported = _import(function)
    except (Exception, SystemExit) as error:
        raise _no_name_error(name, f"{function} cannot be imported ({describe_error(error)})") from error
    if imported is not made:
        raise _no_name_error(name, f"{function} is another object")
    return ModelRecipe(function, arguments)


def _import(function: str) -> Any:
    module, _, qualname = function.partition(":")
    if not _is_importable(module):
        raise ModuleNotFoundError(f"no module named {module!r}")
    imported: Any = importlib.import_module(module)
    for part in qualname.split("."):
        imported = getattr(imported, part)
    return imported


def _is_importable(module: str) -> bool:
    """Return True if an import would find the module.

    A module that was loaded by its file's path is in `sys.modules` of this process only.
    """
    parent, _, _ = module.rpartition(".")
    path = importlib.import_module(parent).__path__ if parent else None
    return any(finder.find_spec(module, path) is not None for finder in sys.meta_path)


def _no_name_error(name: str, reason: str) -> ConfigError:
    return ConfigError(f"model {name} cannot run in a process of its own: {reason}; {_ADVICE}")


def recipe_factory(recipe: ModelRecipe, name: str) -> Callable[[], Model]:
    """Return the factory of the recipe's model in this process.

    The factory raises ModelLoadError if the function cannot be imported or returns no Model.
    """

    def make() -> Model:
        try:
            function = _import(recipe.function)
        except (Exception, SystemExit) as error:
            raise ModelLoadError(
                name, f"{recipe.function} cannot be imported in its own process: {describe_error(error)}"
            ) from error
        model = function(**recipe.arguments)
        if not isinstance(model, Model):
            raise ModelLoadError(
                name, f"{recipe.function} returned a {type(model).__name__}, not a headrace.Model"
            )
        return model

    return make
