"""Required and optional packages."""

import sys

import pytest

from headrace.core.errors import MissingExtraError


@pytest.fixture
def fresh_imports(monkeypatch):
    for name in [
        name
        for name in sys.modules
        if name.startswith(("headrace.beam", "headrace.contrib", "headrace.client"))
    ]:
        monkeypatch.delitem(sys.modules, name)


def test_missing_beam_names_the_extra(fresh_imports, monkeypatch):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    with pytest.raises(MissingExtraError, match=r"headrace\[beam\]"):
        import headrace.beam  # noqa: F401


def test_local_models_need_no_http_client(fresh_imports, monkeypatch):
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    from headrace.beam import RemoteModelHandler

    with pytest.raises(MissingExtraError, match=r"headrace\[http\]"):
        RemoteModelHandler("http://h/v2/models/m").load_model()
