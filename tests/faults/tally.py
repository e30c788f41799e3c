"""What a fault cost: counted from what the database wrote down, what the model left word of, and the results themselves."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from faults.steps import Step
from headrace.jobs.state import JobState

ENDED = frozenset(state.value for state in JobState if state.ended)


@dataclass(frozen=True)
class Wreck:
    """A fault: when, and whose jobs it hit ("" where it hit the ledger or a store, and so everybody)."""

    at_ms: int
    worker: str = ""


@dataclass(frozen=True)
class Tally:
    """Of one run. `recovery_seconds` is None where nothing had to recover, the rate where nothing was compared."""

    jobs: int
    jobs_lost: int
    duplicate_results: int
    duplicate_executions: int
    recovery_seconds: float | None = None
    completion_rate_vs_baseline: float | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def duplicate_results(steps: Sequence[Step]) -> int:
    """How many ends too many: each job ends once, whichever way."""
    ends = Counter(step.job_id for step in steps if step.then in ENDED)
    return sum(count - 1 for count in ends.values())


def duplicate_executions(executions: Mapping[int, int]) -> int:
    """How often the model was asked for a row again."""
    return sum(count - 1 for count in executions.values())


def recovery_s(steps: Sequence[Step], wrecks: Sequence[Wreck]) -> float | None:
    """The longest time from a fault until all jobs that it hit were claimed again; of one that hit all, until one was."""
    waits = [wait for wreck in wrecks for wait in _waits_ms(steps, wreck)]
    return max(waits) / 1000 if waits else None


def _waits_ms(steps: Sequence[Step], wreck: Wreck) -> list[int]:
    claims = [step for step in steps if step.then == "running" and step.at_ms >= wreck.at_ms]
    if not wreck.worker:
        return [claims[0].at_ms - wreck.at_ms] if claims else []
    hit = {
        step.job_id
        for step in steps
        if step.worker == wreck.worker and (step.was, step.then) == ("running", "pending")
    }
    first: dict[str, int] = {}
    for step in claims:
        if step.job_id in hit and step.worker != wreck.worker:
            first.setdefault(step.job_id, step.at_ms - wreck.at_ms)
    return list(first.values())
