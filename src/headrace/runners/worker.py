"""A worker of any runner: it runs the tasks of its assignments and sends messages about them.

The other end is `headrace.runners.scheduler`; the runner connects both. An `Actor` is driven by calls,
an `EmbeddedWorker` by the engine in whose process it lives.
"""

import os
import queue
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, replace
from typing import Final

from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import HeadraceError, LedgerError, StorageError
from headrace.core.predictor import Predictor
from headrace.reports.observation import RunObservation
from headrace.runners.messages import (
    Assignment,
    Message,
    StatusStore,
    WorkerCounters,
    WorkerStatus,
    error_to_json,
)
from headrace.runs.items import ScoredBatch
from headrace.runs.ledger import Ledger
from headrace.runs.plan_pages import open_plan
from headrace.runs.records import TaskCheckpoint, TaskRecord
from headrace.runs.settings import RunSettings
from headrace.runs.tasks import TaskRun
from headrace.runs.work import RunGuard, RunProgress, RunWork, cpu_s, peak_memory_mb
from headrace.storage.resolve import Stores

Opener = Callable[[Callable[[Message], None], str | None], AbstractContextManager["TaskWorker"]]
"""A function that opens a worker from a function that sends messages, and the worker's region. It
is sent to where the workers run.
"""
COUNTERS_INTERVAL_S: Final = 0.2
OBSERVATION_INTERVAL_S: Final = 2.0
STATUS_INTERVAL_S: Final = 2.0
"""The interval in which a busy worker writes its status and checks for a drain."""
PARENT_CHECK_INTERVAL_S: Final = 5.0
"""The interval in which an idle worker checks that its engine still exists."""
_MESSAGES_MAX: Final = 1_000
ORPHANED: Final = 3
"""The exit status of a worker whose run is gone."""


