"""Run tasks in this process with a started predictor. Every runner uses it, here or in a worker.

Input: a plan, some of its tasks, a started predictor. Output: outputs, drafts, and a record of
every task in the ledger.
"""

import logging
import threading
from collections.abc import Sequence

from headrace.core.errors import HeadraceError
from headrace.core.predictor import Predictor
from headrace.runs.encoders import Encoders
from headrace.runs.flow import Flow
from headrace.runs.items import ScoredBatch
from headrace.runs.mapping import Mapper
from headrace.runs.plan import Task, list_open_shards
from headrace.runs.source import ShardSource
from headrace.runs.task_sink import TaskSink
from headrace.runs.work import RunWork

_log = logging.getLogger("headrace.runs")


class TaskRun:
    """A run of some tasks, in order, as one flow: the model is busy across tasks.

    One thread calls `execute` once; any thread may call `drain`. Committed and checkpointed work
    survives a crash.
    """

    def __init__(
        self,
        work: RunWork,
        tasks: Sequence[Task],
        predictor: Predictor,
    ) -> None:
        settings = work.settings
        self._work = work
        self._open_shards = list_open_shards(tasks, work.checkpoints)
        self._source = ShardSource(
            work.stores, work.plan.objects, self._open_shards, settings, range_starts=work.range_starts
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
            work,
            self._open_shards,
            self._source,
            make_encoder=Encoders(settings, mapper).make,
            metadata=predictor.metadata,
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
                self._work.on_batch(batch)
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
