"""The settings of a worker."""

import os
import secrets
import socket
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from headrace.core.errors import ConfigError
from headrace.jobs.job import QUEUE_DEFAULT
from headrace.storage.regions import require_region

OtherRegions = Literal["idle", "never"]
"""When a worker with a region claims jobs of other regions: while it is idle, or never."""

CONCURRENCY_MAX: Final = 1000
"""Each concurrent job is a thread."""


def new_worker_name() -> str:
    """Return a unique worker name: host, process and four random bytes."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """The settings of one worker. Raises ConfigError for invalid values."""

    queues: tuple[str, ...] = (QUEUE_DEFAULT,)
    """The queues, in order of preference: a later one is claimed from when the earlier ones are
    empty.
    """
    concurrency: int = 8
    """Concurrent jobs. They share model calls: batches are formed of them."""
    region: str = ""
    """The worker's region: jobs with data there, or without a region, come first. "" treats all
    jobs alike.
    """
    other_regions: OtherRegions = "idle"
    """When a worker with a region claims jobs of other regions."""
    name: str = field(default_factory=new_worker_name)
    lease_s: float = 60.0
    """Seconds without a heartbeat after which a worker's jobs are retried."""
    heartbeat_s: float = 15.0
    """The heartbeat interval in seconds."""
    poll_s: float = 5.0
    """The interval in seconds of claims without a notification."""
    drain_grace_s: float = 30.0
    """Seconds for which jobs may continue after the worker was stopped; then they return to their
    queue.
    """
    stop_s: float = 30.0
    """Seconds that a stopped attempt may take to end. Then it is settled with the reason of its
    stop. Its slot stays occupied until it returns, because a thread cannot be killed.
    """
    maintain_s: float = 5.0
    """The interval in seconds of taking back expired leases and expiring jobs, with jitter."""

    def __post_init__(self) -> None:
        """Raise ConfigError for values out of range."""
        if isinstance(self.queues, str) or not self.queues or not all(self.queues):
            raise ConfigError(f"queues must be a tuple of at least one queue name, not {self.queues!r}")
        if not self.name:
            raise ConfigError("name must not be empty: each worker needs a unique name")
        if self.region:
            require_region(self.region)
        if self.other_regions not in get_args(OtherRegions):
            raise ConfigError(
                f"other_regions must be one of {', '.join(get_args(OtherRegions))}, "
                f"not {self.other_regions!r}"
            )
        if not 1 <= self.concurrency <= CONCURRENCY_MAX:
            raise ConfigError(f"concurrency must be from 1 to {CONCURRENCY_MAX}, not {self.concurrency}")
        for name in ("lease_s", "heartbeat_s", "poll_s", "stop_s", "maintain_s"):
            if not 0 < getattr(self, name) < 86_400:
                raise ConfigError(f"{name} must be above 0 and below a day, not {getattr(self, name)}")
        if self.heartbeat_s * 2 > self.lease_s:
            raise ConfigError(
                f"heartbeat_s ({self.heartbeat_s:g}) must be at most half of lease_s ({self.lease_s:g}): "
                "one late heartbeat must not lose the lease"
            )
        if not 0 <= self.drain_grace_s < 86_400:
            raise ConfigError(f"drain_grace_s must be 0 or more and below a day, not {self.drain_grace_s}")

    @property
    def lease_ms(self) -> int:
        """The lease in milliseconds, as the ledger takes it."""
        return round(self.lease_s * 1000)

    @property
    def waits_for_idleness(self) -> bool:
        """True if the worker takes some jobs only while it has no others."""
        return bool(self.region) and self.other_regions == "idle"
