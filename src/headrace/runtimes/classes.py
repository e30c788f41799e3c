"""Import of classes that a user names, ``file.py:Class`` or ``package.module:Class``, and their options."""

import hashlib
import importlib
import inspect
import keyword
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import orjson

from headrace.core.errors import ConfigError, ModelLoadError
from headrace.core.model import Model
from headrace.core.tensor import TensorSpec, dtype_of
from headrace.runtimes.sibling_modules import module_for_file, sibling_files

Options = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ImportedModule:
    """An imported module, the name it was imported by (`where`), and its fingerprint.

    The fingerprint of a file is its `file_fingerprint`, that of a module the sha256 of its source, or
    of its name if the module has no file.
    """

    module: ModuleType
    where: str
    fingerprint: str


def unreadable_file_error(path: Path, error: OSError) -> ModelLoadError:
    """Return the error for a model file that cannot be read."""
    return ModelLoadError(str(path), f"its file cannot be read: {error.strerror or error}")


def split_spec(spec: str) -> tuple[str, str]:
    """Split ``file.py:Class`` or ``module:Class`` into both parts.

    The class is "" if the spec names none.
    """
    path, _, name = spec.rpartition(":") if ".py:" in spec else (spec, "", "")
    if path.endswith(".py"):
        return path, name
    module, _, name = spec.partition(":")
    return module, name


def is_dotted_class(module: str, name: str) -> bool:
    """Return True if these can be the names of a module and a class."""
    return name.isidentifier() and all(part.isidentifier() for part in module.split("."))


