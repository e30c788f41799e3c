"""Fault 20: the schema is brought up to date under load; and programs that are older than it."""

import pytest

from faults.bench import Bench, one_ledger, until
from headrace.core.errors import ConfigError
from headrace.jobs.ledgers import migrations
from headrace.jobs.ledgers.open import open_ledger

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240), one_ledger()]

HARMLESS = "ALTER TABLE headrace_job ADD COLUMN fault_20 INTEGER"


def _migrate(bench: Bench, min_reader: int) -> None:
    """As a newer program would when it starts: the step after ours, which it says older ones can read, or cannot."""
    number = migrations.STEPS[-1].number + 1
    newer = migrations.Step(
        number,
        min_reader or number,
        (HARMLESS,),
        (HARMLESS, "CREATE INDEX fault_20 ON headrace_job (fault_20)"),
    )
    ledger = open_ledger(bench.ledger_url)
    engine = ledger._database.open()
    try:
        taken = migrations.migrate(
            lambda work: ledger._guarded(engine, work), where="here", steps=(*migrations.STEPS, newer)
        )
        assert taken == 1
    finally:
        ledger._database.close()


@pytest.mark.parametrize("may_read", [True, False])
def test_fault_20_migration_under_load(bench, may_read):
    """Fault 20: those at work go on, whatever they hold; who starts then works, or refuses and says why."""
    workers = bench.fleet(2)
    numbers = bench.submit(60, work_ms=100)
    until(lambda: len(bench.executions()) > 10)
    bench.wreck()
    _migrate(bench, migrations.STEPS[-1].number if may_read else 0)
    more = bench.submit(20, work_ms=20)
    late = bench.worker()
    if may_read:
        late.wait_ready()
    else:
        assert late.process.wait(60) != 0
        assert "too old" in late.said()
        with pytest.raises(ConfigError, match="too old"):
            open_ledger(bench.ledger_url).start()
    bench.wait_ended(numbers + more)
    assert all(worker.running for worker in workers)
    assert bench.tally().duplicate_executions == 0
