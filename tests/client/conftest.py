"""Fixtures of the client's tests."""

import logging

import pytest


@pytest.fixture(autouse=True)
def heard_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records reach pytest, also after the command line was run in this process."""
    monkeypatch.setattr(logging.getLogger("headrace"), "propagate", True)
    monkeypatch.setattr(logging.getLogger("headrace"), "handlers", [])
    monkeypatch.setattr(logging.getLogger("headrace"), "level", logging.NOTSET)
