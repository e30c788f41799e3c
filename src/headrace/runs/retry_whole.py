"""Score objects of a finished transform again as a whole: broken and suppressed ones, and tables.

Input: the indices of the objects. Output: their new outputs and the new records of their tasks;
other objects of the same tasks are unchanged. After a crash, the ledger names the objects in
progress, and the next retry scores them again.
"""

import logging
from collections.abc import Collection
from dataclasses import replace

from headrace.core.errors import NotFoundError
from headrace.core.predictor import Predictor
from headrace.runs.assembler import Assembler
from headrace.runs.ledger import Ledger
from headrace.runs.plan import Plan, Task
from headrace.runs.records import TaskCheckpoint, TaskRecord
from headrace.runs.retry_ledger import RetryLedger
from headrace.runs.task_run import TaskRun, TaskWork
from headrace.storage.contract import ObjectInfo
from headrace.storage.resolve import Stores

_log = logging.getLogger("headrace.runs")


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
    ranges = {s.index for task in plan.tasks for s in task.shards if not s.is_whole}
    objects = list(plan.objects)
    found: set[int] = set()
    for index in sorted(wanted):
        info = objects[index].info
        current = current_info(stores, info)
        if current is None:
            _log.warning("%s is missing: its output is unchanged", info.uri)
        elif current is info:
            found.add(index)
        elif index in broken and (index not in ranges or current.size_bytes == info.size_bytes):
            records.save_new_info(index, current)
            objects[index] = replace(objects[index], info=current)
            found.add(index)
        else:
            _log.warning(
                "%s has changed: its output is unchanged. To read the new version, transform again with "
                "--overwrite",
                info.uri,
            )
    return found, Plan(tuple(objects), plan.tasks)


def redo_objects(work: TaskWork, predictor: Predictor, indices: Collection[int]) -> None:
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
    work = replace(work, on_task=assembler.add_task)
    tasks, checkpoints = _cut_tasks_to(tasks, done, indices)
    TaskRun(work, tasks, predictor, range_starts=assembler.range_starts(), checkpoints=checkpoints).execute()
    while misplaced := assembler.ranges_to_redo():
        redone = [plan.tasks[number] for number in sorted(misplaced)]
        TaskRun(work, redone, predictor, range_starts=dict(misplaced.values())).execute()
    for index in _without_failures(ledger, indices):
        ledger.store.delete(ledger.destination + plan.objects[index].failed)
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


def _without_failures(ledger: Ledger, indices: Collection[int]) -> set[int]:
    shards = [s for record in ledger.tasks().values() for s in record.shards]
    failed = {s.index for s in shards if s.counts.rows_failed or s.counts.objects_broken}
    return set(indices) - failed
