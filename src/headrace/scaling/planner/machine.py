"""The machine of a worker in a simulation: what it runs at once, how long it starts, and its price."""

from dataclasses import dataclass
from typing import Annotated

from headrace.core.settings import Setting, check
from headrace.jobs.worker import CONCURRENCY_MAX


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine on which one worker runs. Raises ConfigError for values out of range."""

    price_per_h: Annotated[float, Setting("Price of a machine for an hour.", least=0)] = 1.0
    concurrency: Annotated[
        int, Setting("Number of concurrent jobs of a worker.", least=1, most=CONCURRENCY_MAX)
    ] = 1
    batch_gain: Annotated[
        float,
        Setting(
            "Gain of concurrent jobs, from 0 (each takes as many times as long) to 1 (each takes as long as "
            "alone).",
            least=0,
            most=1,
        ),
    ] = 1.0
    start_s: Annotated[
        float, Setting("Seconds from the start of a machine until its worker runs jobs.", least=0)
    ] = 60.0
    start_billed: Annotated[bool, Setting("Whether the price includes the start of a machine.")] = True
    interruptions_per_h: Annotated[
        float, Setting("Interruptions of a machine in an hour, such as of a spot instance.", least=0)
    ] = 0.0

    def __post_init__(self) -> None:
        """Raise ConfigError for values out of range."""
        check(self)

    def speed(self, running: int) -> float:
        """Return the seconds of work that each of some concurrent jobs does in a second."""
        return 1 / (1 + (1 - self.batch_gain) * (running - 1)) if running > 1 else 1.0

    @property
    def capacity(self) -> float:
        """The seconds of work that a machine with full slots does in a second."""
        return self.concurrency * self.speed(self.concurrency)
