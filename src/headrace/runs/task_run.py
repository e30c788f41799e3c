"""Run tasks in this process with a started predictor. Every runner uses it, here or in a worker.

Input: a plan, some of its tasks, a started predictor. Output: outputs, drafts, and a record of
every task in the ledger. A `RunGuard` stops a worker from writing after its run is over.
"""

import logging
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import HeadraceError, LedgerError
from headrace.core.predictor import Predictor
from headrace.reports.observation import RunObservation
from headrace.runs.encoders import Encoders
from headrace.runs.flow import Flow
from headrace.runs.items import ScoredBatch
from headrace.runs.ledger import Ledger
from headrace.runs.mapping import Mapper
from headrace.runs.plan import Plan, Task
from headrace.runs.progress import RunProgress
from headrace.runs.records import ShardPosition, TaskCheckpoint, TaskRecord
from headrace.runs.settings import RunSettings
from headrace.runs.source import ShardSource, list_open_shards
from headrace.runs.task_sink import TaskSink
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


_log = logging.getLogger("headrace.runs")


def ignore(_: Any) -> None:
    """Ignore the event."""


def _no_check() -> None:
    """Allow all writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskWork:
    """The properties that all tasks of a run share.

    Attributes:
        plan: The plan of the run.
        settings: The settings of the run.
        stores: The object stores.
        ledger: The ledger of the destination.
        learned: The properties of the first records.
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

    plan: Plan
    settings: RunSettings
    stores: Stores
    ledger: Ledger
    learned: Mapping[str, Any]
    progress: RunProgress = field(default_factory=RunProgress)
    clock: Clock = field(default_factory=SystemClock)
    on_task: Callable[[TaskRecord], None] = ignore
    on_batch: Callable[[ScoredBatch | None], None] = ignore
    observation: RunObservation | None = None
    replaces: bool = False
    region: str | None = None
    run_id: str | None = None
    check: Callable[[], None] = _no_check


class TaskRun:
    """A run of some tasks, in order, as one flow: the model is busy across tasks.

    One thread calls `execute` once; any thread may call `drain`. Committed and checkpointed work
    survives a crash.
    """

    def __init__(
        self,
        work: TaskWork,
        tasks: Sequence[Task],
        predictor: Predictor,
        *,
        range_starts: Mapping[tuple[int, int], ShardPosition] | None = None,
        checkpoints: Mapping[int, TaskCheckpoint] | None = None,
    ) -> None:
        settings = work.settings
        self._work = work
        self._open_shards = list_open_shards(tasks, checkpoints or {})
        self._source = ShardSource(
            work.stores, work.plan.objects, self._open_shards, settings, range_starts=range_starts
        )
        mapper = Mapper(predictor.metadata, settings.mapping, settings.read, work.learned)
        self._flow = Flow(
            self._source,
            mapper,
            predictor,
            settings.flow,
            resumable=True,
            progress=work.progress,
            clock=work.clock,
        )
        self._sink = TaskSink(
            work.ledger,
            work.plan,
            self._open_shards,
            self._source,
            make_encoder=Encoders(settings, mapper).make,
            metadata=predictor.metadata,
            settings=settings,
            attempt=uuid.uuid4().hex[:12],
            clock=work.clock,
            on_task=work.on_task,
            replaces=work.replaces,
            region=work.region,
            check=work.check,
        )
        self._drained = threading.Event()

    def drain(self) -> None:
        """Stop reading; deliver and persist the batches in progress."""
        self._drained.set()
        self._flow.drain()

    @property
    def reading(self) -> str:
        """The object that is being read."""
        return self._flow.reading

    def execute(self) -> bool:
        """Run the tasks. Return False if drained before the last one is finished."""
        last: ScoredBatch | None = None
        try:
            for batch in self._flow:
                # If writing fails midway, the previous batch's cursor no longer fits the output.
                last = None
                if self._work.observation is not None:
                    self._work.observation.add_batch(batch, self._work.clock.now())
                self._sink.write(batch)
                last = batch
                self._report(batch)
            if self._drained.is_set():
                self._persist(last)
                return False
            self._sink.end()
        except BaseException:
            self._persist_after_error(last)
            raise
        finally:
            self._sink.close()
        return True

    def _report(self, batch: ScoredBatch) -> None:
        self._work.on_batch(batch)

    def _persist(self, last: ScoredBatch | None) -> None:
        if last is not None:
            self._sink.checkpoint(last)

    def _persist_after_error(self, last: ScoredBatch | None) -> None:
        """Persist the delivered batches after an error."""
        try:
            self._persist(last)
        except HeadraceError:
            # The destination may be the cause; the first error is the one to report.
            _log.warning("cannot persist the batches since the last checkpoint", exc_info=True)
