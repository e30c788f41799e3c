"""Keeps a worker that its run has given up from writing into what came after: another run, or a finished one."""

from typing import Final

from headrace.core.clock import Clock
from headrace.core.errors import LedgerError
from headrace.transforms.ledger import TransformLedger

LOOKED_EVERY_S: Final = 1.0


class Fence:
    """Whether the run that gave a worker its tasks still goes on. One thread.

    A worker can be cut off from its run and live: its machine was given up for lost, or an engine began its tasks again
    elsewhere. Within the same run that changes nothing, since tasks are recorded once and their outputs are the same
    bytes. When the run is over it must write nothing more. The ledger is looked at once in `LOOKED_EVERY_S` at most, so what is
    written within that time is not kept out.

    Args:
        ledger: Of the destination.
        run: The run's own name, by its ledger.
        clock: What `LOOKED_EVERY_S` is measured by.
    """

    def __init__(self, ledger: TransformLedger, run: str, clock: Clock) -> None:
        self._ledger = ledger
        self._run = run
        self._clock = clock
        self._looked_s: float | None = None

    def check(self) -> None:
        """Raise LedgerError when the run is over, or another one has begun in its place."""
        now_s = self._clock.now()
        if self._looked_s is not None and now_s - self._looked_s < LOOKED_EVERY_S:
            return
        self._looked_s = now_s
        if self._ledger.run() != self._run or self._ledger.finished() is not None:
            raise LedgerError(
                f"{self._ledger.destination}: the run that this worker had tasks of is over; it writes nothing more"
            )
