"""The costs of a fault, computed from the log of state changes, the model's log and the results."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from faults.state_changes import StateChange
from headrace.jobs.state import JobState

ENDED = frozenset(state.value for state in JobState if state.ended)


@dataclass(frozen=True)
class FaultMoment:
    """The time of a fault, and the worker that it hit: "" for a ledger or a store, which hits all workers."""

    at_ms: int
    worker: str = ""


@dataclass(frozen=True)
class FaultCosts:
    """The costs of one run.

    `recovery_seconds` is None if nothing had to recover, the rate if there was no baseline.
    """

    jobs: int
    jobs_lost: int
    duplicate_results: int
    duplicate_executions: int
    recovery_seconds: float | None = None
    completion_rate_vs_baseline: float | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def duplicate_results(changes: Sequence[StateChange]) -> int:
    """Return the number of ends beyond the first of each job, in whichever state the job ended."""
    ends = Counter(change.job_id for change in changes if change.after in ENDED)
    return sum(count - 1 for count in ends.values())


def duplicate_executions(executions: Mapping[int, int]) -> int:
    """Return the number of model calls beyond the first of each row."""
    return sum(count - 1 for count in executions.values())


def recovery_s(changes: Sequence[StateChange], faults: Sequence[FaultMoment]) -> float | None:
    """Return the longest time from a fault until the jobs that it hit were claimed again.

    After a fault of one worker these are all jobs that the worker lost; after any other fault, the
    first job to be claimed.
    """
    waits = [wait for fault in faults for wait in _waits_ms(changes, fault)]
    return max(waits) / 1000 if waits else None


def _waits_ms(changes: Sequence[StateChange], fault: FaultMoment) -> list[int]:
    claims = [change for change in changes if change.after == "running" and change.at_ms >= fault.at_ms]
    if not fault.worker:
        return [claims[0].at_ms - fault.at_ms] if claims else []
    hit = {change.job_id for change in changes if change.worker == fault.worker and change.lease_lost}
    first: dict[str, int] = {}
    for claim in claims:
        if claim.job_id in hit and claim.worker != fault.worker:
            first.setdefault(claim.job_id, claim.at_ms - fault.at_ms)
    return list(first.values())
