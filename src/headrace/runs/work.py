"""The work of a run: what its stages and workers share, and the guard of workers.

A `RunGuard` stops a worker from writing after its run is over.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import LedgerError
from headrace.reports.observation import RunObservation
from headrace.runs.items import ScoredBatch
from headrace.runs.ledger import Ledger
from headrace.runs.plan import Plan
from headrace.runs.progress import RunProgress
from headrace.runs.records import ShardPosition, TaskCheckpoint, TaskRecord
from headrace.runs.settings import RunSettings
from headrace.storage.resolve import Stores

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


def ignore(_: Any) -> None:
    """Ignore the event."""


def _no_check() -> None:
    """Allow all writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWork:
    """The properties that the stages of a run, and all its tasks, share.

    Attributes:
        plan: The plan of the run, for tasks.
        settings: The settings of the run.
        stores: The object stores.
        ledger: The ledger of the destination.
        learned: The properties of the first records.
        range_starts: The known starts of ranges, by object index and range number.
        checkpoints: The progress of earlier work, by task number.
        progress: The counters of this run.
        clock: The clock of checkpoints and elapsed times.
        on_task: Called with the record of every committed task, by the working thread.
        on_batch: Called with every delivered batch, by the working thread. A runner of remote workers
            passes None from time to time, after an update of `progress`.
        observation: The observation of every batch, also of one that stops the run before it is written.
        replaces: The tasks replace earlier ones with wrong starts.
        region: The region of this worker, if set.
        run_id: The id of the run, for remote workers.
        check: Called before every write; raises an error once the run is over.
    """

    settings: RunSettings
    stores: Stores
    ledger: Ledger
    plan: Plan = field(default_factory=Plan)
    learned: Mapping[str, Any] = field(default_factory=dict[str, Any])
    range_starts: Mapping[tuple[int, int], ShardPosition] = field(
        default_factory=dict[tuple[int, int], ShardPosition]
    )
    checkpoints: Mapping[int, TaskCheckpoint] = field(default_factory=dict[int, TaskCheckpoint])
    progress: RunProgress = field(default_factory=RunProgress)
    clock: Clock = field(default_factory=SystemClock)
    on_task: Callable[[TaskRecord], None] = ignore
    on_batch: Callable[[ScoredBatch | None], None] = ignore
    observation: RunObservation | None = None
    replaces: bool = False
    region: str | None = None
    run_id: str | None = None
    check: Callable[[], None] = _no_check
