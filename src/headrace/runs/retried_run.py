"""The finished run of a destination, as a retry of its failed records sees it.

`RetryLedger` has the records of the retries, `RetriedRun` the plan, the outputs and the totals. Some
objects of a transform are scored again as a whole: broken and suppressed ones, and tables. Other
objects of the same tasks are unchanged. After a crash, the ledger names the objects in progress, and
the next retry scores them again.
"""

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

from headrace.core.errors import ConfigError, LedgerError, NotFoundError
from headrace.core.predictor import Predictor
from headrace.reports.report import RunKind
from headrace.runs.assembler import Assembler
from headrace.runs.ledger import Ledger, RetryLedger
from headrace.runs.parts import part_names
from headrace.runs.plan import Plan, Task
from headrace.runs.plan_pages import ReplacedObjects, open_plan
from headrace.runs.records import PartRecord, TaskCheckpoint, TaskRecord
from headrace.runs.settings import settings_from_identity
from headrace.runs.tasks import TaskRun
from headrace.runs.totals import RunTotals, part_totals, task_totals
from headrace.runs.work import RunWork
from headrace.storage.contract import ObjectInfo
from headrace.storage.resolve import Stores

_log = logging.getLogger("headrace.runs")
_FAILED_PART: Final = ".failed.jsonl"


class RetriedRun:
    """The plan, the outputs and the totals of a finished run. Used by one thread.

    An output has a number: that of its object in a transform, that of the part in a stream.
    """

    def __init__(self, ledger: Ledger, records: RetryLedger, identity: Mapping[str, Any]) -> None:
        self._ledger = ledger
        self._records = records
        self.identity = identity
        self.kind: RunKind = identity["kind"]
        self.schema = ledger.schema()
        settings = settings_from_identity(identity["settings"], per_object=self.kind == "transform")
        self.settings = self.schema.apply_to(settings)
        self._by_tasks = identity["mode"] == "tasks"
        plan = open_plan(ledger.plan_heads(), ledger.plan_page, self.settings, by_tasks=self._by_tasks)
        self.plan = replace(plan, objects=ReplacedObjects(plan.objects, records.new_infos()))
        """The plan with its original tasks and the present versions of the objects."""

    @cached_property
    def _parts(self) -> list[PartRecord]:
        """The records of the parts, which a retry does not change."""
        return list(self._ledger.parts(self._ledger.parts_state()))

    def check(self) -> None:
        """Raise ConfigError if the failed records of the run cannot be retried."""
        if self.settings.per_object:
            return
        where = f"{self._ledger.destination}: "
        if self.settings.output.is_written_whole:
            output = self.settings.output
            what = "with partitions" if output.partition_by else f"in the format {output.format}"
            raise ConfigError(
                f"{where}parts {what} cannot be changed: run the stream again with --overwrite, or write csv "
                "or jsonl without partitions"
            )
        if self.settings.mapping.sequence is not None:
            raise ConfigError(
                f"{where}the records of a sequence depend on those before them, so single records cannot be "
                "retried: run the stream again with --overwrite"
            )

    @property
    def redoes_all(self) -> bool:
        """True if every object with a failure is scored again as a whole."""
        return self.settings.output.is_written_whole or self.settings.failures.on_error == "object"

    def names(self, number: int) -> tuple[str, str]:
        """Return the names of an output and of its failed records, below the destination."""
        if self.settings.per_object:
            planned = self.plan.objects[number]
            return planned.output, planned.failed
        return part_names(number, self.settings.output.format)

    def failed_outputs(self) -> dict[int, int]:
        """Return the sizes of the files of failed records, by number of their output."""
        destination, store = self._ledger.destination, self._ledger.store
        if not self.settings.per_object:
            prefix = f"{destination}part-"
            listed = [i for i in store.list(prefix) if i.uri.endswith(_FAILED_PART)]
            numbers = (i.uri.removeprefix(prefix).removesuffix(_FAILED_PART) for i in listed)
            return {int(n): i.size_bytes or 0 for n, i in zip(numbers, listed, strict=True) if n.isdecimal()}
        sizes = {i.uri: i.size_bytes or 0 for i in store.list(destination) if i.uri.endswith(".failed")}
        uris = ((index, destination + planned.failed) for index, planned in enumerate(self.plan.objects))
        return {index: sizes[uri] for index, uri in uris if uri in sizes}

    def broken_objects(self) -> set[int]:
        """Return the objects that were not read to their end."""
        shards = (s for record in self._ledger.iterate_tasks() for s in record.shards)
        return {s.index for s in shards if s.counts.objects_broken}

    def begin_bytes(self) -> dict[int, int]:
        """Return the number of bytes before the first record of each output, if there are any."""
        if not self._by_tasks:
            return {part.part: part.begin_bytes for part in self._parts if part.begin_bytes}
        tasks = self._ledger.tasks()
        shards = [(task, shard) for task, record in tasks.items() for shard in record.shards]
        if not self.settings.per_object:
            return {task: shard.begin_bytes for task, shard in shards if shard.begin_bytes}
        ordered = sorted((shard for _, shard in shards), key=lambda s: (s.index, s.number))
        return {s.index: s.begin_bytes for s in reversed(ordered) if s.begin_bytes}

    def totals(self) -> RunTotals:
        """Return the totals of the run with the records gained by all retries."""
        retried = self._records.retried()
        if not self._by_tasks:
            return replace(part_totals(self._parts, retried), objects_done=len(self.plan.objects))
        tasks = self._ledger.iterate_tasks()
        region = self.identity.get("destination_region")
        return task_totals(self.plan, tasks, self.settings, retried=retried, destination_region=region)


