"""From what a user writes to a model: ``model.onnx``, ``file.py``, ``file.py:Class``, ``package.module:Class``."""

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from headrace.core.errors import ConfigError, ModelLoadError
from headrace.core.model import Model

_ACCEPTED = "a model is a file model.onnx, file.py or file.py:Class, or a class module:Class"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model that can be made as often as there are instances; `fingerprint` is its file's sha256."""

    make: Callable[[], Model]
    name: str
    fingerprint: str


def model_factory(spec: str) -> ModelSource:
    """Find a model; nothing is loaded yet but a Python module.

    Raises ConfigError for what is no model, ModelLoadError when its file cannot be read or imported.
    """
    path, _, class_name = spec.partition(":") if ".py:" in spec else (spec, "", "")
    if "://" in spec:
        raise ConfigError(f"{spec}: models are read from local files; download it first, then --model FILE")
    if path.endswith(".onnx"):
        return _onnx(Path(path))
    if path.endswith(".py"):
        return _python_file(Path(path), class_name)
    module, colon, name = spec.partition(":")
    if not colon or not name:
        raise ConfigError(f"{spec!r} is no model: {_ACCEPTED}")
    return _python_class(module, name)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ModelLoadError(str(path), f"its file cannot be read: {error.strerror}") from error


def _onnx(path: Path) -> ModelSource:
    fingerprint = hashlib.sha256(_read(path)).hexdigest()

    def make() -> Model:
        from headrace.runtimes.onnx import OnnxModel  # noqa: PLC0415 - an extra, imported when used

        return OnnxModel(path)

    return ModelSource(make, path.stem, fingerprint)


def _python_file(path: Path, class_name: str) -> ModelSource:
    source = _read(path)
    fingerprint = hashlib.sha256(source).hexdigest()
    module_name = f"headrace_model_{path.stem}_{fingerprint[:12]}"
    found = importlib.util.spec_from_file_location(module_name, path)
    assert found is not None
    module = importlib.util.module_from_spec(found)
    # Where pickles and dataclasses look a class's module up.
    sys.modules[module_name] = module
    try:
        exec(compile(source, str(path), "exec"), module.__dict__)  # noqa: S102 - the operator named this file
    except Exception as error:
        del sys.modules[module_name]
        raise ModelLoadError(str(path), f"it does not import: {_place(error, path)}") from error
    return _source(_model_class(module, class_name, str(path)), path.stem, fingerprint)


def _python_class(module_name: str, class_name: str) -> ModelSource:
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ModelLoadError(f"{module_name}:{class_name}", f"it does not import: {error}") from error
    origin = getattr(module, "__file__", None)
    source = Path(origin).read_bytes() if origin else module_name.encode()
    model = _model_class(module, class_name, module_name)
    return _source(model, class_name, hashlib.sha256(source).hexdigest())


def _source(model: Callable[[], Model], name: str, fingerprint: str) -> ModelSource:
    return ModelSource(model, name, fingerprint)


def _model_class(module: ModuleType, name: str, where: str) -> Callable[[], Model]:
    """The named class or function, or the one Model that the module itself defines."""
    if name:
        found: Any = getattr(module, name, None)
        if found is None or not callable(found):
            raise ConfigError(f"{where} has no class {name!r}; it has {_listed(_models_in(module))}")
        return cast("Callable[[], Model]", found)
    models = _models_in(module)
    if len(models) == 1:
        return models[0]
    if not models:
        raise ConfigError(f"{where} defines no subclass of headrace.Model")
    raise ConfigError(f"{where} defines several models: say which, as in {where}:{models[0].__name__}")


def _models_in(module: ModuleType) -> list[type[Model]]:
    classes = [c for _, c in inspect.getmembers(module, inspect.isclass)]
    return [c for c in classes if issubclass(c, Model) and c.__module__ == module.__name__]


def _listed(models: list[type[Model]]) -> str:
    return ", ".join(m.__name__ for m in models) or "no models"


def _place(error: Exception, path: Path) -> str:
    """The error, with its line in the model's own file."""
    line: int | None = getattr(error, "lineno", None)
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            line = trace.tb_lineno
        trace = trace.tb_next
    place = f"{path}:{line}: " if line else ""
    return f"{place}{type(error).__name__}: {error}"
