"""Score a plan by tasks: the contract of the runners that distribute them, and their run in this process.

`TaskScoring` gives the tasks to a `Runner`; they may finish in any order. Every runner runs tasks as a
`TaskRun`, here or in a worker: outputs, drafts, and a record of every task in the ledger.
"""

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, Protocol, get_args

from typing_extensions import override

from headrace.core.errors import ConfigError, HeadraceError, LedgerError
from headrace.core.predictor import Predictor
from headrace.formats.read_options import V2
from headrace.runs.assembler import Assembler
from headrace.runs.encoders import Encoders
from headrace.runs.flow import Flow
from headrace.runs.items import ScoredBatch
from headrace.runs.ledger import RetryLedger
from headrace.runs.mapping import Mapper
from headrace.runs.plan import Plan, Task, list_open_shards
from headrace.runs.plan_pages import TaskSelection
from headrace.runs.projection import needed_columns
from headrace.runs.records import LEDGER_FOLDER, Counts, TaskCheckpoint, TaskRecord, sum_counts
from headrace.runs.scoring import Mode, PredictorWork, Scoring
from headrace.runs.source import ShardSource, read_head
from headrace.runs.task_sink import TaskSink
from headrace.runs.totals import Retried, RunTotals, TaskSums
from headrace.runs.work import RunProgress, RunWork, WorkFigures, ignore

_log = logging.getLogger("headrace.runs")

FLOW_OBJECTS_MIN: Final = 10_000
"""The number of objects after which another flow begins, because a flow remembers each of its objects."""
OtherRegions = Literal["idle", "never"]
"""When a worker takes tasks of other regions: if none of its own are left, or never."""


@dataclass(frozen=True, slots=True)
class Locality:
    """The region of a worker, and the rule for tasks of other regions.

    A worker without a region takes tasks in their order; with "never", only tasks without a region.
    Every worker may take a task without a region.
    """

    region: str | None = None
    other_regions: OtherRegions = "idle"

    def __post_init__(self) -> None:
        """Raise ConfigError for an unknown rule."""
        if self.other_regions not in get_args(OtherRegions):
            raise ConfigError(f"other_regions must be idle or never, not {self.other_regions!r}")

    def require_region(self) -> None:
        """Raise ConfigError if the rule is "never" and no region is set."""
        if self.region is None and self.other_regions == "never":
            raise ConfigError("other_regions is never, but the worker has no region: set its region")

    def is_local(self, task: Task) -> bool:
        """Return True if the task is in the worker's region, or may be taken by every worker."""
        if self.region is None and self.other_regions == "idle":
            return True
        return task.region is None or task.region == self.region

    def ordered(self, tasks: Sequence[Task]) -> Sequence[Task]:
        """Return the tasks that a single worker runs, local tasks first."""
        if self.region is None and self.other_regions == "idle":
            return tasks
        own = [task for task in tasks if self.is_local(task)]
        if self.other_regions == "never" or len(own) == len(tasks):
            return own
        return own + [task for task in tasks if not self.is_local(task)]


class Runner(Protocol):
    """A runner of tasks. The ledger decides which tasks are finished, not the runner."""

    @property
    def figures(self) -> WorkFigures:
        """The figures of its work."""
        ...

    def run(self, work: RunWork, tasks: Sequence[Task]) -> bool:
        """Run the tasks and call `work.on_task` for each.

        Return False if drained before the last one.

        Raises the error that stops the run.
        """
        ...

    def drain(self) -> None:
        """Start no more tasks, persist those in progress, and return from `run`.

        Any thread may call it.
        """
        ...