def current_info(stores: Stores, info: ObjectInfo) -> ObjectInfo | None:
    """Return the present version of an object: `info` if it is unchanged, None if it is missing."""
    try:
        found = stores.for_uri(info.uri).head(info.uri)
    except NotFoundError:
        return None
    same = found.size_bytes == info.size_bytes and (not info.etag or found.etag == info.etag)
    return info if same else replace(found, uri=info.uri)


def select_objects_to_redo(
    records: RetryLedger,
    plan: Plan,
    stores: Stores,
    wanted: Collection[int],
    broken: Collection[int],
) -> tuple[set[int], Plan]:
    """Return the `wanted` objects that can be scored again, and the plan with their present versions.

    A `broken` object may have been repaired, so its present version is used. If it is read in
    ranges, its size must be the same. Other objects must be unchanged; a warning is logged for
    those that are not, and they stay as they are.
    """
    ranges = {s.index for task in plan.range_tasks() for s in task.shards}
    renewed: dict[int, ObjectInfo] = {}
    found: set[int] = set()
    for index in sorted(wanted):
        info = plan.objects[index].info
        current = current_info(stores, info)
        if current is None:
            _log.warning("%s is missing: its output is unchanged", info.uri)
        elif current is info:
            found.add(index)
        elif index in broken and (index not in ranges or current.size_bytes == info.size_bytes):
            records.save_new_info(index, current)
            renewed[index] = current
            found.add(index)
        else:
            _log.warning(
                "%s has changed: its output is unchanged. To read the new version, transform again with "
                "--overwrite",
                info.uri,
            )
    return found, replace(plan, objects=ReplacedObjects(plan.objects, renewed))


def redo_objects(work: RunWork, predictor: Predictor, indices: Collection[int]) -> None:
    """Score the objects again.

    `work` must have `replaces` set, and a plan with the versions to read.
    """
    ledger, plan, records = work.ledger, work.plan, RetryLedger(work.ledger)
    records.begin_redo(indices)
    for index in indices:
        records.reset_output(index)
    done = ledger.tasks()
    tasks = [task for task in plan.tasks if any(s.index in indices for s in task.shards)]
    done_records = [record for record in done.values() if not any(s.index in indices for s in record.shards)]
    assembler = Assembler(ledger, plan, work.settings, done_records)
    tasks, checkpoints = _cut_tasks_to(tasks, done, indices)
    work = replace(
        work,
        on_task=assembler.add_task,
        range_starts=assembler.range_starts(),
        checkpoints=checkpoints,
    )
    TaskRun(work, tasks, predictor).execute()
    while misplaced := assembler.ranges_to_redo():
        redone = [plan.tasks[number] for number in sorted(misplaced)]
        work = replace(work, range_starts=dict(misplaced.values()), checkpoints={})
        TaskRun(work, redone, predictor).execute()
    shards = [s for record in ledger.tasks().values() for s in record.shards if s.index in indices]
    with_failures = {s.index for s in shards if s.counts.has_failures}
    broken = {s.index for s in shards if s.counts.objects_broken}
    for index in indices:
        planned = plan.objects[index]
        # The output may have had the other name before.
        outdated = [planned.output if index in broken else planned.partial]
        outdated += [] if index in with_failures else [planned.failed]
        for name in outdated:
            ledger.store.delete(ledger.destination + name)
    records.end_redo()


def _cut_tasks_to(
    tasks: list[Task], done: dict[int, TaskRecord], indices: Collection[int]
) -> tuple[list[Task], dict[int, TaskCheckpoint]]:
    """Return the tasks of these objects, with checkpoints that mark the tasks' other objects as finished."""
    cut: list[Task] = []
    checkpoints: dict[int, TaskCheckpoint] = {}
    for task in tasks:
        others = [s for s in task.shards if s.index not in indices]
        redone_shards = [s for s in task.shards if s.index in indices]
        records = {(s.index, s.number): s for s in done[task.number].shards}
        cut.append(Task(task.number, (*others, *redone_shards)))
        checkpoints[task.number] = TaskCheckpoint(
            task.number, tuple(records[s.index, s.number] for s in others)
        )
    return cut, checkpoints


def finished_identity(ledger: Ledger) -> Mapping[str, Any]:
    """Return the identity of the finished run at a destination.

    Raises ConfigError if there is no run, LedgerError if it is not finished.
    """
    identity = ledger.identity()
    if identity is None:
        raise ConfigError(f"{ledger.destination}: there is no run: check the destination")
    if ledger.final_report() is None:
        raise LedgerError(
            f"{ledger.destination}: the {identity['kind']} is not finished: finish it with "
            f"headrace {identity['kind']} … --resume, then retry its failed records"
        )
    return identity
