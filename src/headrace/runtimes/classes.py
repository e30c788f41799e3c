"""Import of classes that a user names: ``file.py:Class`` or ``package.module:Class``.

A file may import the modules beside it, its siblings, by their names. Models of one process may have
different siblings of one name. So a sibling is imported as a private submodule of its model's module,
never by its plain name, and `sys.path` stays unchanged.
"""

import ast
import builtins
import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final, cast

from typing_extensions import override

from headrace.core.errors import ConfigError, ModelLoadError
from headrace.core.model import Model

_PREFIX: Final = "headrace_model_"
"""The start of the names of the modules that files become."""


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

    Its imports find the modules in `folder`, by default the file's own folder.
    Raises ModelLoadError with the line that failed.
    """
    fingerprint = file_fingerprint(path, folder)
    # Equal files in different folders have different siblings.
    identity = hashlib.sha256(f"{path.absolute()}\0{fingerprint}".encode()).hexdigest()[:12]
    module = _module_for_file(path, identity, folder)
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


def sibling_files(path: Path, folder: Path | None = None) -> tuple[Path, ...]:
    """Return the files of the siblings that a Python file imports, in a stable order.

    The files are read, not run. Imports inside functions count, and so do the siblings' own imports.
    A package counts with all its Python files. `folder` is the folder of the siblings, by default
    the file's own. Raises OSError if a file cannot be read.
    """
    folder = folder or path.parent
    siblings = _Siblings(path, folder)
    found: dict[str, Sequence[Path]] = {}
    pending = [path]
    while pending:
        for name in _imported_names(pending.pop()):
            if name not in found and (spec := siblings.find(name)) is not None:
                found[name] = _files_of(spec)
                pending += found[name]
    absolute = folder.absolute()
    return tuple(folder / f.relative_to(absolute) for f in sorted({f for fs in found.values() for f in fs}))


def _module_for_file(path: Path, identity: str, folder: Path | None = None) -> ModuleType:
    """Return an empty module for the code of a Python file, whose imports find its siblings.

    Files of different `identity` share no siblings. Register the module in `sys.modules` before it
    runs.
    """
    folder = folder or path.parent
    name = f"{_PREFIX}{path.stem.replace('.', '_')}_{identity}"
    # The module is a package, so that siblings can be its submodules and `from . import` works.
    spec = importlib.util.spec_from_file_location(
        name, path, submodule_search_locations=[str(folder.absolute())]
    )
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    # Python reads `__import__` from the builtins of the module whose code imports.
    scope = _ImportScope(name, _Siblings(path, folder))
    module.__dict__["__builtins__"] = vars(builtins) | {"__import__": scope}
    importlib.invalidate_caches()
    if _SiblingFinder not in sys.meta_path:
        # Before Python's own finder, which would find a sibling without its import scope.
        sys.meta_path.insert(0, _SiblingFinder)
    return module


class _Siblings:
    """The modules in a folder that one model's file may import."""

    def __init__(self, path: Path, folder: Path) -> None:
        self._own = str(path.absolute())
        self._folder = str(folder.absolute())

    def find(self, name: str) -> ModuleSpec | None:
        """Return the sibling module of a name, or None if there is none.

        A sibling precedes installed modules, as in a script. The standard library and the model's
        own file are never siblings, and a folder without ``__init__.py`` replaces no other module.
        """
        if name in sys.stdlib_module_names:
            return None
        spec = PathFinder.find_spec(name, [self._folder])
        if spec is None or spec.origin == self._own:
            return None
        if spec.origin is None and (name in sys.modules or importlib.util.find_spec(name) is not None):
            return None
        return spec


class _ImportScope:
    """The ``__import__`` of one model's file and of its siblings."""

    def __init__(self, package: str, siblings: _Siblings) -> None:
        self._package = package
        self._siblings = siblings
        self._known: dict[str, bool] = {}

    def __call__(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        if level == 0:
            top = name.partition(".")[0]
            is_sibling = self._known.get(top)
            if is_sibling is None:
                is_sibling = self._known[top] = self._siblings.find(top) is not None
            if is_sibling:
                imported = builtins.__import__(f"{self._package}.{name}", globals, locals, fromlist or (), 0)
                return imported if fromlist else sys.modules[f"{self._package}.{top}"]
        return builtins.__import__(name, globals, locals, fromlist or (), level)


class _SiblingFinder:
    """A finder of the submodules of models' modules. It has no state."""

    @staticmethod
    def find_spec(
        fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is None or not fullname.startswith(_PREFIX):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _SiblingLoader(spec.loader.name, spec.loader.path)
        return spec


class _SiblingLoader(SourceFileLoader):
    """A loader of siblings that gives them the import scope of their model's file."""

    @override
    def exec_module(self, module: ModuleType) -> None:
        model_module = sys.modules[module.__name__.partition(".")[0]]
        module.__dict__["__builtins__"] = vars(model_module)["__builtins__"]
        super().exec_module(module)

    @override
    def get_code(self, fullname: str) -> CodeType:
        # Without the cache of compiled files: it misses a change that keeps size and time, and writes
        # into the models folder.
        return self.source_to_code(self.get_data(self.path), self.path)


def _imported_names(path: Path) -> set[str]:
    """Return the first names of all imports in a file."""
    if path.suffix != ".py":
        return set()
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except (SyntaxError, ValueError):
        return set()  # The file reports its error when it runs.
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) or (isinstance(node, ast.ImportFrom) and node.module is None):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return {name.partition(".")[0] for name in names}


def _files_of(spec: ModuleSpec) -> list[Path]:
    if spec.submodule_search_locations is None:
        return [Path(spec.origin or "")]
    return [file for folder in spec.submodule_search_locations for file in Path(folder).rglob("*.py")]
