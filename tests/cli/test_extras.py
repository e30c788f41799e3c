"""Commands without the packages of their extra: one line that names it."""

import sys

import pytest

from cases import for_each
from integration.command import headrace


@pytest.fixture
def without(monkeypatch):
    """Return a function that hides packages, and forgets the modules of headrace that may hold them."""

    def hide(*packages):
        for name in [n for n in sys.modules if n.startswith(("headrace.jobs.client", "headrace.app."))]:
            monkeypatch.delitem(sys.modules, name)
        for package in packages:
            monkeypatch.setitem(sys.modules, package, None)

    return hide


@for_each(
    "command",
    ["submit a.csv --model m", "submit a.csv --model m --wait", "jobs list", "jobs cancel x", "queues list"],
)
def test_client_of_jobs_needs_one_extra(without, command):
    without("httpx")
    done = headrace(*command.split())
    assert done.code == 1
    assert done.error == "the client of the job API needs an extra: pip install 'headrace[jobs]'"
