"""How an engine serves: bounds and choices, each with its unit in its name."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

from headrace.core.errors import ConfigError
from headrace.core.model import Isolation
from headrace.core.sequence import SequenceLimits


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """How one model is served. None takes what the model itself says.

    Raises ConfigError for what leaves no room.
    """

    instances: int = 1
    """Copies of the model, each in its own thread or process."""
    isolation: Isolation | None = None
    """Where instances run; see `headrace.Model.isolation`."""
    max_batch_rows: int | None = None
    """The most rows for one call of the model."""
    max_batch_delay_ms: float | None = None
    """How long a request may wait for company that is expected."""
    queue_rows_max: int = 4096
    """Rows that may wait; beyond, requests are refused at once, with the time after which to ask again."""
    streams_max: int = 256
    """Streams that may be open at once."""
    call_timeout_s: float | None = None
    """How long one call of a model in a process of its own may last. The process is then killed and started again, and
    what it had is asked once more, each request by itself; None waits as long as it takes. Threads cannot be killed."""
    cancel_grace_s: float | None = 5.0
    """How long a call of a model in a process of its own may go on once it was told that nobody waits for it any more. The
    process is then killed and started again; None, or infinity, lets it go on. Its open streams end with it."""
    memory_bytes_max: int | None = None
    """The most memory of each process, with all that it starts. In a control group of its own where one can be made: beyond, it is
    killed. Else by RLIMIT_DATA: then private memory counts, touched or not, and beyond the model meets a MemoryError."""
    processes_max: int | None = None
    """The most processes and threads of each process, itself included. In a control group of its own where one can be made;
    else by RLIMIT_NPROC, on top of all that its user runs already, which does not bind root: refused there."""
    environ_pass: tuple[str, ...] | None = None
    """Variables of the environment that each process is given, beside those that Python needs to start; None passes all.
    It keeps secrets from a model's mistakes: a hostile model of the same user finds other ways."""
    sequences: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Limits of a model with a `step` that are to be other than its own, by their names in `headrace.SequenceLimits`."""
    checkpoints: str | None = None
    """Where the states of a model with a `step` are kept, step by step, so that sequences outlive the process that holds them: ``memory:``,
    an SQLite file's path, or ``redis://HOST``; see `headrace.checkpoints.open`. None: nowhere."""
    warm_up: bool = True
    """Whether the first, slow call is made before the model is ready."""

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
        SequenceLimits().changed(self.sequences)
        if self.isolation not in (None, "auto", "inline", "thread", "process"):
            raise ConfigError(f"isolation must be auto, inline, thread or process, not {self.isolation!r}")
