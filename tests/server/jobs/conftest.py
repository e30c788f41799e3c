"""The job API over both ledgers."""

import pytest

import levels
from headrace.jobs.ledger import JobFilter
from headrace.jobs.ledgers.sqlite import SqliteJobLedger
from headrace.testing import ManualWallClock, MemoryJobLedger
from jobs.service_support import STORE, served_jobs

# schemathesis comes with `make setup-all` only.
collect_ignore = ["test_app_fuzz.py"] if levels.level() == "test" else []
LEDGERS = ["memory", pytest.param("sqlite", marks=pytest.mark.slow)]


def make_in(folder, kind):
    """Return a ledger of that kind, with its files in the folder."""
    if kind == "memory":
        return MemoryJobLedger(ManualWallClock())
    return SqliteJobLedger(folder / "jobs.db")


@pytest.fixture(params=LEDGERS)
def make_ledger(request, tmp_path):
    """Return a function that creates the ledger of the test."""
    return lambda: make_in(tmp_path, request.param)


@pytest.fixture
def served(make_ledger):
    """Serve an API without keys."""
    with served_jobs(ledger=make_ledger()) as made:
        yield made


@pytest.fixture
def http(served):
    """Return a plain client of the API."""
    with served.client() as client:
        yield client


@pytest.fixture(scope="module", params=LEDGERS)
def refusing(request, tmp_path_factory):
    """Serve an API without keys for all refused requests of a module; see `empty`."""
    with served_jobs(ledger=make_in(tmp_path_factory.mktemp("refusing"), request.param)) as made:
        yield made


@pytest.fixture
def empty(refusing):
    """Return an API without jobs, queues and objects; it must have none after the test, either."""
    yield refusing
    assert refusing.ledger.find(JobFilter()).jobs == ()
    assert refusing.ledger.queues() == []
    assert list(refusing.stores.for_uri(STORE).list(STORE)) == []


@pytest.fixture
def refused(empty):
    """Return a plain client of the API."""
    with empty.client() as client:
        yield client
