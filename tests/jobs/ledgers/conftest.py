"""The statements of the ledgers in SQL."""

import pytest

from headrace.jobs.ledgers.database import Transaction


@pytest.fixture
def statements(monkeypatch):
    """Return a list to which the texts of executed statements are added."""
    executed = []
    run = Transaction.run

    def recorded(transaction, statement, *records, **values):
        executed.append(statement.postgresql)
        return run(transaction, statement, *records, **values)

    monkeypatch.setattr(Transaction, "run", recorded)
    return executed
