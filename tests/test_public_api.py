"""The public API in `headrace/__init__.py`: its names, and the cost of importing it."""

import inspect
import subprocess
import sys

import pytest

import headrace

# A separate process, because this one has imported everything. The imports of numpy do not count.
_LIST_IMPORTS = """
import sys
import numpy
before = set(sys.modules)
import headrace
print(*sorted(set(sys.modules) - before))
"""

# Modules of the standard library that are slow to import or belong to packages with I/O.
_EXPENSIVE_MODULES = {
    "asyncio",
    "email",
    "http",
    "multiprocessing",
    "socket",
    "sqlite3",
    "ssl",
    "subprocess",
    "tarfile",
}


@pytest.fixture(scope="module")
def imported_modules() -> list[str]:
    """Names of the modules that a bare `import headrace` adds."""
    command = [sys.executable, "-I", "-c", _LIST_IMPORTS]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def _sort_key(name: str) -> tuple[int, str]:
    # Constants, classes, then the rest, each by name: the order that ruff requires of __all__.
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


def test_all_lists_exactly_the_visible_names():
    visible = {
        name
        for name in dir(headrace)
        if not name.startswith("_") and not inspect.ismodule(getattr(headrace, name))
    }
    assert visible == {name for name in headrace.__all__ if not name.startswith("_")}


def test_all_is_sorted_and_unique():
    assert list(headrace.__all__) == sorted(set(headrace.__all__), key=_sort_key)


def test_every_public_name_resolves_and_has_a_docstring():
    undocumented = [
        name
        for name in headrace.__all__
        if callable(value := getattr(headrace, name)) and not inspect.getdoc(value)
    ]
    assert undocumented == []


def test_unknown_name_raises_attribute_error():
    assert not hasattr(headrace, "no_such_name")


def test_importing_headrace_imports_numpy_and_core_only(imported_modules):
    ours = [name for name in imported_modules if name.split(".")[0] == "headrace"]
    foreign = (
        {name.split(".")[0] for name in imported_modules}
        - set(sys.stdlib_module_names)
        - {"headrace", "numpy"}
    )
    assert foreign == set()
    assert [name for name in ours if name != "headrace" and name.split(".")[1] != "core"] == []


def test_importing_headrace_imports_no_expensive_module(imported_modules):
    assert _EXPENSIVE_MODULES.intersection(imported_modules) == set()
