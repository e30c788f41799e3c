"""The recommendation for a queue without a controller. Pure.

A controller decides by the settings of its pool and by the past. Autoscalers that read the load of a queue
bring limits and windows of their own.
"""

from typing import Final

from headrace.core.errors import DataError
from headrace.jobs.ledger import QueueCounts
from headrace.scaling.policy import Decision, Observation, ScalingMemory, decide
from headrace.scaling.settings import WORKERS_MAX, ScalingSettings, WorkerRange

_SETTINGS: Final = ScalingSettings(workers=WorkerRange(0, WORKERS_MAX))
"""The default policy. Its windows slow down nothing, because the observed pool has no workers."""


def recommend_workers(counts: QueueCounts, slots: int) -> Decision:
    """Return the decision about workers that run `slots` jobs at once: every due job gets a slot.

    The limit is WORKERS_MAX workers. Raise DataError for less than one slot.
    """
    if slots < 1:
        raise DataError(f"slots_per_worker: must be at least 1, not {slots}")
    observed = Observation(at_ms=0, due=counts.due, running=counts.running, slots=slots)
    return decide(_SETTINGS, observed, ScalingMemory())
