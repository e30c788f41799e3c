"""The contract of actuators, which start and end the workers of a pool."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.core.predictor import Service
from headrace.jobs.worker_registry import WorkerRecord


@dataclass(frozen=True, slots=True)
class Members:
    """The workers of a pool: those in the registry, and the number of those not registered yet."""

    registered: tuple[WorkerRecord, ...]
    starting: int = 0

    @property
    def count(self) -> int:
        """The number of all members."""
        return len(self.registered) + self.starting


class Actuator(Service, Protocol):
    """Starts and ends the workers of one pool. One thread at a time calls `members` and `scale`.

    Both raise ActuatorError, also for an outage; the controller repeats them.
    """

    ends_chosen: bool = False
    """True if `scale` ends exactly the workers that it is given; False if it cannot choose."""
    scaled_by_others: bool = False
    """True if something else starts and ends the workers, by the published decision.

    `scale` prepares the pool for its decision. If that fails, no smaller number is published.
    """
    call_s_max: float = 0.0
    """Seconds that `members` and `scale` may take together. The lease of the controller covers them."""

    def members(self, records: Sequence[WorkerRecord]) -> Members:
        """Return the members among the living workers that take jobs from the queues of the pool."""
        ...

    def scale(self, workers: int, ended: Sequence[WorkerRecord] = ()) -> None:
        """Bring the pool to `workers` members.

        `ended` are members that run no job and claim none; they are not among the `workers`. The
        others keep running, unless the actuator cannot choose.
        """
        ...
