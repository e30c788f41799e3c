"""The public face is `headrace/__init__.py`: what it shows is asserted, and importing it costs nothing more."""

import inspect
import subprocess
import sys

import headrace

# Run apart, since this process has long imported everything. numpy goes first: what it pulls in is not ours.
_LIST_IMPORTS = """
import sys
import numpy
before = set(sys.modules)
import headrace
print(*sorted(set(sys.modules) - before))
"""

# Standard library, but dear: they cost start-up time, or belong to rooms that wait.
_DEAR_MODULES = {
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


def _modules_imported_with_headrace() -> list[str]:
    command = [sys.executable, "-I", "-c", _LIST_IMPORTS]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def _sort_key(name: str) -> tuple[int, str]:
    # Constants, classes, then the rest, each by name: the order that ruff keeps __all__ in.
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


def test_all_names_what_is_visible_and_nothing_else():
    """A name that is visible but not in __all__ is a promise made by accident."""
    visible = {
        name
        for name in dir(headrace)
        if not name.startswith("_") and not inspect.ismodule(getattr(headrace, name))
    }
    assert visible == {name for name in headrace.__all__ if not name.startswith("_")}


def test_all_is_sorted_without_repeats():
    """Sorted, so that two changes that add a name do not conflict at the end of the list."""
    assert list(headrace.__all__) == sorted(set(headrace.__all__), key=_sort_key)


def test_every_public_name_resolves_and_says_what_it_is():
    """Names may be looked up lazily, so ask for each; what is callable has a docstring."""
    bare = [
        name
        for name in headrace.__all__
        if callable(value := getattr(headrace, name)) and not inspect.getdoc(value)
    ]
    assert bare == []


def test_an_unknown_name_is_an_attribute_error():
    """A lazy face must not answer for names that it does not have."""
    assert not hasattr(headrace, "no_such_name")


def test_importing_headrace_imports_numpy_and_core_only():
    """Neither another room nor any third-party package but numpy comes along."""
    imported = _modules_imported_with_headrace()
    ours = [name for name in imported if name.split(".")[0] == "headrace"]
    foreign = {name.split(".")[0] for name in imported} - set(sys.stdlib_module_names) - {"headrace", "numpy"}
    assert foreign == set()
    assert [name for name in ours if name != "headrace" and name.split(".")[1] != "core"] == []


def test_importing_headrace_imports_nothing_dear():
    """No event loop and no network, just for the vocabulary."""
    assert _DEAR_MODULES.intersection(_modules_imported_with_headrace()) == set()
