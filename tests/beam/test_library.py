"""Without Beam it is said what to install."""

import sys

import pytest

from headrace.core.errors import MissingExtraError


def test_a_missing_beam_is_named(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("headrace.beam")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    with pytest.raises(MissingExtraError, match=r"headrace\[beam\]"):
        import headrace.beam  # noqa: F401
