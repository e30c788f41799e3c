"""Doing tasks: what every runner does, in this process or in another, with a predictor that somebody else made.

Arrives: a plan, some of its tasks, a started predictor. Leaves: outputs, drafts, and a record of every task in the ledger.
"""

import logging
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.core.block import FailureKind
from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import HeadraceError
from headrace.core.predictor import Predictor
from headrace.pipeline.flow import Flow
from headrace.pipeline.items import ScoredBatch
from headrace.pipeline.mapping import Mapper
from headrace.pipeline.progress import Progress
from headrace.storage.resolve import Stores
from headrace.transforms.encoders import Encoders
from headrace.transforms.ledger import TransformLedger
from headrace.transforms.observation import Observation
from headrace.transforms.plan import Task, TransformPlan
from headrace.transforms.records import Checkpoint, Spot, TaskRecord
from headrace.transforms.settings import TransformSettings
from headrace.transforms.sink import TaskSink
from headrace.transforms.source import TaskSource, slots_of

_log = logging.getLogger("headrace.transform")


def _ignore(_: Any) -> None:
    """Nobody looks."""


def _nothing() -> None:
    """Nobody has to be asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What all tasks of a transform share.

    `learned` is what the first records decided. `on_task` is told of every task that is committed, `on_batch` of every
    batch that was delivered; both on the working thread. A runner that delivers elsewhere tells None now and then, once
    `progress` is up to date. `observation` sees every batch, also one that is not written since it breaks the run.
    `replaces`: the tasks were done before, and wrongly. `region` is where this is done, if that was said. `run` is the run's
    own name, for workers elsewhere; their `check` raises when it is over, and is called before anything is written.
    """

    plan: TransformPlan
    settings: TransformSettings
    stores: Stores
    ledger: TransformLedger
    learned: Mapping[str, Any]
    progress: Progress = field(default_factory=Progress)
    clock: Clock = field(default_factory=SystemClock)
    on_task: Callable[[TaskRecord], None] = _ignore
    on_batch: Callable[[ScoredBatch | None], None] = _ignore
    observation: Observation | None = None
    replaces: bool = False
    region: str | None = None
    run: str | None = None
    check: Callable[[], None] = _nothing


class TaskRun:
    """Does some tasks, in order, as one flow: the model goes on from one to the next without a pause.

    `execute` in one thread, once; `drain` from any. What was done by the last commit or checkpoint survives whatever
    happens.
    """

    def __init__(
        self,
        work: Work,
        tasks: Sequence[Task],
        predictor: Predictor,
        *,
        begins: Mapping[tuple[int, int], Spot] | None = None,
        checkpoints: Mapping[int, Checkpoint] | None = None,
    ) -> None:
        settings = work.settings
        self._work = work
        self._slots = slots_of(tasks, checkpoints or {})
        self._source = TaskSource(
            work.stores,
            work.plan,
            self._slots,
            read=settings.read,
            flow=settings.flow,
            begins=begins or {},
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
            self._slots,
            self._source,
            make_encoder=Encoders(settings.output, mapper).make,
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
        """Read no more; deliver what is under way, and keep it."""
        self._drained.set()
        self._flow.drain()

    @property
    def reading(self) -> str:
        """The object that is being read."""
        return self._work.plan.objects[self._slots[self._source.reading].shard.index].info.uri

    def execute(self) -> bool:
        """Do the tasks; False when it was drained before the last of them was done."""
        last: ScoredBatch | None = None
        try:
            for batch in self._flow:
                # Of a batch that was written by half, nothing may be kept that is told by the one before.
                last = None
                if self._work.observation is not None:
                    self._work.observation.batch(batch, self._work.clock.now())
                self._sink.write(batch)
                last = batch
                self._told(batch)
            if self._drained.is_set():
                self._keep(last)
                return False
            self._sink.end()
        except BaseException:
            self._salvage(last)
            raise
        finally:
            self._sink.close()
        return True

    def _told(self, batch: ScoredBatch) -> None:
        for failure in batch.failures if batch.broken else ():
            if failure.kind is FailureKind.OBJECT:
                _log.info("object broken: %s", failure.why, extra={"at": str(failure.position)})
        self._work.on_batch(batch)

    def _keep(self, last: ScoredBatch | None) -> None:
        if last is not None:
            self._sink.checkpoint(last)

    def _salvage(self, last: ScoredBatch | None) -> None:
        """The tasks broke: keep what was delivered and written."""
        try:
            self._keep(last)
        except HeadraceError:
            # The destination may be what broke; the error to tell is the first one.
            _log.warning("what was delivered since the last checkpoint could not be kept", exc_info=True)
