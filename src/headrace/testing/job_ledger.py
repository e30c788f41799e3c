"""What every job ledger must do, as checks that any ledger can be put through.

Each check takes a bench with a ledger over an empty place, and raises AssertionError saying which promise of
`headrace.jobs.ledger` broke. What is under test comes as a function: given a clock, it makes a place for jobs whose
time that clock tells, and gives what opens ledgers over it (not started)::

    def my_ledgers(clock):
        database = new_database(clock)
        return lambda: MyLedger(database)

    @pytest.mark.parametrize("check", JOB_LEDGER_CHECKS, ids=lambda check: check.__name__)
    def test_my_ledger(check):
        with LedgerBench(my_ledgers) as bench:
            check(bench)

A database follows the clock by `ManualWallClock.follow`. Checks move the clock, and use threads and second ledgers.
"""

from collections.abc import Callable
from typing import Final

from headrace.testing.job_checks.bench import LedgerBench, NewLedgers
from headrace.testing.job_checks.claiming import CLAIMING_CHECKS
from headrace.testing.job_checks.deciding import DECIDING_CHECKS
from headrace.testing.job_checks.knowing import KNOWING_CHECKS
from headrace.testing.job_checks.looking import LOOKING_CHECKS
from headrace.testing.job_checks.regions import REGION_CHECKS
from headrace.testing.job_checks.settling import SETTLING_CHECKS
from headrace.testing.job_checks.submitting import SUBMITTING_CHECKS
from headrace.testing.job_checks.upkeep import UPKEEP_CHECKS
from headrace.testing.job_checks.waiting import WAITING_CHECKS

JobLedgerCheck = Callable[[LedgerBench], None]

JOB_LEDGER_CHECKS: Final[tuple[JobLedgerCheck, ...]] = (
    *SUBMITTING_CHECKS,
    *CLAIMING_CHECKS,
    *REGION_CHECKS,
    *SETTLING_CHECKS,
    *UPKEEP_CHECKS,
    *DECIDING_CHECKS,
    *LOOKING_CHECKS,
    *WAITING_CHECKS,
    *KNOWING_CHECKS,
)
"""Every check of a job ledger."""


def check_job_ledger(new_ledgers: NewLedgers) -> None:
    """Put a ledger through every check, each over a new, empty place."""
    for check in JOB_LEDGER_CHECKS:
        with LedgerBench(new_ledgers) as bench:
            check(bench)
