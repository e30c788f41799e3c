"""Places for jobs that faults are let loose on."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from faults import report
from faults.bench import Bench
from faults.tally import Tally


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Callable[[Tally], None]:
    """Puts a tally into the report, under the fault's number, if one is written."""

    def add(tally: Tally) -> None:
        number = re.match(r"test_fault_(\d+)", request.node.name)
        assert number, f"{request.node.name} does not say which fault it is about"
        if path := os.environ.get(report.PATH):
            run = request.node.name.removeprefix(f"{number[0]}_")
            report.add_line(Path(path), {"fault": int(number[1]), "run": run, **tally.to_json()})

    return add


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def ledger_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty ledger of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'jobs.db'}"
    return request.getfixturevalue("postgres_url")


@pytest.fixture
def bench(tmp_path: Path, ledger_url: str, record: Callable[[Tally], None]):
    """A place over each kind of ledger."""
    with Bench(tmp_path, ledger_url, record=record) as made:
        yield made


@pytest.fixture
def postgres_bench(tmp_path: Path, postgres_url: str, record: Callable[[Tally], None]):
    """A place over PostgreSQL."""
    with Bench(tmp_path, postgres_url, record=record) as made:
        yield made


@pytest.fixture
def sqlite_bench(tmp_path: Path, record: Callable[[Tally], None]):
    """A place over SQLite."""
    with Bench(tmp_path, f"sqlite:///{tmp_path / 'jobs.db'}", record=record) as made:
        yield made
