"""Placeholder until merged."""

from dataclasses import dataclass

from headrace.jobs.cause import Cause


@dataclass(frozen=True, slots=True)
class Again:
    """x."""

    delay_ms: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """x."""

    reason: str


def decide(
    cause: Cause, attempt: int, attempts_max: int, share: float, retry_after_s: float | None
) -> Again | GiveUp:
    """x."""
    if attempt >= attempts_max or cause in {Cause.INPUT, Cause.MODEL, Cause.DEFECT}:
        return GiveUp("x")
    return Again(round(1000 * share))
