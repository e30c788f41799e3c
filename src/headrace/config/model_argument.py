"""MODEL arguments: the one way from a name or object to the definition of a model.

Every command, function and worker names a model in the same forms:

- a file, ``file.py:Class``, ``module:Class``, or a folder; see `headrace.runtimes.load`
- a folder with a ``model.toml``, or a folder of such folders
- an archive, or the URI of a file, a prefix or an archive, which is fetched into a cache
- in Python also a class, a function that makes models, or one Model object

``NAME=`` before any of the texts sets the name of the model.
"""

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headrace.config.model_file import MODEL_FILE, ModelsFolder, is_models_folder, read_definition
from headrace.core.errors import ConfigError
from headrace.core.model import Model
from headrace.engine.repository import FindDefinitions, ModelDefinition
from headrace.engine.settings import ServeSettings
from headrace.runtimes.load import model_factory
from headrace.runtimes.model_cache import local_model
from headrace.runtimes.model_uri import is_uri
from headrace.storage.resolve import Stores
from headrace.storage.uri import CLOUD_SCHEMES, HTTP_SCHEMES, parse

ModelArgument = str | Path | Model | type[Model] | Callable[[], Model]
"""The name of a model as text or path, a Model class, a function that makes models, or a Model object."""


@dataclass(frozen=True, slots=True)
class FoundModel:
    """One model, and the MODEL argument that names it on this machine.

    `local` has the path in the cache for the URI of a model. It is None for a class or object.
    """

    definition: ModelDefinition
    local: str | None = None


@dataclass(frozen=True, slots=True)
class FoundModels:
    """The models of one MODEL argument.

    For a folder of models, `find` reads the folder again; for one model, it is None.
    """

    definitions: Sequence[ModelDefinition]
    find: FindDefinitions | None = None


def find_model(
    model: ModelArgument,
    *,
    options: Mapping[str, Any] | None = None,
    settings: ServeSettings | None = None,
    stores: Stores | None = None,
) -> FoundModel:
    """Find the one model that a MODEL argument names. Weights are not loaded.

    Args:
        model: The MODEL argument.
        options: Options of the model. They replace those of a ``model.toml``, each by its name.
        settings: The settings of a model without a ``model.toml``.
        stores: The stores of URIs; None: all schemes, with credentials from the environment.

    Raises:
        ConfigError: There is no such model, several models, or an unknown option.
        ModelLoadError: A file cannot be read or imported.
        StorageError: The model cannot be fetched.
    """
    if not isinstance(model, str | Path):
        return FoundModel(_object_definition(model, options, settings or ServeSettings()))
    name, spec = split_name(str(model))
    local = local_model(spec, stores or Stores())
    definition = _definition(local, options, settings or ServeSettings())
    return FoundModel(_named(definition, name), join_name(name, local))


def find_models(
    model: ModelArgument,
    *,
    options: Mapping[str, Any] | None = None,
    settings: ServeSettings | None = None,
    stores: Stores | None = None,
) -> FoundModels:
    """Find all models of a MODEL argument, which may be a folder of models; else as `find_model`."""
    if not isinstance(model, str | Path):
        return FoundModels([find_model(model, options=options, settings=settings).definition])
    (name, spec), chosen_stores = split_name(str(model)), stores or Stores()
    local = local_model(spec, chosen_stores)
    if not _has_many(Path(local)):
        return FoundModels([_named(_definition(local, options, settings or ServeSettings()), name)])
    if name or options:
        what = f"the name {name}" if name else f"the option {next(iter(options or {}))}"
        raise ConfigError(f"{model} is a folder of models: set {what} in a {MODEL_FILE}")

    def find(wanted: str) -> Sequence[ModelDefinition]:
        return ModelsFolder(Path(local_model(spec, chosen_stores))).find(wanted)

    return FoundModels(ModelsFolder(Path(local)).all(), find)


def split_name(argument: str) -> tuple[str, str]:
    """Split ``NAME=MODEL`` into name and model. The name is "" for a model without one."""
    name, _, spec = argument.partition("=")
    is_named = bool(spec) and name.replace("-", "_").replace(".", "_").isidentifier()
    return (name, spec) if is_named else ("", argument)


def join_name(name: str, spec: str) -> str:
    """Return the argument that `split_name` splits into these."""
    return f"{name}={spec}" if name else spec


def is_fetched(argument: object) -> bool:
    """Return True if a model is named by a URI from which every machine can fetch it."""
    if not isinstance(argument, str) or not is_uri(spec := split_name(argument)[1]):
        return False
    return parse(spec).scheme in CLOUD_SCHEMES | HTTP_SCHEMES


def _has_many(path: Path) -> bool:
    return is_models_folder(path) and not (path / MODEL_FILE).is_file()


def _definition(spec: str, options: Mapping[str, Any] | None, settings: ServeSettings) -> ModelDefinition:
    """Return the model of a local file, folder or class."""
    path = Path(spec)
    if is_models_folder(path):
        file = path / MODEL_FILE
        return read_definition(file if file.is_file() else ModelsFolder(path).only(), options=options)
    source = model_factory(spec, options)
    return ModelDefinition(source.name, "1", source.make, source.fingerprint, settings)


def _named(definition: ModelDefinition, name: str) -> ModelDefinition:
    return replace(definition, name=name) if name else definition


# Models that are given as Python objects


@dataclass(frozen=True, slots=True)
class _SingleObject:
    """A model factory that returns one given object."""

    model: Model

    def __call__(self) -> Model:
        return self.model


def _object_definition(
    model: Model | Callable[[], Model], options: Mapping[str, Any] | None, settings: ServeSettings
) -> ModelDefinition:
    if options:
        raise ConfigError("model_options need a model that is named by its file, folder or class")
    if isinstance(model, Model):
        kind = type(model)
        _check_single_object(model, settings)
        return ModelDefinition(kind.__name__, "1", _SingleObject(model), _code_fingerprint(kind), settings)
    name: str = getattr(model, "__name__", type(model).__name__)
    return ModelDefinition(name, "1", model, _code_fingerprint(model), settings)


def _check_single_object(model: Model, settings: ServeSettings) -> None:
    """Raise ConfigError for settings that one Model object cannot have."""
    name = type(model).__name__
    if settings.instances > 1:
        raise ConfigError(
            f"the model is one {name} object, which one thread at a time may call, so it cannot have "
            f"{settings.instances} instances or worker threads: pass the class, or a function that makes it"
        )
    if settings.isolation == "process":
        raise ConfigError(
            f"the model is one {name} object of this process, so it cannot run in a process of its own: "
            "pass the class, or name its file"
        )


def _code_fingerprint(code: Callable[..., Any]) -> str:
    """Return the SHA-256 of the source of a class or function.

    Without a source, hash the qualified name.
    """
    try:
        text = inspect.getsource(code)
    except (OSError, TypeError):
        text = repr(getattr(code, "__qualname__", type(code)))
    return hashlib.sha256(text.encode()).hexdigest()