def file_fingerprint(path: Path, folder: Path | None = None) -> str:
    """Return the sha256 of a Python file and of the siblings that it imports, if any.

    `folder` is the folder of the siblings, by default the file's own. Raises ModelLoadError if a file
    cannot be read.
    """
    try:
        digest = hashlib.sha256(path.read_bytes())
        for file in sibling_files(path, folder):
            name = file.relative_to(folder or path.parent).as_posix()
            digest.update(f"{name}\0{hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    except OSError as error:
        raise unreadable_file_error(path, error) from error
    return digest.hexdigest()


def import_file(path: Path, folder: Path | None = None) -> ImportedModule:
    """Run a Python file as a module of its own.

    Its imports find the modules in `folder`, by default the file's own folder: see `sibling_modules`.
    Raises ModelLoadError with the line that failed.
    """
    fingerprint = file_fingerprint(path, folder)
    # Equal files in different folders have different siblings.
    identity = hashlib.sha256(f"{path.absolute()}\0{fingerprint}".encode()).hexdigest()[:12]
    module = module_for_file(path, identity, folder)
    module_name = module.__name__
    previous = sys.modules.get(module_name)
    # Pickles and dataclasses look up a class's module here.
    sys.modules[module_name] = module
    try:
        code = compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
        exec(code, module.__dict__)  # noqa: S102 - the operator named this file
    except (Exception, SystemExit) as error:
        if previous is None:
            del sys.modules[module_name]
        else:
            sys.modules[module_name] = previous  # Its code may still import siblings.
        raise ModelLoadError(str(path), f"it cannot be imported: {_place(error, path)}") from error
    return ImportedModule(module, str(path), fingerprint)


def import_module(name: str, wanted: str) -> ImportedModule:
    """Import a module by its dotted name.

    `wanted` names the needed object in errors. Raises ModelLoadError.
    """
    try:
        module = importlib.import_module(name)
    except (Exception, SystemExit) as error:
        why = f"it cannot be imported: {type(error).__name__}: {error}"
        raise ModelLoadError(f"{name}:{wanted}", why) from error
    origin = Path(getattr(module, "__file__", None) or "")
    # Modules without a file (in zip archives, built in) are identified by their names.
    source = origin.read_bytes() if origin.is_file() else name.encode()
    return ImportedModule(module, name, hashlib.sha256(source).hexdigest())


def load_class(spec: str, folder: Path) -> type[Any]:
    """Return the class of ``file.py:Class`` (the file relative to `folder`) or ``module:Class``.

    Raises:
        ConfigError: There is no such class.
        ModelLoadError: The module cannot be imported.
    """
    place, name = split_spec(spec)
    if place.endswith(".py"):
        imported = import_file(folder / place)
    elif is_dotted_class(place, name):
        imported = import_module(place, name)
    else:
        raise ConfigError(f"{spec!r} is not the name of a class: write file.py:Class or module:Class")
    found: Any = getattr(imported.module, name, None)
    if not inspect.isclass(found):
        classes = [c.__name__ for c in _classes_in(imported.module)]
        raise ConfigError(f"{imported.where} has no class {name!r}; it has {', '.join(classes) or 'none'}")
    return cast("type[Any]", found)


def find_model_factory(imported: ImportedModule, name: str) -> Callable[..., Any]:
    """Return the class or function of that name, or, without a name, the module's only model class.

    A model class is a subclass of `Model` or of ``mlserver.MLModel`` (see `is_mlserver_class`).

    Raises:
        ConfigError: The module has no such class or function, or the choice is ambiguous.
    """
    module, where = imported.module, imported.where
    models = [c for c in _classes_in(module) if _is_model(c)]
    if not name:
        if len(models) == 1:
            return models[0]
        if not models:
            raise ConfigError(f"{where} defines no subclass of headrace.Model")
        raise ConfigError(
            f"{where} defines several models ({_listed(models)}): "
            f"name one, as in {where}:{models[0].__name__}"
        )
    found: Any = getattr(module, name, None)
    if found is None:
        raise ConfigError(f"{where} has no class {name!r}; it has {_listed(models)}")
    if inspect.isclass(found) and _is_model(cast("type[Any]", found)):
        return cast("type[Any]", found)
    if inspect.isclass(found) or not callable(found):
        raise ConfigError(
            f"{where}:{name} is not a subclass of headrace.Model; {where} has {_listed(models)}"
        )
    return _with_result_check(cast("Callable[..., Any]", found), f"{where}:{name}")


def is_mlserver_class(made: object) -> bool:
    """Return True for a subclass of ``mlserver.MLModel``.

    The check is by name: mlserver need not be installed.
    """
    if not inspect.isclass(made):
        return False
    bases = cast("type[Any]", made).__mro__
    return any(b.__name__ == "MLModel" and b.__module__.partition(".")[0] == "mlserver" for b in bases)


def _is_model(found: type[Any]) -> bool:
    return issubclass(found, Model) or is_mlserver_class(found)


def _with_result_check(make: Callable[..., Any], where: str) -> Callable[..., Any]:
    """Return a function that calls `make` and raises ModelLoadError if the result is not a Model."""

    def checked(**options: Any) -> Model:
        model = make(**options)
        if not isinstance(model, Model):
            raise ModelLoadError(
                where, f"it returned a {type(model).__name__}, which is not a headrace.Model"
            )
        return model

    # The option names are read from this signature.
    checked.__signature__ = inspect.signature(make)  # pyright: ignore[reportFunctionMemberAccess]
    return checked


def _classes_in(module: ModuleType) -> list[type[Any]]:
    classes = [c for _, c in inspect.getmembers(module, inspect.isclass)]
    return [c for c in classes if c.__module__ == module.__name__]


def _listed(models: list[type[Any]]) -> str:
    return ", ".join(m.__name__ for m in models) or "no models"


def _place(error: BaseException, path: Path) -> str:
    """Return the error's text with its line in the model's own file."""
    line: int | None = getattr(error, "lineno", None)
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            line = trace.tb_lineno
        trace = trace.tb_next
    place = f"{path}:{line}: " if line else ""
    return f"{place}{type(error).__name__}: {error}"


def plain_options(options: Mapping[str, Any] | None, where: str) -> Options:
    """Return a copy of JSON values only. Raises ConfigError with the first option that is not one."""
    if not options:
        return {}
    for name, value in options.items():
        try:
            orjson.dumps({name: value})
        except TypeError as error:
            raise ConfigError(
                f"{where}: option {name!r} must be a plain value "
                f"(text, a number, true or false, a list, a table): {error}"
            ) from None
    return orjson.loads(orjson.dumps(dict(options)))


def option_names(make: Callable[..., Any]) -> tuple[str, ...] | None:
    """Return the keyword arguments of a class or function, or None if it takes any."""
    parameters = inspect.signature(make).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return tuple(p.name.removesuffix("_") for p in parameters if p.kind in kinds)


def keyword_arguments(options: Options, known: Sequence[str] | None, where: str) -> Options:
    """Return the options as keyword arguments; `class` becomes ``class_``.

    Raises ConfigError for an unknown option.
    """
    if known is not None and (unknown := [name for name in options if name not in known]):
        has = f"it has {', '.join(known)}" if known else "it has none"
        raise ConfigError(f"{where} has no option {', '.join(map(repr, unknown))}; {has}")
    return {f"{name}_" if keyword.iskeyword(name) else name: value for name, value in options.items()}


def tensor_specs(option: object, name: str, where: str) -> tuple[TensorSpec, ...]:
    """Return the specs of an option with a list of tensors.

    For example: ``inputs = [{name = "x", datatype = "FP32", shape = [-1, 4]}]``.

    `shape` is optional. If present, it begins with the axis of rows. Raises ConfigError.
    """
    if option is None:
        return ()
    example = (
        f"{where}: option {name!r} must be a list such as "
        '[{name = "x", datatype = "FP32", shape = [-1, 4]}]'
    )
    if not isinstance(option, (list, tuple)):
        raise ConfigError(example)
    return tuple(_spec(entry, example) for entry in cast("Sequence[object]", option))


def _spec(entry: object, example: str) -> TensorSpec:
    if isinstance(entry, TensorSpec):
        return entry
    if not isinstance(entry, dict):
        raise ConfigError(example)
    fields = cast("dict[str, Any]", entry)
    unknown = set(fields) - {"name", "datatype", "shape"}
    tensor, datatype, shape = fields.get("name"), fields.get("datatype", "FP32"), fields.get("shape")
    if unknown or not isinstance(tensor, str) or not isinstance(datatype, str):
        raise ConfigError(example)
    if datatype != "BF16":
        try:
            dtype_of(datatype)
        except TypeError as error:
            raise ConfigError(f"{example}: {error}") from None
    if shape is None:
        return TensorSpec(tensor, datatype)
    if not isinstance(shape, (list, tuple)):
        raise ConfigError(example)
    sizes = tuple(cast("Sequence[object]", shape))
    if not sizes or not all(type(size) is int and size >= -1 for size in sizes):
        raise ConfigError(
            f"{example}: a shape is a list of sizes that begins with the axis of rows, -1 for any size"
        )
    return TensorSpec(tensor, datatype, cast("tuple[int, ...]", sizes))
