"""Fixtures of the client tests."""

import logging

import pytest


@pytest.fixture(autouse=True)
def propagated_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make log records reach pytest, also after a command-line test in this process."""
    monkeypatch.setattr(logging.getLogger("headrace"), "propagate", True)
    monkeypatch.setattr(logging.getLogger("headrace"), "handlers", [])
    monkeypatch.setattr(logging.getLogger("headrace"), "level", logging.NOTSET)
