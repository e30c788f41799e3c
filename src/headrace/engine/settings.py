"""Settings of one served model: limits and choices, each with its unit in its name."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

from headrace.core.errors import ConfigError
from headrace.core.model import Isolation
from headrace.core.sequence import SequenceLimits


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """The settings of one served model. None takes the model's own setting.

    Raises ConfigError for values out of range.
    """

    instances: int = 1
    """Number of copies of the model, each in its own thread or process."""
    isolation: Isolation | None = None
    """Where instances run; see `headrace.Model.isolation`."""
    max_batch_rows: int | None = None
    """Limit of rows per call of the model."""
    max_batch_delay_ms: float | None = None
    """Milliseconds that a request may wait for expected requests to share its call."""
    queue_rows_max: int = 4096
    """Limit of waiting rows. Beyond it, requests are refused at once, with the time after which to
    retry.
    """
    streams_max: int = 256
    """Limit of open streams."""
    call_timeout_s: float | None = None
    """Limit of seconds per call of a model in a process of its own; None for no limit. Beyond it,
    the process is killed and restarted, and the requests of the call are retried once, each in a
    call of its own. Threads cannot be killed.
    """
    cancel_grace_s: float | None = 5.0
    """Seconds that a call of a model in a process of its own may take after its cancellation, when
    no client wants it any more. Beyond them, the process is killed and restarted; its open streams
    end with it. None, or infinity, lets the call go on.
    """
    memory_bytes_max: int | None = None
    """Limit of the memory of each process, with all that it starts. Enforced by a control group of
    its own, if one can be made: beyond the limit, the process is killed. Else by RLIMIT_DATA, which
    counts private memory, touched or not: beyond the limit, the model gets a MemoryError.
    """
    processes_max: int | None = None
    """Limit of processes and threads of each process, itself included. Enforced by a control group
    of its own, if one can be made. Else by RLIMIT_NPROC, on top of all that the user runs already;
    it does not bind root, so it is refused there.
    """
    environ_pass: tuple[str, ...] | None = None
    """Environment variables that each process gets, besides those that Python needs to start; None
    for all. This hides secrets from a model's mistakes, not from a hostile model of the same user.
    """
    sequences: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Limits of a model with a `step` that replace its own, by their names in
    `headrace.SequenceLimits`.
    """
    checkpoints: str | None = None
    """Store of the states of a model with a `step`, saved after each step, so that sequences
    outlive their process: ``memory:``, the path of an SQLite file, or ``redis://HOST``; see
    `headrace.checkpoints.open`. None for no store.
    """
    warm_up: bool = True
    """Make the first, slow call before the model is ready."""

    def __post_init__(self) -> None:
        bounds = {
            "instances": self.instances,
            "queue_rows_max": self.queue_rows_max,
            "streams_max": self.streams_max,
            "max_batch_rows": 1 if self.max_batch_rows is None else self.max_batch_rows,
            "memory_bytes_max": 1 if self.memory_bytes_max is None else self.memory_bytes_max,
            "processes_max": 1 if self.processes_max is None else self.processes_max,
        }
        for name, value in bounds.items():
            if value < 1:
                raise ConfigError(f"{name} must be 1 or more, not {value}")
        if self.max_batch_delay_ms is not None and not 0 <= self.max_batch_delay_ms < inf:
            raise ConfigError(f"max_batch_delay_ms must be 0 or more, not {self.max_batch_delay_ms}")
        if self.call_timeout_s is not None and not self.call_timeout_s > 0:
            raise ConfigError(f"call_timeout_s must be above 0, not {self.call_timeout_s}")
        if self.cancel_grace_s is not None and not self.cancel_grace_s >= 0:
            raise ConfigError(f"cancel_grace_s must be 0 or more, not {self.cancel_grace_s}")
        if any("=" in name or not name for name in self.environ_pass or ()):
            raise ConfigError("environ_pass must hold names of variables, without values")
        SequenceLimits().with_values(self.sequences)
        if self.isolation not in (None, "auto", "inline", "thread", "process"):
            raise ConfigError(f"isolation must be auto, inline, thread or process, not {self.isolation!r}")
