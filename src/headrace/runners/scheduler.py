"""Schedule tasks to workers: remaining and assigned tasks, messages, and deaths. No transport.

Input: tasks, messages and deaths of workers, all from a runner. Output: assignments, and the run's
progress as the sum over all workers. The ledger decides which tasks are finished: a dead worker
costs its uncommitted work, which another worker repeats.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, takewhile
from typing import Final

import msgspec
from typing_extensions import override

from headrace.core.errors import InstanceLostError, ModelLoadError
from headrace.core.predictor import PredictorStatistics
from headrace.core.tensor import ModelMetadata
from headrace.reports.observation import RunObservation
from headrace.runners.messages import (
    Assignment,
    Message,
    WorkerCounters,
    add_counters,
    error_from_json,
    statistics_of,
)
from headrace.runs.plan import Task
from headrace.runs.plan_pages import numbers_of
from headrace.runs.records import Counts, TaskCheckpoint, TaskRecord, sum_counts
from headrace.runs.tasks import Locality, Runner
from headrace.runs.work import RunWork, WorkFigures

_log = logging.getLogger("headrace.runs")

ASSIGNED_TASKS_MAX: Final = 8
ASSIGNMENTS_AIM: Final = 4
"""The intended number of assignments per worker, for an even end of the run."""
DEATHS_MAX: Final = 2
"""The number of workers that a task may kill before it is excluded."""
EXCLUDED_TASKS_MAX: Final = 3
"""The number of excluded tasks after which the model itself is blamed."""


@dataclass(slots=True, eq=False)
class WorkerHandle:
    """A worker as the run knows it: its state, its assignment and its counters."""

    locality: Locality = field(default_factory=Locality)
    ready: bool = False
    """True if the worker has loaded the model."""
    assigned: tuple[int, ...] = ()
    done: set[int] = field(default_factory=set[int])
    """The finished tasks of the assignment."""
    counts: dict[int, Counts] = field(default_factory=dict[int, Counts])
    """The counts of its finished tasks."""
    counters: WorkerCounters = field(default_factory=WorkerCounters)


class TaskScheduler(WorkFigures):
    """The assignment of tasks to workers. Call `begin` once for each list of tasks.

    One thread uses it, except where noted.

    Args:
        model: The model's name, for errors.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._deaths = WorkerDeaths(model)
        self.loaded: ModelMetadata | None = None
        """The model's metadata; set by the first loaded worker, or by the runner."""
        self._released_counters: list[WorkerCounters] = []
        """The counters of the workers that ended."""
        self._surviving_counts: dict[int, Counts] = {}
        """The persisted counts of dead workers, by task."""
        self._load_deaths = 0
        """Consecutive workers that died before they had loaded the model."""
        self._left: list[int] = []
        self._numbers: Sequence[int] = ()
        self._done = set[int]()
        """The finished tasks, as far as known."""
        self._before = Counts()
        self._work: RunWork | None = None
        self._peak_memory_mb = 0.0
        self.handles: list[WorkerHandle] = []
        """The running and starting workers."""

    @property
    def left(self) -> int:
        """The number of unassigned tasks."""
        return len(self._left)

    # Messages

    def on_message(self, handle: WorkerHandle, message: Message) -> None:
        """Handle a message of a worker. Raises the error that it reports."""
        work = self._work
        if "error" in message:
            raise error_from_json(message["error"])
        if "ready" in message:
            handle.ready = True
            self._load_deaths = 0
            self.loaded = self.loaded or msgspec.convert(message["ready"], ModelMetadata)
        elif "tally" in message:
            handle.counters = WorkerCounters.from_json(message["tally"])
        elif "task" in message and work is not None:
            record = TaskRecord.from_json(message["task"].encode())
            handle.done.add(record.task)
            self._done.add(record.task)
            handle.counts[record.task] = record.counts
            work.on_task(record)
        elif "observed" in message and work is not None and work.observation is not None:
            work.observation.add_all(RunObservation.from_json(message["observed"]))
        elif "idle" in message:
            handle.assigned = ()

    # Tasks

    def begin(self, work: RunWork, tasks: Sequence[Task]) -> None:
        """Start with a list of tasks.

        The run's progress already contains the counts of the checkpoints.
        """
        self._work, self._numbers = work, numbers_of(tasks)
        self._surviving_counts, self._done = {}, set[int]()
        self._left = list(self._numbers)
        self._before = work.progress.counts

    def assign(self, handle: WorkerHandle, *, workers: int) -> Assignment | None:
        """Return the next assignment of an idle worker, or None.

        `workers` is the expected number of workers, which decides the size.
        """
        assert self._work is not None, "begun before"
        if not self._left or handle.assigned or not handle.ready:
            return None
        chosen = self._choose(handle.locality, assignment_size(len(self._left), workers))
        if not chosen:
            return None
        # A suspect task runs alone, to confirm that it is the cause and to locate the record.
        alone = self._deaths.is_suspect(chosen[0])
        unsuspected = list(takewhile(lambda number: not self._deaths.is_suspect(number), chosen))
        chosen = chosen[:1] if alone else unsuspected
        taken = frozenset(chosen)
        self._left = [number for number in self._left if number not in taken]
        handle.assigned = tuple(chosen)
        handle.done.clear()
        return make_assignment(self._work, handle.assigned, alone=alone)

    def _choose(self, locality: Locality, size: int) -> list[int]:
        assert self._work is not None, "begun before"
        tasks = self._work.plan.tasks
        own = list(islice((n for n in self._left if locality.is_local(tasks[n])), size))
        if own or locality.other_regions == "never":
            return own
        # One task of another region at a time, from the end: its own workers take it last.
        return self._left[-1:]

    def assign_all(self, *, workers: int) -> list[Assignment]:
        """Return assignments of all remaining tasks, for an engine that distributes them itself.

        `workers` is the expected number of workers. Call `recover` when the engine ends.
        """
        assert self._work is not None, "begun before"
        suspects = [number for number in self._left if self._deaths.is_suspect(number)]
        others = [number for number in self._left if not self._deaths.is_suspect(number)]
        size = assignment_size(len(others), workers)
        groups = [others[at : at + size] for at in range(0, len(others), size)]
        self._left = []
        alone = [make_assignment(self._work, [number], alone=True) for number in suspects]
        return alone + [make_assignment(self._work, group, alone=False) for group in groups]

    def recover(self) -> None:
        """Collect the unfinished tasks again after all workers ended, except those that kill workers."""
        work = self._work
        assert work is not None, "begun before"
        self._left = []
        for number in self._numbers:
            record = None if number in self._done or work.replaces else work.ledger.task(number)
            if record is not None:
                # Committed by a worker that did not report it.
                self._done.add(number)
                self._surviving_counts[number] = record.counts
                work.on_task(record)
            elif number not in self._done and not self._deaths.is_excluded(number):
                self._left.append(number)

    def update_progress(self) -> None:
        """Update the run's progress and call `work.on_batch`."""
        assert self._work is not None, "begun before"
        before = sum_counts(
            counts.minus(self._resumed_counts(task)) for task, counts in self._surviving_counts.items()
        )
        add_counters(self._work.progress, self.all_counters(), self._before.plus(before))
        self._peak_memory_mb = max(self._peak_memory_mb, self._memory_mb())
        self._work.on_batch(None)

    def complete(self, *, drained: bool) -> bool:
        """Return True if the ledger has all tasks. Called after all workers ended.

        Raises InstanceLostError for tasks that kill workers, unless drained.
        """
        assert self._work is not None, "begun before"
        if not drained:
            self._deaths.check()
        return not self._left and set(self._numbers) <= self._work.ledger.done_tasks()

    # Deaths

    def on_worker_died(self, handle: WorkerHandle, reason: str, *, blame_task: bool = True) -> None:
        """Handle the death of a worker: its uncommitted tasks are scheduled again.

        If `blame_task`, its task may be the cause; otherwise its machine is, for example. Raises
        ModelLoadError if workers die while they load, and InstanceLostError if too many tasks kill
        them.
        """
        work = self._work
        undone = [n for n in handle.assigned if n not in handle.done and not self._was_committed(handle, n)]
        self._save_surviving_counts(handle, undone)
        self.release(handle)
        _log.warning("worker died", extra={"how": reason, "tasks": undone})
        if work is not None and undone and blame_task and self._deaths.record_death(undone[0], work, reason):
            undone = undone[1:]
        elif not undone and not handle.ready and blame_task:
            self._load_deaths += 1
            if self._load_deaths >= DEATHS_MAX:
                raise ModelLoadError(self._model, f"its workers end {reason} while they load it")
        self._left[:0] = undone

    def release(self, handle: WorkerHandle) -> None:
        """Remove a worker that ended."""
        self.handles.remove(handle)
        self._released_counters.append(handle.counters)

    def _was_committed(self, handle: WorkerHandle, number: int) -> bool:
        """Return True if a worker committed a task that it did not report."""
        work = self._work
        record = None if work is None or work.replaces else work.ledger.task(number)
        if record is not None and work is not None:
            self._done.add(number)
            handle.counts[number] = record.counts
            work.on_task(record)
        return record is not None

    def _save_surviving_counts(self, handle: WorkerHandle, undone: Sequence[int]) -> None:
        """Count only the persisted part of a dead worker's work; the rest is repeated and counted then."""
        handle.counters = replace(handle.counters, records=0, rows_out=0, rows_failed=0, objects_broken=0)
        self._surviving_counts |= handle.counts
        if self._work is None or self._work.replaces:
            return
        for task, checkpoint in self._work.ledger.checkpoints(undone).items():
            self._surviving_counts[task] = _counts_of(checkpoint)

    def _resumed_counts(self, task: int) -> Counts:
        """Return the counts of a task that the run's progress contained at the start."""
        resumed = self._work.checkpoints.get(task) if self._work is not None else None
        return Counts() if resumed is None else _counts_of(resumed)

    # Figures; safe from any thread

    def all_counters(self) -> list[WorkerCounters]:
        """Return the counters of all workers, also of those that ended."""
        return [*self._released_counters, *(handle.counters for handle in list(self.handles))]

    @property
    @override
    def metadata(self) -> ModelMetadata:
        assert self.loaded is not None, "a worker has loaded it before"
        return self.loaded

    @override
    def statistics(self) -> PredictorStatistics:
        return statistics_of(self.all_counters())

    @override
    def reading(self) -> Sequence[str]:
        return [handle.counters.reading for handle in list(self.handles) if handle.assigned]

    @override
    def cpu_s(self) -> float:
        return sum(counters.cpu_s for counters in self.all_counters())

    @override
    def peak_memory_mb(self) -> float:
        return max(self._peak_memory_mb, self._memory_mb())

    def _memory_mb(self) -> float:
        return sum(handle.counters.peak_memory_mb for handle in list(self.handles))


