"""The conformance checks of job ledgers, a module for each subject.

Each check takes a bench with an empty ledger. It raises AssertionError with the broken guarantee of
`headrace.jobs.ledger`. The implementation under test is a function of a clock. The function creates
empty storage that takes its time from the clock. It returns a function that opens ledgers over this
storage, not started::

    def my_ledgers(clock):
        database = new_database(clock)
        return lambda: MyLedger(database)

    @pytest.mark.parametrize("check", JOB_LEDGER_CHECKS, ids=lambda check: check.__name__)
    def test_my_ledger(check):
        with LedgerBench(my_ledgers) as bench:
            check(bench)

A database follows the clock by `ManualWallClock.subscribe`. Checks move the clock, and use threads and
second ledgers.
"""

from collections.abc import Callable
from typing import Final

from headrace.testing.job_checks.bench import LedgerBench, NewLedgers
from headrace.testing.job_checks.claiming import CLAIMING_CHECKS
from headrace.testing.job_checks.job_actions import JOB_ACTION_CHECKS
from headrace.testing.job_checks.listing import LISTING_CHECKS
from headrace.testing.job_checks.maintenance import MAINTENANCE_CHECKS
from headrace.testing.job_checks.regions import REGION_CHECKS
from headrace.testing.job_checks.settling import SETTLING_CHECKS
from headrace.testing.job_checks.submitting import SUBMITTING_CHECKS
from headrace.testing.job_checks.wakeups import WAKEUP_CHECKS

JobLedgerCheck = Callable[[LedgerBench], None]

JOB_LEDGER_CHECKS: Final[tuple[JobLedgerCheck, ...]] = (
    *SUBMITTING_CHECKS,
    *CLAIMING_CHECKS,
    *REGION_CHECKS,
    *SETTLING_CHECKS,
    *MAINTENANCE_CHECKS,
    *JOB_ACTION_CHECKS,
    *LISTING_CHECKS,
    *WAKEUP_CHECKS,
)
"""Every check of a job ledger."""


def check_job_ledger(new_ledgers: NewLedgers) -> None:
    """Run every check on a ledger, each over new, empty storage."""
    for check in JOB_LEDGER_CHECKS:
        with LedgerBench(new_ledgers) as bench:
            check(bench)
