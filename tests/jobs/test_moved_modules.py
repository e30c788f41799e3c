"""The documented modules that moved are still imported by their old names, for one release."""

import importlib
import sys

import pytest

import headrace.jobs
from headrace.jobs import notify


@pytest.mark.parametrize("old", headrace.jobs._MOVED)
def test_old_name_imports_the_module_at_its_new_place(old):
    sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match="is deprecated: import headrace.jobs"):
        module = importlib.import_module(old)
    assert module is importlib.import_module(headrace.jobs._MOVED[old])
    assert module.__name__ == headrace.jobs._MOVED[old]


def test_old_attribute_of_the_package_imports_the_module(monkeypatch):
    sys.modules.pop("headrace.jobs.secrets", None)
    monkeypatch.delattr(headrace.jobs, "secrets", raising=False)
    with pytest.warns(DeprecationWarning, match="headrace.jobs.notify"):
        from headrace.jobs import secrets
    assert secrets is notify
