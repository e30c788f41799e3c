"""Modules beside a model's file, which the file imports by their names.

Takes the path of the file; gives its sibling modules as files, and a module to run the file in.

Models of one process may have different siblings of one name. So a sibling is imported as a private
submodule of its model's module, never by its plain name, and `sys.path` stays unchanged.
"""

import ast
import builtins
import importlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Final

from typing_extensions import override

_PREFIX: Final = "headrace_model_"


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


def module_for_file(path: Path, identity: str, folder: Path | None = None) -> ModuleType:
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
