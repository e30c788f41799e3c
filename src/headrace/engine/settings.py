"""How an engine serves: bounds and choices, each with its unit in its name."""

from dataclasses import dataclass
from math import inf

from headrace.core.errors import ConfigError
from headrace.core.model import Isolation


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
    warm_up: bool = True
    """Whether the first, slow call is made before the model is ready."""

    def __post_init__(self) -> None:
        bounds = {
            "instances": self.instances,
            "queue_rows_max": self.queue_rows_max,
            "streams_max": self.streams_max,
            "max_batch_rows": 1 if self.max_batch_rows is None else self.max_batch_rows,
        }
        for name, value in bounds.items():
            if value < 1:
                raise ConfigError(f"{name} must be 1 or more, not {value}")
        if self.max_batch_delay_ms is not None and not 0 <= self.max_batch_delay_ms < inf:
            raise ConfigError(f"max_batch_delay_ms must be 0 or more, not {self.max_batch_delay_ms}")
        if self.call_timeout_s is not None and self.call_timeout_s <= 0:
            raise ConfigError(f"call_timeout_s must be above 0, not {self.call_timeout_s}")
        if self.isolation not in (None, "auto", "inline", "thread", "process"):
            raise ConfigError(f"isolation must be auto, inline, thread or process, not {self.isolation!r}")
