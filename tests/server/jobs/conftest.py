"""The served API over both ledgers."""

import pytest

from headrace.jobs.ledger import JobFilter
from headrace.jobs.ledgers.sqlite import SqliteJobLedger
from headrace.testing import ManualWallClock, MemoryJobLedger
from jobs.desk_support import STORE, served_jobs

LEDGERS = ["memory", "sqlite"]


def make_in(folder, kind):
    """A ledger of that kind; what it writes is below the folder."""
    if kind == "memory":
        return MemoryJobLedger(ManualWallClock())
    return SqliteJobLedger(folder / "jobs.db")


@pytest.fixture(params=LEDGERS)
def make_ledger(request, tmp_path):
    """Makes the ledger of a test."""
    return lambda: make_in(tmp_path, request.param)


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


@pytest.fixture(scope="module", params=LEDGERS)
def refusing(request, tmp_path_factory):
    """An API without keys for all tests of a module that are refused; see `empty`."""
    with served_jobs(ledger=make_in(tmp_path_factory.mktemp("refusing"), request.param)) as made:
        yield made


@pytest.fixture
def empty(refusing):
    """An API that has nothing, and must have nothing when the test is over."""
    yield refusing
    assert refusing.ledger.find(JobFilter()).jobs == ()
    assert refusing.ledger.queues() == []
    assert list(refusing.stores.for_uri(STORE).list(STORE)) == []


@pytest.fixture
def refused(empty):
    """A plain client of it."""
    with empty.client() as client:
        yield client
