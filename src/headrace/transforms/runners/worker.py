"""A worker's part, wherever it runs: loads nothing itself, does the tasks that it is told, and tells how it fares.

The other end is `headrace.transforms.runners.dispatch`; what is between them is the runner's business.
"""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Final

from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import HeadraceError, LedgerError, StorageError
from headrace.core.predictor import Predictor
from headrace.pipeline.items import ScoredBatch
from headrace.pipeline.progress import Progress
from headrace.pipeline.usage import cpu_s, peak_memory_mb
from headrace.storage.resolve import Stores
from headrace.transforms.fence import Fence
from headrace.transforms.ledger import TransformLedger
from headrace.transforms.observation import Observation
from headrace.transforms.plan import TransformPlan, cut_tasks
from headrace.transforms.records import Checkpoint, TaskRecord
from headrace.transforms.runners.messages import Assignment, Message, Tally, error_json, metadata_json
from headrace.transforms.settings import TransformSettings
from headrace.transforms.work import TaskRun, Work

Opener = Callable[[Callable[[Message], None], str | None], AbstractContextManager["Worker"]]
"""Makes a worker, of what it is to tell everything to, and the region that it is in. Is sent to where workers are."""
TOLD_EVERY_S: Final = 0.2
OBSERVED_EVERY_S: Final = 2.0