class TaskWorker:
    """A worker with a started predictor. One thread calls `do`; any thread may call `drain`.

    Args:
        predictor: The started predictor; the caller stops it.
        send: Sends a message to the run. Called by the thread of `do`.
        stores: The stores of the objects and the destination.
        destination: The destination with the ledger.
        settings: The settings of the transform.
        region: The region of the worker, if set.
        clock: The clock of the message intervals.
    """

    def __init__(
        self,
        predictor: Predictor,
        send: Callable[[Message], None],
        *,
        stores: Stores,
        destination: str,
        settings: RunSettings,
        region: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._predictor = predictor
        self._send = send
        self._clock = clock or SystemClock()
        self._stores = stores
        self._settings = settings
        self._region = region
        self.ledger = Ledger(stores.for_uri(destination), destination)
        self._progress: list[RunProgress] = []
        self._counters_sent_s = self._observation_sent_s = self._clock.now()
        self._observation: RunObservation | None = None
        self._work: RunWork | None = None
        self._run: TaskRun | None = None
        self._running = threading.Lock()
        self._done: set[int] = set()
        """The reported tasks of the current assignment."""
        self._resumed_checkpoints: tuple[TaskCheckpoint, ...] = ()
        """The checkpoints that the current tasks resumed from."""
        self._draining = False

    def send_ready(self) -> None:
        """Report that the model is loaded, with its metadata."""
        self._send({"ready": asdict(self._predictor.metadata)})

    def remaining_tasks(self, assignment: Assignment) -> list[int]:
        """Return the unfinished tasks of an assignment that may have been run before."""
        if assignment.replaces:
            return list(assignment.tasks)
        return [number for number in assignment.tasks if self.ledger.task(number) is None]

    def do(self, assignment: Assignment) -> None:
        """Run an assignment.

        Send finished tasks, then ``idle``, or ``error`` for an error. Raises nothing.
        """
        try:
            self._do(assignment)
        except HeadraceError as error:
            self._send({"error": error_to_json(error)})
        except Exception as error:  # noqa: BLE001 - sent to the run, which raises it
            self._send({"error": error_to_json(error)})

    def drain(self) -> None:
        """Start no more tasks; persist and end those in progress."""
        with self._running:
            self._draining = True
            if self._run is not None:
                self._run.drain()

    def send_counters(self) -> None:
        """Send the worker's counters."""
        counters = WorkerCounters.from_progress(
            self._progress,
            statistics=self._predictor.statistics(),
            cpu_s=cpu_s(),
            peak_memory_mb=peak_memory_mb(),
            reading=self._run.reading if self._run else "",
        )
        self._send({"tally": counters.to_json()})

    def _begin(self) -> RunWork:
        # The run writes the plan before it assigns any task.
        plan = open_plan(self.ledger.plan_heads(), self.ledger.plan_page, self._settings)
        if not plan.objects:
            raise LedgerError(
                f"{self.ledger.uri('plan-00000.jsonl')}: the worker does not find the plan of its run. All "
                "workers must reach the destination under the same name: use object storage or a shared "
                "folder"
            )
        return RunWork(
            plan=plan,
            settings=self._settings,
            stores=self._stores,
            ledger=self.ledger,
            clock=self._clock,
            on_task=self._on_task,
            on_batch=self._on_batch,
            region=self._region,
        ).with_schema(self.ledger.schema())

    def _do(self, assignment: Assignment) -> None:
        complete = True
        while assignment.tasks:
            self._done = set[int]()
            try:
                complete = self._execute(assignment)
                break
            except StorageError:
                if not (self._send_finished_by_others(assignment) or self._overtaken()):
                    raise
                left = tuple(number for number in assignment.tasks if number not in self._done)
                assignment = replace(assignment, tasks=left)
        self._send({"idle": True, "complete": complete})

    def _send_finished_by_others(self, assignment: Assignment) -> bool:
        """Report the tasks that another worker has finished meanwhile.

        Return True if there are any.

        The other worker may have been declared lost. It removes the drafts that this one resumes
        from.
        """
        remaining_tasks = [number for number in assignment.tasks if number not in self._done]
        found = [] if assignment.replaces else list(filter(None, map(self.ledger.task, remaining_tasks)))
        for record in found:
            self._on_task(record)
        return bool(found)

    def _overtaken(self) -> bool:
        """Return True if another worker has advanced a task beyond this one's checkpoint.

        The other worker has then removed the drafts of the checkpoint.
        """
        lost = [
            checkpoint for checkpoint in self._resumed_checkpoints if not self.ledger.is_complete(checkpoint)
        ]
        now = self.ledger.checkpoints(checkpoint.task for checkpoint in lost)
        return any(now.get(checkpoint.task) != checkpoint for checkpoint in lost)

    def _execute(self, assignment: Assignment) -> bool:
        check = self._run_check(assignment.run_id)
        check()
        if self._work is None or max(assignment.tasks) >= len(self._work.plan.tasks):
            self._work = self._begin()  # a watched source adds tasks
        work = self._work
        progress = RunProgress()
        self._progress.append(progress)
        tasks = [work.plan.tasks[number] for number in assignment.tasks]
        since_s = assignment.observed_since_s
        self._observation = None if since_s is None else RunObservation(since_s)
        checkpoints = {} if assignment.replaces else self.ledger.checkpoints(assignment.tasks)
        self._resumed_checkpoints = tuple(checkpoints.values())
        settings = _checkpoint_every_batch(work.settings) if assignment.checkpoint_all else work.settings
        run = TaskRun(
            replace(
                work,
                settings=settings,
                progress=progress,
                replaces=assignment.replaces,
                observation=self._observation,
                check=check,
                range_starts=assignment.range_starts,
                checkpoints=checkpoints,
            ),
            tasks,
            self._predictor,
        )
        with self._running:
            self._run = run
            if self._draining:
                run.drain()
        try:
            return run.execute()
        finally:
            self.send_counters()
            self._send_observed()

    def _run_check(self, run_id: str | None) -> Callable[[], None]:
        return (lambda: None) if run_id is None else RunGuard(self.ledger, run_id, self._clock).check

    def _on_task(self, record: TaskRecord) -> None:
        self._done.add(record.task)
        self._send({"task": record.to_json().decode()})

    def _on_batch(self, _: ScoredBatch | None) -> None:
        now_s = self._clock.now()
        if now_s - self._counters_sent_s >= COUNTERS_INTERVAL_S:
            self._counters_sent_s = now_s
            self.send_counters()
        if now_s - self._observation_sent_s >= OBSERVATION_INTERVAL_S:
            self._observation_sent_s = now_s
            self._send_observed()

    def _send_observed(self) -> None:
        """Send the observation since the last call; the run adds it to its own."""
        if self._observation is not None and self._observation.records:
            self._send({"observed": self._observation.to_json()})
            self._observation.clear()


def _checkpoint_every_batch(settings: RunSettings) -> RunSettings:
    """Return settings with a checkpoint of every batch and one batch in flight.

    If a batch kills the worker, the checkpoint tells which.
    """
    output = replace(settings.output, checkpoint_s=0.0)
    return replace(settings, output=output, flow=replace(settings.flow, window_bytes_max=1))


class EmbeddedWorker:
    """The worker of another engine's process. Any thread may call it; assignments run one after another.

    A process has one worker for all threads of its engine: the model is loaded once and used by one
    task at a time. Such engines have no messages, so the worker writes its status.

    Args:
        opener: Opens the worker.
        pipeline: The name of its pipeline.
        region: The region of the worker.
        clock: The clock of `STATUS_INTERVAL_S`.
    """

    def __init__(
        self, opener: Opener, pipeline: str, region: str | None = None, clock: Clock | None = None
    ) -> None:
        self._opener = opener
        self._region = region
        self._clock = clock or SystemClock()
        self._stack = ExitStack()
        self._worker: TaskWorker | None = None
        self._status_store: StatusStore | None = None
        self._status = WorkerStatus(uuid.uuid4().hex[:12], pipeline, socket.gethostname(), os.getpid())
        self._status_written_s = self._clock.now()
        self._lock = threading.Lock()

    def do(self, assignment: Assignment) -> WorkerStatus:
        """Run the unfinished tasks of an assignment and return the worker's status.

        Raises the errors of loading the model. Errors of the tasks go into the status, for the run
        to raise; the engine would only retry them.
        """
        with self._lock:
            worker = self._opened()
            assert self._status_store is not None, "opened"
            remaining = tuple(worker.remaining_tasks(assignment))
            if not remaining or self._status_store.draining():
                return self._status
            self._status = replace(self._status, doing=remaining)
            self._write()
            worker.do(replace(assignment, tasks=remaining))
            self._write()
            return self._status

    def _opened(self) -> TaskWorker:
        if self._worker is None:
            self._worker = self._stack.enter_context(self._opener(self._on_message, self._region))
            self._status_store = StatusStore(self._worker.ledger)
        return self._worker

    def close(self) -> None:
        """Unload the model after the assignment in progress. Further calls do nothing."""
        with self._lock:
            self._stack.close()
            self._worker = None

    def _on_message(self, message: Message) -> None:
        self._status = self._status.updated(message)
        if self._clock.now() - self._status_written_s >= STATUS_INTERVAL_S:
            self._write()

    def _write(self) -> None:
        assert self._status_store is not None, "opened"
        assert self._worker is not None, "opened"
        self._status_written_s = self._clock.now()
        self._status_store.write(self._status)
        if self._status_store.draining():
            self._worker.drain()


class Actor:
    """A worker that is driven by calls from other threads.

    `messages` runs as long as the worker does.

    Args:
        opener: Opens the worker.
        region: The region of the worker, unless its location declares one.
        locate: Returns the name and region of the worker's location. Called in the worker's process.
    """

    def __init__(
        self, opener: Opener, region: str | None, locate: Callable[[], tuple[str, str | None]]
    ) -> None:
        self._opener, self._region, self._locate = opener, region, locate
        self._messages = queue.Queue[Message | None](_MESSAGES_MAX)
        self._worker: TaskWorker | None = None
        self._working = False
        self._parent = os.getppid()

    def messages(self) -> Iterator[list[Message]]:
        """Load the model; yield the worker's messages until `stop`."""
        place, region = self._locate()
        region = region or self._region
        yield [{"node": place, "region": region}]
        try:
            with self._opener(self._messages.put, region) as worker:
                self._worker = worker
                worker.send_ready()
                yield from self._batches()
        except Exception as error:  # noqa: BLE001 - sent to the run, which raises it
            yield [{"error": error_to_json(error)}]

    def _batches(self) -> Iterator[list[Message]]:
        """Yield the pending messages together: each batch has the same cost for the run."""
        while (message := self._next()) is not None:
            messages = [message]
            while not self._messages.empty():
                if (more := self._messages.get()) is None:
                    yield messages
                    return
                messages.append(more)
            yield messages

    def _next(self) -> Message | None:
        """Return the next message. End the process if the engine that started it is gone.

        An idle orphan would occupy memory and devices.
        """
        while True:
            try:
                return self._messages.get(timeout=PARENT_CHECK_INTERVAL_S)
            except queue.Empty:
                # The engine was killed alone: without this check the worker would wait forever.
                if os.getppid() != self._parent and not self._working:
                    os._exit(ORPHANED)

    def do(self, assignment: Message) -> None:
        """Run an assignment to its end. Its results are messages."""
        assert self._worker is not None, "it has said that it is ready"
        self._working = True
        try:
            self._worker.do(Assignment.from_json(assignment))
        finally:
            self._working = False

    def drain(self) -> None:
        """Drain the worker; do nothing before the model is loaded."""
        if self._worker is not None:
            self._worker.drain()

    def stop(self) -> None:
        """Unload the model and end `messages`. Called between two assignments."""
        if self._worker is not None:
            self._worker.send_counters()
        self._messages.put(None)
