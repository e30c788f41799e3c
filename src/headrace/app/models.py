"""Find the models of a model server or a worker."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.config.model_file import (
    MODEL_FILE,
    ModelsFolder,
    definition_of,
    is_models_folder,
    read_definition,
)
from headrace.core.errors import ConfigError
from headrace.core.model import Model
from headrace.engine.repository import FindDefinitions, ModelDefinition, ModelRepository
from headrace.engine.settings import ServeSettings

ServedModel = str | type[Model] | Callable[[], Model]
"""A class or factory, or a name: a model file, ``file.py:Class``, ``module:Class`` or a models folder.

A name may have the prefix ``NAME=``.
"""


def open_repository(
    models: Sequence[ServedModel], settings: ServeSettings, model_options: Mapping[str, Any] | None = None
) -> tuple[ModelRepository, bool]:
    """Return the models, and True if they can be loaded and unloaded at run time.

    Only the models of a models folder can.
    """
    definitions: list[ModelDefinition] = []
    find: FindDefinitions | None = None
    for model in models:
        if isinstance(model, str) and is_models_folder(Path(model)):
            path = Path(model)
            if (path / MODEL_FILE).is_file():
                definitions.append(read_definition(path / MODEL_FILE))
                continue
            if find is not None:
                raise ConfigError(f"{model} is a second models folder: put all models into one folder")
            folder = ModelsFolder(path)
            definitions += folder.all()
            find = folder.find
        elif isinstance(model, str):
            definitions.append(definition_of(model, settings, model_options))
        else:
            name = getattr(model, "__name__", type(model).__name__)
            if not name.isidentifier():
                raise ConfigError(f"{model!r} has no name for its URL: give a class or a named function")
            definitions.append(ModelDefinition(name, "1", model, settings=settings))
    if not definitions:
        raise ConfigError("no model to serve: name a model or a folder of models")
    return ModelRepository(definitions, find=find), find is not None
