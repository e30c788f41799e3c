"""The health of a worker process."""

import pytest

from cases import for_each
from headrace.core.errors import JobLedgerUnavailableError, StoppedError
from headrace.server.jobs.worker_app import WorkerHealth


def health(phase="running", *, models=True, ledger=True):
    return WorkerHealth(lambda: models, lambda: ledger, phase)


def test_running_worker_is_ready():
    health().check()


@for_each(
    ("state", "error", "why"),
    [
        (health("starting"), StoppedError, "the worker is starting"),
        (health("stopping"), StoppedError, "the worker is stopping"),
        (health(models=False), StoppedError, "has lost its instances"),
        (health(ledger=False), JobLedgerUnavailableError, "has not responded"),
    ],
)
def test_worker_is_not_ready(state, error, why):
    with pytest.raises(error, match=why):
        state.check()
