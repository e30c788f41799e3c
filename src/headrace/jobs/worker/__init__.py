"""The worker of the job queue: its settings. `worker.worker` has the worker itself."""

import os
import secrets
import socket
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

from headrace.core.errors import ConfigError
from headrace.core.settings import Setting, check
from headrace.jobs.job import QUEUE_DEFAULT
from headrace.storage.regions import require_region

OtherRegions = Literal["idle", "never"]
"""When a worker with a region claims jobs of other regions: while it is idle, or never."""

DAY_S: Final = 86_400
CONCURRENCY_MAX: Final = 1000
"""Each concurrent job is a thread."""


def new_worker_name() -> str:
    """Return a unique worker name: host, process and four random bytes."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """The settings of one worker. Raises ConfigError for invalid values."""

    queues: Annotated[
        tuple[str, ...],
        Setting(
            "Queue to take jobs from, in order of preference. Repeatable.",
            option="queue",
            default="default",
            metavar="NAME",
        ),
    ] = (QUEUE_DEFAULT,)
    """A later queue is claimed from when the earlier ones are empty."""
    concurrency: Annotated[
        int,
        Setting("Number of concurrent jobs; they share the model's batches.", least=1, most=CONCURRENCY_MAX),
    ] = 8
    region: Annotated[
        str,
        Setting(
            "Region of the worker; its jobs, and those without a region, come first.",
            default="none",
            metavar="LABEL",
        ),
    ] = ""
    """"" treats all jobs alike."""
    other_regions: Annotated[
        OtherRegions,
        Setting("With --region, work on jobs of other regions: when idle, or never."),
    ] = "idle"
    name: Annotated[
        str,
        Setting("Unique name of the worker.", default="host, process and random digits", python_only=True),
    ] = field(default_factory=new_worker_name)
    lease_s: Annotated[
        float,
        Setting("Seconds without a heartbeat after which a worker's jobs are retried.", above=0, most=DAY_S),
    ] = 60.0
    heartbeat_s: Annotated[
        float, Setting("Heartbeat interval in seconds.", old_names=("beat_s",), above=0, most=DAY_S)
    ] = 15.0
    poll_s: Annotated[
        float,
        Setting(
            "Interval in seconds of claims without a notification.", above=0, most=DAY_S, python_only=True
        ),
    ] = 5.0
    drain_grace_s: Annotated[
        float,
        Setting("Seconds after SIGTERM in which running jobs may finish.", least=0, most=DAY_S),
    ] = 30.0
    """Then they return to their queue."""
    stop_s: Annotated[
        float,
        Setting("Seconds that a stopped attempt may take to end.", above=0, most=DAY_S, python_only=True),
    ] = 30.0
    """Then it is settled with the reason of its stop. Its slot stays occupied until it returns,
    because a thread cannot be killed.
    """
    maintain_s: Annotated[
        float,
        Setting(
            "Interval in seconds of taking back expired leases and expiring jobs, with jitter.",
            above=0,
            most=DAY_S,
            python_only=True,
        ),
    ] = 5.0

    def __post_init__(self) -> None:
        """Raise ConfigError for values out of range."""
        if isinstance(self.queues, str) or not self.queues or not all(self.queues):
            raise ConfigError(f"queues must be a tuple of at least one queue name, not {self.queues!r}")
        if not self.name:
            raise ConfigError("name must not be empty: each worker needs a unique name")
        if self.region:
            require_region(self.region)
        check(self)
        if self.heartbeat_s * 2 > self.lease_s:
            raise ConfigError(
                f"heartbeat_s ({self.heartbeat_s:g}) must be at most half of lease_s ({self.lease_s:g}): "
                "one late heartbeat must not lose the lease"
            )

    @property
    def lease_ms(self) -> int:
        """The lease in milliseconds, as the ledger takes it."""
        return round(self.lease_s * 1000)

    @property
    def waits_for_idleness(self) -> bool:
        """True if the worker takes some jobs only while it has no others."""
        return bool(self.region) and self.other_regions == "idle"
