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

from headrace.testing.job_checks import (
    bulk_actions,
    claiming,
    counting,
    dependencies,
    endpoints,
    job_actions,
    listing,
    maintenance,
    pools,
    publishing,
    regions,
    schedules,
    settling,
    sharing,
    submitting,
    usage,
    wakeups,
    workers,
)
from headrace.testing.job_checks.bench import LedgerBench, NewLedgers

JobLedgerCheck = Callable[[LedgerBench], None]

_SUBJECTS: Final = (
    submitting,
    claiming,
    sharing,
    endpoints,
    schedules,
    regions,
    settling,
    publishing,
    maintenance,
    job_actions,
    bulk_actions,
    dependencies,
    listing,
    usage,
    counting,
    wakeups,
    workers,
    pools,
)
JOB_LEDGER_CHECKS: Final[tuple[JobLedgerCheck, ...]] = tuple(
    found
    for module in _SUBJECTS
    for name, found in vars(module).items()
    if name.startswith("check_") and found.__module__ == module.__name__
)
"""Every check of a job ledger: all functions ``check_…`` of the modules, in their order."""


def check_job_ledger(new_ledgers: NewLedgers) -> None:
    """Run every check on a ledger, each over new, empty storage."""
    for check in JOB_LEDGER_CHECKS:
        with LedgerBench(new_ledgers) as bench:
            check(bench)
