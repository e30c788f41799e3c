"""Fault 20: the schema is migrated under load, and older programs meet a newer schema."""

import pytest

from faults.bench import Bench, one_ledger
from headrace.core.errors import ConfigError
from headrace.jobs.ledgers import open_ledger, sql

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240), one_ledger()]


def _newer_step(ahead: int, *, readable: bool) -> sql.MigrationStep:
    """Return a harmless step of a newer program, which older programs can read or not."""
    last = sql.STEPS[-1].number
    column = f"fault_20_{ahead}"
    add = f"ALTER TABLE headrace_job ADD COLUMN {column} INTEGER"
    return sql.MigrationStep(
        last + ahead,
        last if readable else last + ahead,
        (add,),
        (add, f"CREATE INDEX {column} ON headrace_job ({column})"),
    )


def _migrate(bench: Bench, *newer: sql.MigrationStep) -> None:
    """Apply the last of the steps."""
    ledger = open_ledger(bench.ledger_url)
    engine = ledger._database.open()
    try:
        taken = sql.migrate(
            lambda work: ledger._run_exclusively(engine, work), where="here", steps=(*sql.STEPS, *newer)
        )
        assert taken == 1
    finally:
        ledger._database.close()


def test_fault_20_migration_under_load(bench):
    """Fault 20: workers continue; a worker that starts later works, or refuses the schema and says why."""
    workers = bench.start_workers(2)
    numbers = bench.submit(40, work_ms=100)
    bench.wait_executions(5)
    bench.fault_happens()
    readable = _newer_step(1, readable=True)
    _migrate(bench, readable)
    workers.append(bench.worker().wait_ready())
    numbers += bench.submit(40, work_ms=20)
    _migrate(bench, readable, _newer_step(2, readable=False))
    late = bench.worker()
    assert late.process.wait(60) != 0
    assert "too old" in late.log_lines()
    with pytest.raises(ConfigError, match="too old"):
        open_ledger(bench.ledger_url).start()
    bench.wait_ended(numbers + bench.submit(10))
    assert all(worker.running for worker in workers)
    bench.check_single_executions()