class Worker:
    """Does assignments, one after the other, with a predictor that is started. `do` from one thread, `drain` from any.

    Args:
        predictor: Started, and stopped by whoever owns it.
        tell: Is told everything, from the thread that calls `do`.
        stores: Where the objects and the destination are.
        destination: Where the ledger is.
        settings: The transform's.
        region: Where this worker is, if it says so.
        clock: Tells when to tell.
    """

    def __init__(
        self,
        predictor: Predictor,
        tell: Callable[[Message], None],
        *,
        stores: Stores,
        destination: str,
        settings: TransformSettings,
        region: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._predictor = predictor
        self._send = tell
        self._clock = clock or SystemClock()
        self._stores = stores
        self._settings = settings
        self._region = region
        self.ledger = TransformLedger(stores.for_uri(destination), destination)
        self._progress: list[Progress] = []
        self._told_s = self._observed_s = self._clock.now()
        self._observation: Observation | None = None
        self._work: Work | None = None
        self._run: TaskRun | None = None
        self._running = threading.Lock()
        self._done: set[int] = set()
        """Of the tasks under way, those that are done and told."""
        self._begun: tuple[Checkpoint, ...] = ()
        """What the tasks under way went on from."""
        self._draining = False

    def tell_ready(self) -> None:
        """Tell that the model is loaded, and what it is."""
        self._send({"ready": metadata_json(self._predictor.metadata)})

    def undone(self, assignment: Assignment) -> list[int]:
        """Of an assignment that may have been given before, the tasks that are still to be done."""
        if assignment.replaces:
            return list(assignment.tasks)
        return [number for number in assignment.tasks if self.ledger.task(number) is None]

    def do(self, assignment: Assignment) -> None:
        """Do an assignment; tells tasks as they are done, then ``idle``, or ``error`` with what broke it. Raises nothing."""
        try:
            self._do(assignment)
        except HeadraceError as error:
            self._send({"error": error_json(error)})
        except Exception as error:  # noqa: BLE001 - told to the run, which raises it
            self._send({"error": error_json(error)})

    def drain(self) -> None:
        """Begin no more tasks; keep what is under way, and end it."""
        with self._running:
            self._draining = True
            if self._run is not None:
                self._run.drain()

    def tell(self) -> None:
        """Tell how it fares."""
        tally = Tally.of(
            self._progress,
            statistics=self._predictor.statistics(),
            cpu_s=cpu_s(),
            peak_memory_mb=peak_memory_mb(),
            reading=self._run.reading if self._run else "",
        )
        self._send({"tally": tally.to_json()})

    def _begin(self) -> Work:
        # Written before any worker is told to do anything.
        objects = tuple(self.ledger.objects())
        if not objects:
            raise LedgerError(
                f"{self.ledger.uri('plan.jsonl')}: a worker does not find there what its run has written. All workers "
                "must reach the destination by the same name: choose object storage, or a folder that they share"
            )
        return Work(
            plan=TransformPlan(objects, cut_tasks(objects, self._settings)),
            settings=self._settings,
            stores=self._stores,
            ledger=self.ledger,
            learned=self.ledger.learned() or {},
            clock=self._clock,
            on_task=self._on_task,
            on_batch=self._on_batch,
            region=self._region,
        )

    def _do(self, assignment: Assignment) -> None:
        complete = True
        while assignment.tasks:
            self._done = set[int]()
            try:
                complete = self._execute(assignment)
                break
            except StorageError:
                if not (self._tell_others(assignment) or self._overtaken()):
                    raise
                left = tuple(number for number in assignment.tasks if number not in self._done)
                assignment = replace(assignment, tasks=left)
        self._send({"idle": True, "complete": complete})

    def _tell_others(self, assignment: Assignment) -> bool:
        """Whether somebody else has finished tasks of an assignment meanwhile, by the ledger; tells of them.

        A worker that was given up and lives may have: what it had kept of a task is gone then, from which this one was
        about to go on.
        """
        undone = [number for number in assignment.tasks if number not in self._done]
        found = [] if assignment.replaces else list(filter(None, map(self.ledger.task, undone)))
        for record in found:
            self._on_task(record)
        return bool(found)

    def _overtaken(self) -> bool:
        """Whether somebody else is further with a task, and has removed what was kept of it: what this one went on from."""
        lost = [checkpoint for checkpoint in self._begun if not self.ledger.is_whole(checkpoint)]
        now = self.ledger.checkpoints(checkpoint.task for checkpoint in lost)
        return any(now.get(checkpoint.task) != checkpoint for checkpoint in lost)

    def _execute(self, assignment: Assignment) -> bool:
        check = self._fence(assignment.run)
        check()
        self._work = work = self._work or self._begin()
        progress = Progress()
        self._progress.append(progress)
        tasks = [work.plan.tasks[number] for number in assignment.tasks]
        since_s = assignment.observed_since_s
        self._observation = None if since_s is None else Observation(since_s)
        checkpoints = {} if assignment.replaces else self.ledger.checkpoints(assignment.tasks)
        self._begun = tuple(checkpoints.values())
        settings = _keeping_all(work.settings) if assignment.keep_all else work.settings
        run = TaskRun(
            replace(
                work,
                settings=settings,
                progress=progress,
                replaces=assignment.replaces,
                observation=self._observation,
                check=check,
            ),
            tasks,
            self._predictor,
            begins=assignment.begins,
            checkpoints=checkpoints,
        )
        with self._running:
            self._run = run
            if self._draining:
                run.drain()
        try:
            return run.execute()
        finally:
            self.tell()
            self._tell_observed()

    def _fence(self, run: str | None) -> Callable[[], None]:
        return (lambda: None) if run is None else Fence(self.ledger, run, self._clock).check

    def _on_task(self, record: TaskRecord) -> None:
        self._done.add(record.task)
        self._send({"task": record.to_json().decode()})

    def _on_batch(self, _: ScoredBatch | None) -> None:
        now_s = self._clock.now()
        if now_s - self._told_s >= TOLD_EVERY_S:
            self._told_s = now_s
            self.tell()
        if now_s - self._observed_s >= OBSERVED_EVERY_S:
            self._observed_s = now_s
            self._tell_observed()

    def _tell_observed(self) -> None:
        """What was observed since this was told last: the run adds it up."""
        if self._observation is not None and self._observation.records:
            self._send({"observed": self._observation.to_json()})
            self._observation.clear()


def _keeping_all(settings: TransformSettings) -> TransformSettings:
    """With a checkpoint after every batch, and but one asked ahead: should it kill the worker, it is known which."""
    tasks = replace(settings.tasks, checkpoint_s=0.0)
    return replace(settings, tasks=tasks, flow=replace(settings.flow, window_bytes_max=1))
