"""Every job ledger through the conformance suite."""

from collections import defaultdict

import pytest

from conformance.check_tables import run_each
from headrace.testing import JOB_LEDGER_CHECKS, LedgerBench, check_job_ledger
from headrace.testing.job_checks import JobLedgerCheck
from jobs.ledger_fixtures import LEDGERS, memory

GROUPS: dict[str, list[JobLedgerCheck]] = defaultdict(list)
for _check in JOB_LEDGER_CHECKS:
    GROUPS[_check.__module__.rpartition(".")[2]].append(_check)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize(
    "ledger", [pytest.param(name, marks=[pytest.mark.postgres] * (name == "postgres")) for name in LEDGERS]
)
def test_job_ledger(ledger: str, group: str, request: pytest.FixtureRequest):
    def run(check: JobLedgerCheck) -> None:
        with LedgerBench(lambda clock: LEDGERS[ledger](clock, request.getfixturevalue)) as bench:
            check(bench)

    run_each(GROUPS[group], run)


def test_check_job_ledger_runs_every_check_on_new_storage():
    clocks = []

    def new_ledgers(clock):
        clocks.append(clock)
        return memory(clock, lambda name: None)

    check_job_ledger(new_ledgers)
    assert len({id(clock) for clock in clocks}) == len(JOB_LEDGER_CHECKS)
