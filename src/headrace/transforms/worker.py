"""A worker process's life: loads nothing itself, does the tasks that it is told, and tells how it fares.

The other end is `headrace.transforms.processes`. A worker whose run has gone ends at once: what it was doing can be resumed.
"""

import os
import threading
from collections.abc import Mapping
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any, Final

from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import HeadraceError
from headrace.core.predictor import Predictor
from headrace.pipeline.items import ScoredBatch
from headrace.pipeline.progress import Progress
from headrace.pipeline.usage import cpu_s, peak_memory_mb
from headrace.storage.resolve import Stores
from headrace.transforms.ledger import TransformLedger
from headrace.transforms.messages import Assignment, Tally, error_json, metadata_json, receive, send
from headrace.transforms.observation import Observation
from headrace.transforms.plan import TransformPlan, cut_tasks
from headrace.transforms.records import TaskRecord
from headrace.transforms.settings import TransformSettings
from headrace.transforms.work import TaskRun, Work

TOLD_EVERY_S: Final = 0.2
OBSERVED_EVERY_S: Final = 2.0
ORPHANED: Final = 3
"""The exit status of a worker whose run has gone."""


class Worker:
    """Does what it is told over `connection`, with a predictor that is started; `run` returns when told to stop.

    Args:
        connection: To the run.
        predictor: Started, and stopped by whoever owns it.
        stores: Where the objects and the destination are.
        destination: Where the ledger is.
        settings: The transform's.
        clock: Tells when to tell.
    """

    def __init__(
        self,
        connection: Connection,
        predictor: Predictor,
        *,
        stores: Stores,
        destination: str,
        settings: TransformSettings,
        clock: Clock | None = None,
    ) -> None:
        self._connection = connection
        self._predictor = predictor
        self._clock = clock or SystemClock()
        self._stores = stores
        self._settings = settings
        self._ledger = TransformLedger(stores.for_uri(destination), destination)
        self._progress: list[Progress] = []
        self._told_s = self._observed_s = self._clock.now()
        self._observation: Observation | None = None
        self._sending = threading.Lock()
        self._run: TaskRun | None = None
        self._orders: list[Assignment | None] = []
        self._ordered = threading.Condition()
        self._draining = False

    def run(self) -> None:
        """Say that the model is loaded; then do each assignment, until there is no more."""
        self._send({"ready": metadata_json(self._predictor.metadata)})
        threading.Thread(target=self._listen, name="headrace-orders", daemon=True).start()
        work: Work | None = None
        while (assignment := self._next()) is not None:
            work = work or self._work()
            try:
                self._do(work, assignment)
            except HeadraceError as error:
                self._send({"error": error_json(error)})
            except Exception as error:  # noqa: BLE001 - told to the run, which raises it
                self._send({"error": error_json(error)})
        self._tell()

    def _work(self) -> Work:
        # Written before any worker is told to do anything.
        objects = tuple(self._ledger.objects())
        return Work(
            plan=TransformPlan(objects, cut_tasks(objects, self._settings)),
            settings=self._settings,
            stores=self._stores,
            ledger=self._ledger,
            learned=self._ledger.learned() or {},
            clock=self._clock,
            on_task=self._on_task,
            on_batch=self._on_batch,
        )

    def _do(self, work: Work, assignment: Assignment) -> None:
        progress = Progress()
        self._progress.append(progress)
        tasks = [work.plan.tasks[number] for number in assignment.tasks]
        since_s = assignment.observed_since_s
        self._observation = None if since_s is None else Observation(since_s)
        checkpoints = {} if assignment.replaces else self._ledger.checkpoints(assignment.tasks)
        settings = _keeping_all(work.settings) if assignment.keep_all else work.settings
        self._run = TaskRun(
            replace(
                work,
                settings=settings,
                progress=progress,
                replaces=assignment.replaces,
                observation=self._observation,
            ),
            tasks,
            self._predictor,
            begins=assignment.begins,
            checkpoints=checkpoints,
        )
        if self._draining:
            self._run.drain()
        try:
            complete = self._run.execute()
        finally:
            self._tell()
            self._tell_observed()
        self._send({"idle": True, "complete": complete})

    def _on_task(self, record: TaskRecord) -> None:
        self._send({"task": record.to_json().decode()})

    def _on_batch(self, _: ScoredBatch | None) -> None:
        now_s = self._clock.now()
        if now_s - self._told_s >= TOLD_EVERY_S:
            self._told_s = now_s
            self._tell()
        if now_s - self._observed_s >= OBSERVED_EVERY_S:
            self._observed_s = now_s
            self._tell_observed()

    def _tell_observed(self) -> None:
        """What was observed since this was told last: the run adds it up."""
        if self._observation is not None and self._observation.records:
            self._send({"observed": self._observation.to_json()})
            self._observation.clear()

    def _tell(self) -> None:
        tally = Tally.of(
            self._progress,
            statistics=self._predictor.statistics(),
            cpu_s=cpu_s(),
            peak_memory_mb=peak_memory_mb(),
            reading=self._run.reading if self._run else "",
        )
        self._send({"tally": tally.to_json()})

    def _send(self, message: Mapping[str, Any]) -> None:
        try:
            with self._sending:
                send(self._connection, message)
        except OSError:
            os._exit(ORPHANED)

    def _listen(self) -> None:
        """Its own thread, since a worker that works must still hear that it should stop."""
        while True:
            try:
                message = receive(self._connection)
            except (EOFError, OSError):
                os._exit(ORPHANED)
            if "drain" in message:
                self._draining = True
                if self._run is not None:
                    self._run.drain()
                continue
            order = None if "stop" in message else Assignment.from_json(message["do"])
            with self._ordered:
                self._orders.append(order)
                self._ordered.notify()
            if order is None:
                return

    def _next(self) -> Assignment | None:
        with self._ordered:
            self._ordered.wait_for(lambda: self._orders)
            return self._orders.pop(0)


def _keeping_all(settings: TransformSettings) -> TransformSettings:
    """With a checkpoint after every batch, and but one asked ahead: should it kill the worker, it is known which."""
    tasks = replace(settings.tasks, checkpoint_s=0.0)
    return replace(settings, tasks=tasks, flow=replace(settings.flow, window_bytes_max=1))