class ScheduledRunner(Runner):
    """A runner with a scheduler, for workers in other processes.

    Args:
        model: The model's name, for errors.
        locality: The region of the workers, and the rule for other regions.
    """

    def __init__(self, model: str, locality: Locality | None) -> None:
        self._model = model
        self._scheduler = TaskScheduler(model)
        self._locality = locality or Locality()
        self._draining = False

    @property
    @override
    def figures(self) -> WorkFigures:
        return self._scheduler

    def _may_get_work(self) -> bool:
        """Return True if a task waits for a worker that is still loading."""
        if self._draining or not self._scheduler.left:
            return False
        return not all(handle.ready for handle in self._scheduler.handles)


def _counts_of(checkpoint: TaskCheckpoint) -> Counts:
    return checkpoint.counts.plus(sum_counts(shard.counts for shard in checkpoint.done))


def any_busy(handles: Iterable[WorkerHandle]) -> bool:
    """Return True if any of the workers has an assignment."""
    return any(handle.assigned for handle in handles)


def make_assignment(
    work: RunWork,
    numbers: Sequence[int],
    *,
    alone: bool,
) -> Assignment:
    """Return the assignment of some tasks. `alone`: the single task may kill workers."""
    shards = [s for number in numbers for s in work.plan.tasks[number].shards]
    keys = {(s.index, s.number) for s in shards} & work.range_starts.keys()
    return Assignment(
        tuple(numbers),
        {key: work.range_starts[key] for key in keys},
        replaces=work.replaces,
        observed_since_s=work.observation.began_s if work.observation is not None else None,
        checkpoint_all=alone,
        run_id=work.run_id,
    )


