"""Objects of a finished transform, done again whole: what broke, what was withheld, and tables, which nothing can be put into.

Arrives: which objects. Leaves: their outputs and the records of their tasks anew; the other objects of the same tasks are left
alone. A process may die anywhere: the ledger says what is under way, and the next does it again.
"""

import logging
from collections.abc import Collection
from dataclasses import replace

from headrace.core.errors import NotFoundError
from headrace.core.predictor import Predictor
from headrace.storage.contract import ObjectInfo
from headrace.storage.resolve import Stores
from headrace.transforms.assembler import Assembler
from headrace.transforms.ledger import TransformLedger
from headrace.transforms.plan import Task, TransformPlan
from headrace.transforms.records import Checkpoint, TaskRecord
from headrace.transforms.work import TaskRun, Work

_log = logging.getLogger("headrace.transform")


def object_now(stores: Stores, info: ObjectInfo) -> ObjectInfo | None:
    """An object as it is now: `info` itself where it has not changed, None where it is gone."""
    try:
        found = stores.for_uri(info.uri).head(info.uri)
    except NotFoundError:
        return None
    same = found.size_bytes == info.size_bytes and (not info.etag or found.etag == info.etag)
    return info if same else replace(found, uri=info.uri)


def to_do_again(
    ledger: TransformLedger,
    plan: TransformPlan,
    stores: Stores,
    wanted: Collection[int],
    broken: Collection[int],
) -> tuple[set[int], TransformPlan]:
    """Those of the `wanted` objects that can be done again, and the plan with what is read of them.

    An object that was `broken` is taken as it is now, since it may have been repaired; but of one that was read in ranges
    the size must be the same. Others must be what they were: else they stay as they are, and a warning is logged.
    """
    ranges = {s.index for task in plan.tasks for s in task.shards if not s.whole}
    objects = list(plan.objects)
    found: set[int] = set()
    for index in sorted(wanted):
        info = objects[index].info
        now = object_now(stores, info)
        if now is None:
            _log.warning("%s is gone, and stays as it is in the output", info.uri)
        elif now is info:
            found.add(index)
        elif index in broken and (index not in ranges or now.size_bytes == info.size_bytes):
            ledger.renew(index, now)
            objects[index] = replace(objects[index], info=now)
            found.add(index)
        else:
            _log.warning(
                "%s is another object now, and stays as it is in the output: to take it as it is, transform anew with "
                "--overwrite",
                info.uri,
            )
    return found, TransformPlan(tuple(objects), plan.tasks)


def do_again(work: Work, predictor: Predictor, indices: Collection[int]) -> None:
    """Do the objects again. `work` must say that it replaces; its plan, what is read."""
    ledger, plan = work.ledger, work.plan
    ledger.begin_again(indices)
    for index in indices:
        ledger.forget_object(index)
    done = ledger.tasks()
    tasks = [task for task in plan.tasks if any(s.index in indices for s in task.shards)]
    kept = [record for record in done.values() if not any(s.index in indices for s in record.shards)]
    assembler = Assembler(ledger, plan, work.settings, kept)
    work = replace(work, on_task=assembler.done)
    tasks, checkpoints = _without_the_others(tasks, done, indices)
    TaskRun(work, tasks, predictor, begins=assembler.begins(), checkpoints=checkpoints).execute()
    while wrong := assembler.wrong():
        redone = [plan.tasks[number] for number in sorted(wrong)]
        TaskRun(work, redone, predictor, begins=dict(wrong.values())).execute()
    for index in _without_failures(ledger, indices):
        ledger.store.delete(ledger.destination + plan.objects[index].failed)
    ledger.end_again()


def _without_the_others(
    tasks: list[Task], done: dict[int, TaskRecord], indices: Collection[int]
) -> tuple[list[Task], dict[int, Checkpoint]]:
    """Tasks of which all but these objects are done, as their checkpoints say."""
    cut: list[Task] = []
    checkpoints: dict[int, Checkpoint] = {}
    for task in tasks:
        others = [s for s in task.shards if s.index not in indices]
        again = [s for s in task.shards if s.index in indices]
        records = {(s.index, s.number): s for s in done[task.number].shards}
        cut.append(Task(task.number, (*others, *again)))
        checkpoints[task.number] = Checkpoint(task.number, tuple(records[s.index, s.number] for s in others))
    return cut, checkpoints


def _without_failures(ledger: TransformLedger, indices: Collection[int]) -> set[int]:
    shards = [s for record in ledger.tasks().values() for s in record.shards]
    failed = {s.index for s in shards if s.counts.rows_failed or s.counts.objects_broken}
    return set(indices) - failed
