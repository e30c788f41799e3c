"""Ledgers and stores for the fault tests, and the line of each run in the report."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from faults import report
from faults.bench import Bench
from faults.costs import FaultCosts


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Callable[[FaultCosts], None]:
    """A callable that adds the costs to the report under the fault's number, if a report is written."""

    def add(costs: FaultCosts) -> None:
        number = re.match(r"test_fault_(\d+)", request.node.name)
        assert number, f"{request.node.name} must begin with test_fault_ and the fault's number"
        if path := os.environ.get(report.PATH):
            run = request.node.name.removeprefix(f"{number[0]}_")
            report.add_line(Path(path), {"fault": int(number[1]), "run": run, **costs.to_json()})

    return add


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def ledger_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty ledger of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'jobs.db'}"
    return request.getfixturevalue("postgres_url")


@pytest.fixture
def bench(tmp_path: Path, ledger_url: str, record: Callable[[FaultCosts], None]):
    """A bench over each kind of ledger."""
    with Bench(tmp_path, ledger_url, record=record) as opened:
        yield opened


@pytest.fixture
def postgres_bench(tmp_path: Path, postgres_url: str, record: Callable[[FaultCosts], None]):
    """A bench over PostgreSQL."""
    with Bench(tmp_path, postgres_url, record=record) as opened:
        yield opened


@pytest.fixture
def sqlite_bench(tmp_path: Path, record: Callable[[FaultCosts], None]):
    """A bench over SQLite."""
    with Bench(tmp_path, f"sqlite:///{tmp_path / 'jobs.db'}", record=record) as opened:
        yield opened
