"""Plan a run: its objects, as the ledger records them, and its tasks.

Input: the objects of a source, and settings. Output: a `Plan`, and the shards of it that a process
still has to read. The same objects and settings always give the same
tasks, on any machine and for any number of workers.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from typing_extensions import override

from headrace.formats.read import format_name, is_random_access, text_format
from headrace.runs.items import Cursor
from headrace.runs.lazy_sequence import LazySequence
from headrace.runs.records import PlanHead, PlannedObject, ShardPosition, ShardRecord, TaskCheckpoint
from headrace.runs.settings import RunSettings

TASKS_AIM: Final = 16
"""The number of tasks that a small source is split into, for several workers."""
TASK_BYTES_MIN: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Shard:
    """An object of the plan, or one of its ranges.

    `index` is the object's place in the plan, `number` the range's among `count`. The range has the
    bytes from `start` to `stop`.
    """

    index: int
    number: int = 0
    count: int = 1
    start: int = 0
    stop: int | None = None

    @property
    def is_whole(self) -> bool:
        """True if the shard is its whole object."""
        return self.count == 1

    @property
    def ends_object(self) -> bool:
        """True if the shard is the last of its object."""
        return self.number == self.count - 1


@dataclass(frozen=True, slots=True)
class Task:
    """Consecutive shards of one region that a worker scores as a unit."""

    number: int
    shards: tuple[Shard, ...]
    region: str | None = None

    @property
    def is_range(self) -> bool:
        """True if the task is a range of an object. Such a task has no other shard."""
        return not self.shards[0].is_whole


@dataclass(frozen=True, slots=True)
class Plan:
    """All objects in the order of the source, and their tasks; without tasks, a run reads them in order.

    `heads` are those of the pages that the objects and tasks are read from, none for a plan in memory.
    """

    objects: Sequence[PlannedObject] = ()
    tasks: Sequence[Task] = ()
    heads: tuple[PlanHead, ...] = ()

    @property
    def nbytes(self) -> int:
        """The total size of all objects of known size in bytes."""
        return self.bytes_before(len(self.objects))

    def bytes_before(self, index: int) -> int:
        """Return the total size of the objects of known size before an object, in bytes."""
        first = nbytes = 0
        for head in self.heads:
            if first + head.objects > index:
                break
            first, nbytes = first + head.objects, nbytes + head.nbytes
        return nbytes + sum(self.objects[place].info.size_bytes or 0 for place in range(first, index))

    def pages(self) -> Iterator[tuple[PlanHead, range]]:
        """Yield the head of each page and the numbers of its tasks; a plan in memory has one page."""
        first = 0
        for head in self.heads or (PlanHead(len(self.objects), len(self.tasks), self.nbytes, True),):
            yield head, range(first, first + head.tasks) if self.tasks else range(0)
            first += head.tasks

    def range_tasks(self) -> Iterator[Task]:
        """Yield the tasks that are ranges of objects."""
        for head, numbers in self.pages():
            for number in numbers if head.has_ranges else ():
                if self.tasks[number].is_range:
                    yield self.tasks[number]


def cut_tasks(
    objects: Sequence[PlannedObject], settings: RunSettings, *, first: int = 0, offset: int = 0
) -> Iterator[Task]:
    """Yield the tasks of the objects of a page: groups of small objects, and ranges of large ones.

    They are numbered from `first` on; the index of an object is its place plus `offset`.
    """
    total_bytes = sum(o.info.size_bytes or 0 for o in objects)
    task_bytes = min(settings.tasks.task_bytes, max(total_bytes // TASKS_AIM, TASK_BYTES_MIN))
    for number, shards in enumerate(_groups(objects, settings, task_bytes), first):
        region = objects[shards[0].index].region
        yield Task(number, tuple(replace(s, index=s.index + offset) if offset else s for s in shards), region)


def _groups(
    objects: Sequence[PlannedObject], settings: RunSettings, task_bytes: int
) -> Iterator[list[Shard]]:
    group: list[Shard] = []
    group_bytes = 0
    for index, planned in enumerate(objects):
        shards = _shards(index, planned, settings, task_bytes)
        size = planned.info.size_bytes
        full = group_bytes >= task_bytes or len(group) >= settings.tasks.task_objects_max
        elsewhere = bool(group) and objects[index - 1].region != planned.region
        if group and (full or elsewhere or len(shards) > 1 or size is None):
            yield group
            group, group_bytes = [], 0
        if len(shards) > 1:
            yield from ([shard] for shard in shards)
            continue
        group += shards
        group_bytes += task_bytes if size is None else size
    if group:
        yield group


def _shards(index: int, planned: PlannedObject, settings: RunSettings, task_bytes: int) -> list[Shard]:
    size = planned.info.size_bytes
    # A bound counts records from the start of the object.
    is_small = size is None or size < 2 * task_bytes or planned.bound is not None
    if size is None or is_small or not cuttable(planned.info.uri, settings):
        return [Shard(index)]
    count = -(-size // task_bytes)
    edges = [size * number // count for number in range(count)]
    return [
        Shard(index, number, count, start, stop)
        for number, (start, stop) in enumerate(zip(edges, [*edges[1:], None], strict=True))
    ]


def cuttable(uri: str, settings: RunSettings) -> bool:
    """Return True if the object can be read in ranges and its output assembled from their outputs.

    A range of Parquet has the row groups that begin in it.
    """
    if settings.output.is_written_whole:
        return False
    if text_format(uri, settings.read) is not None:
        # A range of text does not know the numbers of its records before the ranges before it are read.
        return settings.output.join != "position"
    return is_random_access(uri, settings.read) and format_name(uri, settings.read) == "parquet"


@dataclass(frozen=True, slots=True)
class OpenShard:
    """A shard that this process reads.

    `checkpoint` is that of the task, attached to its first open shard. A run without tasks has the
    task number -1.
    """

    task: int
    shard: Shard
    ends_task: bool
    checkpoint: TaskCheckpoint | None = None

    @property
    def resume(self) -> TaskCheckpoint | None:
        """The checkpoint, if it lies within this shard."""
        return self.checkpoint if self.checkpoint is not None and self.checkpoint.is_inside else None

    @property
    def done(self) -> tuple[ShardRecord, ...]:
        """The finished shards of the task before this one."""
        return () if self.checkpoint is None else self.checkpoint.done


@dataclass(frozen=True, slots=True)
class ShardEnd:
    """The end of a shard: its `entries` (records and failures) are all read.

    `index` is its place among the open shards. `begin` and `end` are set for ranges only. A broken
    object has no `end`; an object that is not text has neither.
    """

    open_shard: int
    entries: int
    begin: ShardPosition | None = None
    end: ShardPosition | None = None
    relative: bool = False


def list_open_shards(tasks: Sequence[Task], checkpoints: Mapping[int, TaskCheckpoint]) -> list[OpenShard]:
    """Return the unfinished shards of these tasks."""
    open_shards: list[OpenShard] = []
    for task in tasks:
        checkpoint = checkpoints.get(task.number)
        done = len(checkpoint.done) if checkpoint else 0
        for place, shard in enumerate(task.shards[done:], done):
            ends_task = place == len(task.shards) - 1
            open_shards.append(
                OpenShard(task.number, shard, ends_task, checkpoint if place == done else None)
            )
    return open_shards


class ObjectShards(LazySequence[OpenShard]):
    """The objects from `start` on as shards of a run without tasks, each made when it is used.

    Iterating ends with `objects`, which may grow meanwhile.
    """

    def __init__(self, objects: Sequence[PlannedObject], start: Cursor) -> None:
        self._objects = objects
        self._start = start

    @override
    def __len__(self) -> int:
        return max(len(self._objects) - self._start.index, 0)

    @override
    def item(self, index: int) -> OpenShard:
        number, start = index + self._start.index, self._start
        self._objects[number]  # raises IndexError after the last object
        resumes = number == start.index and start.position is not None
        checkpoint = TaskCheckpoint.at(start.position) if resumes and start.position is not None else None
        return OpenShard(-1, Shard(number), ends_task=False, checkpoint=checkpoint)