class TaskScoring(Scoring):
    """The scoring of a transform, or of a stream with workers. The runner is started before."""

    mode: Mode = "tasks"

    def __init__(self, work: RunWork, runner: Runner) -> None:
        self._work = work
        self._runner = runner
        self._done = set[int]()
        """The finished tasks, of this process and of earlier ones."""
        self._done_counts = Counts()
        self._range_numbers = frozenset[int]()
        """The numbers of the tasks that are ranges."""
        self._ranges: dict[int, TaskRecord] = {}
        """The records of the finished tasks that are ranges."""
        self._settled: TaskSums | None = None
        """The sums of the tasks that were counted when the run was complete; their records do not change."""
        self._retried: Retried = {}
        self._resumed = self._has_checkpoints = False

    @property
    @override
    def figures(self) -> WorkFigures:
        return self._runner.figures

    @override
    def check(self) -> None:
        settings = self._work.settings
        if settings.flow.batch_delay_ms is not None or settings.mapping.sequence is not None:
            name = "batch_delay_ms" if settings.mapping.sequence is None else "sequence"
            raise ConfigError(
                f"{name} needs the records in the order of the source, but workers run their tasks in any "
                "order: remove it, or run without workers"
            )
        if settings.read.format == V2 and self._runner.figures.metadata.is_stateful:
            raise ConfigError(
                "v2 requests to a model with a state need the order of the source, but transforms and "
                "workers run their tasks in any order: use headrace stream without workers"
            )

    @override
    def resume(self, plan: Plan, *, finished: bool) -> None:
        ledger = self._work.ledger
        self._resumed = True
        self._retried = RetryLedger(ledger).retried()
        if finished:
            self._settled = self._sums(plan)
        else:
            self._has_checkpoints = True
        assembler = Assembler(ledger, plan, self._work.settings)
        assembled, self._range_numbers = assembler.assembled_tasks(), assembler.range_tasks
        for record in ledger.iterate_tasks():
            if not finished and record.task not in assembled and ledger.is_lost(record):
                ledger.delete_task(record.task)
                continue
            self._keep(record)
            if self._settled is not None:
                self._settled.add(record)

    def _keep(self, record: TaskRecord) -> None:
        """Remember a finished task, or one that is finished again because its range was misplaced."""
        before = self._ranges.get(record.task)
        if record.task in self._range_numbers:
            self._ranges[record.task] = record
        self._done.add(record.task)
        gained = record.counts if before is None else record.counts.minus(before.counts)
        self._done_counts = self._done_counts.plus(gained)

    def _sums(self, plan: Plan) -> TaskSums:
        work = self._work
        region = (work.ledger.identity() or {}).get("destination_region")
        return TaskSums(plan, work.settings, retried=self._retried, destination_region=region)

    @override
    def execute(self, plan: Plan, *, appended: bool) -> bool:
        work = self._work
        assembler = Assembler(work.ledger, plan, work.settings, self._ranges.values())
        self._range_numbers = assembler.range_tasks
        checkpoints = work.ledger.checkpoints() if self._has_checkpoints else {}
        self._has_checkpoints = True
        self._begin_progress(plan, checkpoints)

        def on_task(record: TaskRecord) -> None:
            self._keep(record)
            assembler.add_task(record)

        assembler.publish_all()
        work = replace(
            work,
            plan=plan,
            on_task=on_task,
            run_id=work.ledger.run_id(),
            range_starts=assembler.range_starts(),
            checkpoints=checkpoints,
        ).with_schema(work.ledger.schema())
        left = TaskSelection(plan, [n for n in range(len(plan.tasks)) if n not in self._done])
        if left and not self._runner.run(work, left):
            return False
        return self._redo_ranges(work, assembler)

    def _redo_ranges(self, work: RunWork, assembler: Assembler) -> bool:
        """Score ranges with a wrong start again, until all are right."""
        # The records were counted when they were scored first.
        work = replace(
            work, progress=RunProgress(), on_batch=ignore, observation=None, replaces=True, checkpoints={}
        )
        while misplaced := assembler.ranges_to_redo():
            _log.info(
                "ranges scored again: their starts were guessed wrong", extra={"tasks": sorted(misplaced)}
            )
            tasks = [work.plan.tasks[number] for number in sorted(misplaced)]
            if not self._runner.run(replace(work, range_starts=dict(misplaced.values())), tasks):
                return False
        missing = assembler.unassembled()
        if missing:
            raise LedgerError(
                f"{work.ledger.destination}: {len(missing)} objects were not assembled although all tasks "
                f"are finished; the first is {work.plan.objects[missing[0]].info.uri}. Do not trust this "
                "output; please report it"
            )
        return True

    def _begin_progress(self, plan: Plan, checkpoints: Mapping[int, TaskCheckpoint]) -> None:
        progress = self._work.progress
        counts = [self._done_counts]
        for checkpoint in (c for c in checkpoints.values() if c.task not in self._done):
            counts += [checkpoint.counts, *(s.counts for s in checkpoint.done)]
        progress.counts = sum_counts(counts)
        objects = nbytes = 0
        for head, numbers in plan.pages():
            if self._done.issuperset(numbers):  # without reading the page
                objects, nbytes = objects + head.objects, nbytes + head.nbytes
                continue
            for shard in (
                s for number in self._done.intersection(numbers) for s in plan.tasks[number].shards
            ):
                objects += shard.ends_object
                nbytes += (plan.objects[shard.index].info.size_bytes or 0) // shard.count
        progress.begin(objects_before=objects, bytes_before=nbytes)

    @override
    def totals(self, plan: Plan, *, complete: bool) -> RunTotals:
        sums = self._sums(plan) if self._settled is None else self._settled.copy()
        sums.plan = plan
        # Count from the ledger, not from what workers reported.
        for record in self._work.ledger.iterate_tasks(without=sums.done):
            if complete:
                for shard in record.shards:
                    shard.counts.check(plan.objects[shard.index].info.uri)
            sums.add(record)
        totals = sums.totals()
        if complete:
            self._check_finished(plan, totals)
            self._settled = sums
        return totals

    def _check_finished(self, plan: Plan, totals: RunTotals) -> None:
        """Check from the ledger that every task and object of the run is counted once."""
        if (totals.tasks, totals.objects_done) != (len(plan.tasks), len(plan.objects)):
            raise LedgerError(
                f"{self._work.ledger.destination}{LEDGER_FOLDER}/: the run reports success with "
                f"{totals.tasks} of {len(plan.tasks)} tasks and {totals.objects_done} of "
                f"{len(plan.objects)} objects finished. Do not trust this output; please report it"
            )

    @override
    def drain(self) -> None:
        self._runner.drain()


