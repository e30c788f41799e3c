"""From what a user writes to a model: ``model.onnx``, ``file.py``, ``file.py:Class``, ``package.module:Class``."""

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from headrace.core.errors import ConfigError, ModelLoadError
from headrace.core.model import Model, ModelRecipe

_ACCEPTED = "a model is a file model.onnx, file.py or file.py:Class, or a class module:Class"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model that can be made as often as there are instances; `fingerprint` is its file's sha256.

    What the file imports, or keeps its weights in, does not change the fingerprint.
    """

    make: Callable[[], Model]
    name: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class NamedMaker:
    """Makes a source's models, and knows by what name another process makes them."""

    make: Callable[[], Model]
    recipe: ModelRecipe

    def __call__(self) -> Model:
        """A new model."""
        return self.make()


def make_model(spec: str, options: Mapping[str, Any] | None = None) -> Model:
    """The model of a spec: what a process of its own begins with. Raises what `model_factory` and `make` raise."""
    del options
    return model_factory(spec).make()


def model_factory(spec: str) -> ModelSource:
    """Find a model; nothing is loaded yet but a Python module.

    `make` carries the recipe by which another process with the same current directory makes it.

    A function in the place of a class makes the models. Raises ConfigError for what is no model, ModelLoadError when
    its file cannot be read or imported; `make` raises MissingExtraError for an ONNX file without onnxruntime.
    """
    source = _source(spec)
    recipe = ModelRecipe("headrace.runtimes.load:make_model", {"spec": spec, "options": {}})
    return replace(source, make=NamedMaker(source.make, recipe))


def _source(spec: str) -> ModelSource:
    path, _, class_name = spec.rpartition(":") if ".py:" in spec else (spec, "", "")
    if "://" in spec:
        raise ConfigError(f"{spec}: models are read from local files; download it first, then --model FILE")
    if path.endswith(".onnx"):
        return _onnx(Path(path))
    if path.endswith(".py"):
        return _python_file(Path(path), class_name)
    module, _, name = spec.partition(":")
    if not name.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        raise ConfigError(f"{spec!r} is no model: {_ACCEPTED}")
    return _python_class(module, name)


def _unreadable(path: Path, error: OSError) -> ModelLoadError:
    return ModelLoadError(str(path), f"its file cannot be read: {error.strerror or error}")


def _onnx(path: Path) -> ModelSource:
    try:
        with path.open("rb") as file:
            fingerprint = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise _unreadable(path, error) from error

    def make() -> Model:
        from headrace.runtimes.onnx import OnnxModel  # noqa: PLC0415 - an extra, imported when used

        return OnnxModel(path)

    return ModelSource(make, path.stem, fingerprint)


def _python_file(path: Path, class_name: str) -> ModelSource:
    try:
        source = path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from error
    fingerprint = hashlib.sha256(source).hexdigest()
    module_name = f"headrace_model_{path.stem}_{fingerprint[:12]}"
    found = importlib.util.spec_from_file_location(module_name, path)
    assert found is not None
    module = importlib.util.module_from_spec(found)
    # Where pickles and dataclasses look a class's module up.
    sys.modules[module_name] = module
    try:
        code = compile(source, str(path), "exec", dont_inherit=True)
        exec(code, module.__dict__)  # noqa: S102 - the operator named this file
    except (Exception, SystemExit) as error:
        sys.modules.pop(module_name, None)
        raise ModelLoadError(str(path), f"it does not import: {_place(error, path)}") from error
    return ModelSource(_model_class(module, class_name, str(path)), path.stem, fingerprint)


def _python_class(module_name: str, class_name: str) -> ModelSource:
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        why = f"it does not import: {type(error).__name__}: {error}"
        raise ModelLoadError(f"{module_name}:{class_name}", why) from error
    origin = Path(getattr(module, "__file__", None) or "")
    # Modules without a file (of zip archives, built in) are known by their names alone.
    source = origin.read_bytes() if origin.is_file() else module_name.encode()
    model = _model_class(module, class_name, module_name)
    return ModelSource(model, class_name, hashlib.sha256(source).hexdigest())


def _model_class(module: ModuleType, name: str, where: str) -> Callable[[], Model]:
    """The named class or function, or the one Model that the module itself defines."""
    models = _models_in(module)
    if not name:
        if len(models) == 1:
            return models[0]
        if not models:
            raise ConfigError(f"{where} defines no subclass of headrace.Model")
        raise ConfigError(
            f"{where} defines several models ({_listed(models)}): say which, as in {where}:{models[0].__name__}"
        )
    found: Any = getattr(module, name, None)
    if found is None:
        raise ConfigError(f"{where} has no class {name!r}; it has {_listed(models)}")
    if inspect.isclass(found) and issubclass(found, Model):
        return found
    if inspect.isclass(found) or not callable(found):
        raise ConfigError(f"{where}:{name} is no subclass of headrace.Model; {where} has {_listed(models)}")
    return _checked(cast("Callable[[], Any]", found), f"{where}:{name}")


def _checked(make: Callable[[], Any], where: str) -> Callable[[], Model]:
    """A function that makes models, held to it."""

    def checked() -> Model:
        model = make()
        if not isinstance(model, Model):
            raise ModelLoadError(where, f"it returned a {type(model).__name__}, which is no headrace.Model")
        return model

    return checked


def _models_in(module: ModuleType) -> list[type[Model]]:
    classes = [c for _, c in inspect.getmembers(module, inspect.isclass)]
    return [c for c in classes if issubclass(c, Model) and c.__module__ == module.__name__]


def _listed(models: list[type[Model]]) -> str:
    return ", ".join(m.__name__ for m in models) or "no models"


def _place(error: BaseException, path: Path) -> str:
    """The error, with its line in the model's own file."""
    line: int | None = getattr(error, "lineno", None)
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            line = trace.tb_lineno
        trace = trace.tb_next
    place = f"{path}:{line}: " if line else ""
    return f"{place}{type(error).__name__}: {error}"
