"""What has to be installed, and what has not."""

import sys

import pytest

from headrace.core.errors import MissingExtraError


@pytest.fixture
def imported_anew(monkeypatch):
    for name in [name for name in sys.modules if name.startswith(("headrace.beam", "headrace.client"))]:
        monkeypatch.delitem(sys.modules, name)


def test_a_missing_beam_is_named(imported_anew, monkeypatch):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    with pytest.raises(MissingExtraError, match=r"headrace\[beam\]"):
        import headrace.beam  # noqa: F401


def test_models_here_need_nothing_that_asks_models_elsewhere(imported_anew, monkeypatch):
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    from headrace.beam import RemoteModelHandler

    with pytest.raises(MissingExtraError, match=r"headrace\[http\]"):
        RemoteModelHandler("http://h/v2/models/m").load_model()