def assignment_size(left: int, workers: int) -> int:
    """Return the number of tasks of an assignment when `left` tasks remain for `workers` workers."""
    return max(1, min(ASSIGNED_TASKS_MAX, left // (workers * ASSIGNMENTS_AIM)))


class WorkerDeaths:
    """The deaths of a runner's workers, by task. Used by one thread.

    Args:
        model: The model's name, for errors.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._by_task: dict[int, int] = {}
        self._excluded: list[str] = []
        """Descriptions of the excluded tasks, for the error."""

    def is_suspect(self, task: int) -> bool:
        """Return True if a worker died at the task.

        Such a task is retried alone, with a checkpoint of every batch, to locate the fatal record.
        """
        return task in self._by_task

    def is_excluded(self, task: int) -> bool:
        """Return True if the task killed DEATHS_MAX workers and is not retried."""
        return self._by_task.get(task, 0) >= DEATHS_MAX

    def record_death(self, task: int, work: RunWork, reason: str) -> bool:
        """Record the death of a worker during the task.

        Return True if the task is excluded from now on.

        Raises InstanceLostError if EXCLUDED_TASKS_MAX tasks are excluded: the model is the likely
        cause.
        """
        self._by_task[task] = self._by_task.get(task, 0) + 1
        if not self.is_excluded(task):
            return False
        self._excluded.append(f"{reason} {_describe_position(task, work)}")
        if len(self._excluded) >= EXCLUDED_TASKS_MAX:
            raise self._error()
        return True

    def check(self) -> None:
        """Raise InstanceLostError if a task is excluded."""
        if self._excluded:
            raise self._error()

    def _error(self) -> InstanceLostError:
        return InstanceLostError(
            self._model,
            f"its workers died repeatedly, {'; '.join(self._excluded)}. Finished tasks stay: find out what "
            "kills the model there, then --resume",
        )


def _describe_position(task: int, work: RunWork) -> str:
    """Return the position that a task with a checkpoint of every batch has reached."""
    checkpoint = next(iter(work.ledger.checkpoints([task]).values()), None)
    shard = work.plan.tasks[task].shards[len(checkpoint.done) if checkpoint else 0]
    uri = work.plan.objects[shard.index].info.uri
    if checkpoint is None or not checkpoint.is_inside:
        part = "" if shard.is_whole else f" (from about byte {shard.start:,} on)"
        return f"at the first records of {uri}{part}, or soon after them"
    since = f" of its range from about byte {shard.start:,} on" if checkpoint.relative else ""
    return f"at record {checkpoint.record:,}{since} of {uri}, or soon after it"
