"""The served API over both ledgers."""

import pytest

from headrace.jobs.ledgers.sqlite import SqliteJobLedger
from headrace.testing import ManualWallClock, MemoryJobLedger
from jobs.desk_support import served_jobs


@pytest.fixture(params=["memory", "sqlite"])
def make_ledger(request, tmp_path):
    """Makes the ledger of a test."""

    def make():
        if request.param == "memory":
            return MemoryJobLedger(ManualWallClock())
        return SqliteJobLedger(tmp_path / "jobs.db")

    return make


@pytest.fixture
def served(make_ledger):
    """An API without keys."""
    with served_jobs(ledger=make_ledger()) as made:
        yield made


@pytest.fixture
def http(served):
    """A plain client of it."""
    with served.client() as client:
        yield client
