"""Every job ledger through the one conformance suite."""

import pytest

from headrace.testing import JOB_LEDGER_CHECKS, LedgerBench, check_job_ledger
from headrace.testing.job_ledger import JobLedgerCheck
from jobs.ledgers_under_test import LEDGERS, memory


@pytest.mark.parametrize("check", JOB_LEDGER_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("ledger", LEDGERS)
def test_job_ledger(ledger: str, check: JobLedgerCheck, request: pytest.FixtureRequest):
    with LedgerBench(lambda clock: LEDGERS[ledger](clock, request.getfixturevalue)) as bench:
        check(bench)


def test_check_job_ledger_runs_every_check_on_a_place_of_its_own():
    places = []

    def new_ledgers(clock):
        places.append(clock)
        return memory(clock, lambda name: None)

    check_job_ledger(new_ledgers)
    assert len({id(clock) for clock in places}) == len(JOB_LEDGER_CHECKS)
