"""The job ledgers that the conformance suite and the model-based test are run over: one line each.

A line makes, for a clock, an empty place for jobs, and gives what opens ledgers over it. `fixture` is pytest's
`request.getfixturevalue`; a place is made anew for each call, also within one test.
"""

from collections.abc import Callable
from typing import Any

from headrace.testing import ManualWallClock, MemoryJobLedger
from headrace.testing.job_checks.bench import OpenLedger

Fixture = Callable[[str], Any]


def memory(clock: ManualWallClock, fixture: Fixture) -> OpenLedger:
    """Ledgers in memory that share their jobs."""
    first = MemoryJobLedger(clock)
    return lambda: MemoryJobLedger(clock, beside=first)


LEDGERS: dict[str, Callable[[ManualWallClock, Fixture], OpenLedger]] = {
    "memory": memory,
}