class InProcessRunner(PredictorWork, Runner):
    """A runner of all tasks in this process, as one flow, or as several if they have very many objects.

    The caller starts and stops the predictor.
    """

    def __init__(self, predictor: Predictor, locality: Locality | None = None) -> None:
        super().__init__(predictor)
        self._locality = locality or Locality()

    @override
    def run(self, work: RunWork, tasks: Sequence[Task]) -> bool:
        local_tasks = self._locality.ordered(tasks)
        local_work = replace(work, region=self._locality.region)
        for some in _groups_of(local_tasks):
            task_run = TaskRun(local_work, some, self._predictor)
            self._read_with(task_run)
            if not task_run.execute():
                return False
        return len(local_tasks) == len(tasks)


def _groups_of(tasks: Iterable[Task]) -> Iterator[list[Task]]:
    """Yield groups of tasks. Each group but the last has at least `FLOW_OBJECTS_MIN` objects and ranges."""
    group: list[Task] = []
    shards = 0
    for task in tasks:
        group.append(task)
        shards += len(task.shards)
        if shards >= FLOW_OBJECTS_MIN:
            yield group
            group, shards = [], 0
    if group:
        yield group


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
            work.stores,
            work.plan.objects,
            self._open_shards,
            settings,
            range_starts=work.range_starts,
            columns=needed_columns(predictor.metadata, settings.mapping, settings.output, work.schema),
        )
        mapper = Mapper(predictor.metadata, settings.mapping, settings.read, work.schema)
        self._flow = Flow(
            self._source,
            mapper,
            predictor,
            settings.flow,
            resumable=True,
            progress=work.progress,
            clock=work.clock,
            stops_broken_model=settings.failures.stops_broken_model,
        )
        encoders = Encoders(settings, mapper)
        self._sink = TaskSink(
            work,
            self._open_shards,
            self._source,
            make_encoder=encoders.make,
            make_empty=lambda info: encoders.make_empty(
                predictor.metadata, lambda: read_head(info, work.stores, settings.read)
            ),
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
