"""Stop a worker from writing after its run is over."""

from typing import Final

from headrace.core.clock import Clock
from headrace.core.errors import LedgerError
from headrace.runs.ledger import Ledger

CHECK_INTERVAL_S: Final = 1.0


class RunGuard:
    """The check that a worker's run is still active. Used by one thread.

    A worker can be separated from its run and survive: its machine was declared lost, or an engine
    started its tasks elsewhere. During the same run that is harmless, because a task is recorded
    once and its outputs are always the same bytes. After the run, the worker must not write. The
    ledger is read at most once in `CHECK_INTERVAL_S`; writes within that time are not prevented.

    Args:
        ledger: The ledger of the destination.
        run_id: The id of the worker's run.
        clock: The clock of `CHECK_INTERVAL_S`.
    """

    def __init__(self, ledger: Ledger, run_id: str, clock: Clock) -> None:
        self._ledger = ledger
        self._run_id = run_id
        self._clock = clock
        self._checked_s: float | None = None

    def check(self) -> None:
        """Raise LedgerError if the run is finished, or another run has replaced it."""
        now_s = self._clock.now()
        if self._checked_s is not None and now_s - self._checked_s < CHECK_INTERVAL_S:
            return
        self._checked_s = now_s
        if self._ledger.run_id() != self._run_id or self._ledger.final_report() is not None:
            raise LedgerError(
                f"{self._ledger.destination}: the run of this worker is over: the worker stops writing"
            )
