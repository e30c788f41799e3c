"""How a worker works: bounds and choices, each with its unit in its name."""

import os
import secrets
import socket
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from headrace.core.errors import ConfigError
from headrace.jobs.job import QUEUE_DEFAULT
from headrace.storage.regions import require_region

OtherRegions = Literal["idle", "never"]
"""When a worker that has a region takes jobs of others: while it has nothing else, or not at all."""

CONCURRENCY_MAX: Final = 1000
"""Each is a thread."""


def new_worker_name() -> str:
    """Host, process and four random bytes: no two workers have one name, also when one is started again."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """How one worker works. Raises ConfigError for what cannot be."""

    queues: tuple[str, ...] = (QUEUE_DEFAULT,)
    """Asked in this order: a later one is worked on when the earlier are empty."""
    concurrency: int = 8
    """Jobs at once. They share the model's calls, so that this is what batches are made of."""
    region: str = ""
    """Where it is: jobs whose data lives there come first, together with those that live nowhere. "" takes all alike."""
    other_regions: OtherRegions = "idle"
    """Of a worker with a region: when it takes others' jobs."""
    name: str = field(default_factory=new_worker_name)
    lease_s: float = 60.0
    """How long a job is this worker's without a sign of life; a dead worker's jobs are run again after so long."""
    beat_s: float = 15.0
    """How often the worker gives a sign of life for all that it has."""
    poll_s: float = 5.0
    """How often the ledger is looked at although nothing was announced."""
    drain_grace_s: float = 30.0
    """How long jobs may go on once the worker was told to leave; then they go back to their queue."""
    stop_s: float = 30.0
    """How long an attempt that was told to stop may take for it; then it is settled without its say, as what it was stopped
    for, and its slot is out of use until it returns: no thread can be killed."""
    maintain_s: float = 5.0
    """About how often leases of the dead are taken back, and expired jobs ended; jittered, since every worker does."""

    def __post_init__(self) -> None:
        """Refuse what leaves no room."""
        if isinstance(self.queues, str) or not self.queues or not all(self.queues):
            raise ConfigError(
                f"a worker needs a tuple of queues, at least one, each with a name, not {self.queues!r}"
            )
        if not self.name:
            raise ConfigError("a worker needs a name that no other has")
        if self.region:
            require_region(self.region)
        if self.other_regions not in get_args(OtherRegions):
            raise ConfigError(
                f"other_regions must be one of {', '.join(get_args(OtherRegions))}, not {self.other_regions!r}"
            )
        if not 1 <= self.concurrency <= CONCURRENCY_MAX:
            raise ConfigError(f"concurrency must be 1 to {CONCURRENCY_MAX}, not {self.concurrency}")
        for name in ("lease_s", "beat_s", "poll_s", "stop_s", "maintain_s"):
            if not 0 < getattr(self, name) < 86_400:
                raise ConfigError(f"{name} must be above 0 and below a day, not {getattr(self, name)}")
        if self.beat_s * 2 > self.lease_s:
            raise ConfigError(
                f"beat_s ({self.beat_s:g}) must be at most half of lease_s ({self.lease_s:g}): "
                "one late sign of life must not cost the lease"
            )
        if not 0 <= self.drain_grace_s < 86_400:
            raise ConfigError(f"drain_grace_s must be 0 or more and below a day, not {self.drain_grace_s}")

    @property
    def lease_ms(self) -> int:
        """`lease_s` as the ledger takes it."""
        return round(self.lease_s * 1000)

    @property
    def waits_for_idleness(self) -> bool:
        """Whether there are jobs that it takes only while it has nothing else."""
        return bool(self.region) and self.other_regions == "idle"
