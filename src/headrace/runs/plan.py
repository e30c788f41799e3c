"""Plan a run: its objects, as the ledger records them, and its tasks.

Input: the objects of a source, and settings. Output: a `Plan`, and the shards of it that a process
still has to read. The same objects and settings always give the same
tasks, on any machine and for any number of workers.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from headrace.core.errors import ResumeRefusedError
from headrace.formats.read import text_format
from headrace.reports.page import PAGE_NAME
from headrace.reports.report import REPORT_NAME
from headrace.runs.items import Cursor
from headrace.runs.ledger import Ledger
from headrace.runs.objects import check_separate, output_names, plan_objects
from headrace.runs.output_settings import TABLES
from headrace.runs.parts import PART_NAME
from headrace.runs.records import PlannedObject, ShardPosition, ShardRecord, TaskCheckpoint
from headrace.runs.settings import RunSettings
from headrace.storage.contract import ObjectInfo

TASKS_AIM: Final = 16
"""The number of tasks that a small source is split into, for several workers."""
TASK_BYTES_MIN: Final = 16 << 20
_log = logging.getLogger("headrace.runs")


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


@dataclass(frozen=True, slots=True)
class Plan:
    """All objects in the order of the source, and their tasks; without tasks, a run reads them in order."""

    objects: tuple[PlannedObject, ...] = ()
    tasks: tuple[Task, ...] = ()

    @property
    def nbytes(self) -> int:
        """The total size of all objects of known size in bytes."""
        return sum(o.info.size_bytes or 0 for o in self.objects)


def make_plan(
    plans: Sequence[Sequence[PlannedObject]], settings: RunSettings, *, by_tasks: bool = True
) -> Plan:
    """Return the plan of a run's plan files; without `by_tasks`, its objects are read in order.

    The tasks of a later file continue the numbers of the earlier ones.
    """
    tasks: list[Task] = []
    objects: list[PlannedObject] = []
    for some in plans:
        if by_tasks:
            tasks += _cut_tasks(some, settings, first=len(tasks), offset=len(objects))
        objects += some
    return Plan(tuple(objects), tuple(tasks))


def _cut_tasks(
    objects: Sequence[PlannedObject], settings: RunSettings, *, first: int, offset: int
) -> Iterator[Task]:
    """Yield the tasks: groups of small objects, and ranges of large ones.

    They are numbered from `first` on; the index of an object is its place plus `offset`.
    """
    total_bytes = sum(o.info.size_bytes or 0 for o in objects)
    task_bytes = min(settings.tasks.task_bytes, max(total_bytes // TASKS_AIM, TASK_BYTES_MIN))
    for number, shards in enumerate(_groups(objects, settings, task_bytes), first):
        region = objects[shards[0].index].region
        yield Task(number, tuple(replace(s, index=s.index + offset) for s in shards), region)


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
    """Return True if the object can be read in ranges and its output assembled from their outputs."""
    # A range does not know the numbers of its records in the object before the ranges before it are read.
    whole = settings.output.format in TABLES or settings.output.join == "position"
    return not whole and text_format(uri, settings.read) is not None


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


def list_objects(objects: Sequence[PlannedObject], start: Cursor) -> list[OpenShard]:
    """Return the objects from `start` on as shards of a run without tasks."""
    return [
        OpenShard(
            -1,
            Shard(index),
            ends_task=False,
            checkpoint=TaskCheckpoint.at(start.position) if index == start.index and start.position else None,
        )
        for index in range(start.index, len(objects))
    ]


class RunPlan:
    """The plan files of one destination. Used by one thread.

    Args:
        source: The source of the run.
        ledger: The ledger of the destination.
        settings: The settings of the run.
        region_of: A function from an object's URI to its region.
    """

    def __init__(
        self,
        source: str | Sequence[str],
        ledger: Ledger,
        settings: RunSettings,
        region_of: Callable[[str], str | None],
    ) -> None:
        self._source = source
        self._ledger = ledger
        self._settings = settings
        self._region_of = region_of
        self.files: list[list[PlannedObject]] = []
        """The objects of all plan files; none before the run is begun or loaded."""
        self._changed: dict[str, str] = {}
        """The objects that changed after they were scored, by URI, with their last ETag."""

    @property
    def objects(self) -> list[PlannedObject]:
        """All objects, in order."""
        return [planned for some in self.files for planned in some]

    def prepare(self, infos: Sequence[ObjectInfo]) -> list[PlannedObject]:
        """Return new objects with the names of their outputs.

        Raises ConfigError for objects that the run would overwrite or that share an output.
        """
        names, before = None, list[PlannedObject]()
        if self._settings.per_object:
            first = next((some for some in self.files if some), None)
            names = output_names(self._source, [o.info for o in first] if first else infos, self._settings)
            before = self.objects
        planned = plan_objects(infos, names, region_of=self._region_of)
        check_separate(self._source, self._ledger.destination, [*before, *planned], self._settings.data_type)
        return planned

    def add(self, planned: list[PlannedObject]) -> None:
        """Write prepared objects as a new plan file."""
        self._ledger.write_plan(len(self.files), planned)
        self.files.append(planned)

    def load(self) -> None:
        """Read the plan files of an earlier process."""
        self.files = self._ledger.plans()

    def check_unchanged(self, now: Sequence[ObjectInfo]) -> None:
        """Raise ResumeRefusedError, with the differences, unless the source is unchanged."""
        before = {planned.info.uri: planned.info for planned in self.objects}
        after = {info.uri: info for info in self._up_to_limit(now)}
        changed = [f"{uri} is new" for uri in after if uri not in before]
        changed += [f"{uri} is missing" for uri in before if uri not in after]
        changed += [
            f"{uri} has changed"
            for uri, info in before.items()
            if uri in after and (after[uri].etag, after[uri].size_bytes) != (info.etag, info.size_bytes)
        ]
        if changed:
            more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
            raise ResumeRefusedError(
                f"{self._ledger.destination}: the source has changed since the run started: "
                f"{'; '.join(changed[:3])}{more}. Restore it, or start again with --overwrite"
            )

    def _up_to_limit(self, infos: Sequence[ObjectInfo]) -> Sequence[ObjectInfo]:
        """Return the objects of the source without those after the last one that a limit plans."""
        last = self.objects[-1:]
        if not last or last[0].bound is None:
            return infos
        places = [place for place, info in enumerate(infos) if info.uri == last[0].info.uri]
        return infos[: places[0] + 1] if places else infos

    def unplanned(self, objects: Iterable[ObjectInfo]) -> list[ObjectInfo]:
        """Return the objects that are not planned yet, each once.

        A new version of an object is new to a stream. A transform leaves its output unchanged,
        because an output has one owner.
        """
        known = {(planned.info.uri, planned.info.etag) for planned in self.objects}
        fresh = {(i.uri, i.etag): i for i in objects if (i.uri, i.etag) not in known}
        if not self._settings.per_object:
            return list(fresh.values())
        uris = {uri for uri, _ in known}
        for uri, etag in fresh:
            if uri in uris and self._changed.get(uri) != etag:
                self._changed[uri] = etag
                _log.warning("%s has changed since it was scored: its output is unchanged", uri)
        return list({info.uri: info for info in fresh.values() if info.uri not in uris}.values())

    def without_own_output(self, infos: list[ObjectInfo]) -> list[ObjectInfo]:
        """Return the objects without the output that is about to be deleted."""
        own = {info.uri for info in self._own_objects()}
        return [info for info in infos if info.uri not in own]

    def _own_objects(self) -> list[ObjectInfo]:
        store = self._ledger.store
        return [
            *self.parts(),
            *store.list(self._ledger.uri("")),
            *store.list(self._ledger.destination + "_report."),
        ]

    def parts(self) -> Iterable[ObjectInfo]:
        """Yield the objects that have the name of a part, if the run writes parts."""
        if self._settings.per_object:
            return
        for info in self._ledger.store.list(f"{self._ledger.destination}part-"):
            if PART_NAME.fullmatch(info.uri.removeprefix(self._ledger.destination)):
                yield info

    def delete_output(self) -> None:
        """Delete the output of an earlier run, and nothing else."""
        store = self._ledger.store
        self._ledger.abandon()
        for planned in (one for some in self._ledger.plans() for one in some if one.output):
            for name in (planned.output, planned.partial, planned.failed):
                store.delete(self._ledger.destination + name)
        for info in list(self.parts()):
            store.delete(info.uri)
        for name in (REPORT_NAME, PAGE_NAME):
            store.delete(self._ledger.destination + name)
        self._ledger.delete()
