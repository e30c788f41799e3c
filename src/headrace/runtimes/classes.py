"""Classes named by a user: ``file.py``, ``file.py:Class`` and ``package.module:Class``, imported as the operator says."""

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


@dataclass(frozen=True, slots=True)
class ImportedModule:
    """A module, `where` it was named, and the sha256 of its source (of its name, where it has no file)."""

    module: ModuleType
    where: str
    fingerprint: str


def unreadable(path: Path, error: OSError) -> ModelLoadError:
    """What is said of a model's file that cannot be read."""
    return ModelLoadError(str(path), f"its file cannot be read: {error.strerror or error}")


def split_spec(spec: str) -> tuple[str, str]:
    """``file.py:Class`` and ``module:Class`` in two; the class is empty where none is named."""
    path, _, name = spec.rpartition(":") if ".py:" in spec else (spec, "", "")
    if path.endswith(".py"):
        return path, name
    module, _, name = spec.partition(":")
    return module, name


def is_dotted_class(module: str, name: str) -> bool:
    """Whether these can be a module's and a class's names."""
    return name.isidentifier() and all(part.isidentifier() for part in module.split("."))


def import_file(path: Path) -> ImportedModule:
    """Run a Python file as a module of its own. Raises ModelLoadError, with the line that failed."""
    try:
        source = path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from error
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
    return ImportedModule(module, str(path), fingerprint)


def import_module(name: str, wanted: str) -> ImportedModule:
    """Import a module by its dotted name, for what is `wanted` of it. Raises ModelLoadError."""
    try:
        module = importlib.import_module(name)
    except (Exception, SystemExit) as error:
        why = f"it does not import: {type(error).__name__}: {error}"
        raise ModelLoadError(f"{name}:{wanted}", why) from error
    origin = Path(getattr(module, "__file__", None) or "")
    # Modules without a file (of zip archives, built in) are known by their names alone.
    source = origin.read_bytes() if origin.is_file() else name.encode()
    return ImportedModule(module, name, hashlib.sha256(source).hexdigest())


def class_named(spec: str, folder: Path) -> type[Any]:
    """Any class, by ``file.py:Class`` (the file relative to `folder`) or ``module:Class``.

    Raises ConfigError where there is no such class, ModelLoadError where its module does not import.
    """
    place, name = split_spec(spec)
    if place.endswith(".py"):
        imported = import_file(folder / place)
    elif is_dotted_class(place, name):
        imported = import_module(place, name)
    else:
        raise ConfigError(f"{spec!r} names no class: write file.py:Class or module:Class")
    found: Any = getattr(imported.module, name, None)
    if not inspect.isclass(found):
        own = [c.__name__ for c in _classes_in(imported.module)]
        raise ConfigError(f"{imported.where} has no class {name!r}; it has {', '.join(own) or 'none'}")
    return cast("type[Any]", found)


def model_maker(imported: ImportedModule, name: str) -> Callable[..., Any]:
    """The class or function of that name, or the one model class that the module itself defines.

    A class is a subclass of `Model` or of ``mlserver.MLModel`` (see `is_mlserver_class`). Raises ConfigError.
    """
    module, where = imported.module, imported.where
    models = [c for c in _classes_in(module) if _is_model(c)]
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
    if inspect.isclass(found) and _is_model(cast("type[Any]", found)):
        return cast("type[Any]", found)
    if inspect.isclass(found) or not callable(found):
        raise ConfigError(f"{where}:{name} is no subclass of headrace.Model; {where} has {_listed(models)}")
    return _checked(cast("Callable[..., Any]", found), f"{where}:{name}")


def is_mlserver_class(made: object) -> bool:
    """Whether this is a subclass of ``mlserver.MLModel``; known by name, since mlserver need not be installed."""
    if not inspect.isclass(made):
        return False
    bases = cast("type[Any]", made).__mro__
    return any(b.__name__ == "MLModel" and b.__module__.partition(".")[0] == "mlserver" for b in bases)


def _is_model(found: type[Any]) -> bool:
    return issubclass(found, Model) or is_mlserver_class(found)


def _checked(make: Callable[..., Any], where: str) -> Callable[..., Any]:
    """A function that makes models, held to it."""

    def checked(**options: Any) -> Model:
        model = make(**options)
        if not isinstance(model, Model):
            raise ModelLoadError(where, f"it returned a {type(model).__name__}, which is no headrace.Model")
        return model

    # Whoever asks what options there are means those of the function.
    checked.__signature__ = inspect.signature(make)  # pyright: ignore[reportFunctionMemberAccess]
    return checked


def _classes_in(module: ModuleType) -> list[type[Any]]:
    classes = [c for _, c in inspect.getmembers(module, inspect.isclass)]
    return [c for c in classes if c.__module__ == module.__name__]


def _listed(models: list[type[Any]]) -> str:
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
