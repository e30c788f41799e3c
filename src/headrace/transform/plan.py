"""What a transform does: which objects, what each one's output is called, and how the work is cut into tasks.

Arrives: a source and settings. Leaves: a `TransformPlan`, which depends on nothing else: the same objects and settings
give the same tasks, wherever and by however many workers they are done.
"""

import posixpath
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from headrace.core.errors import ConfigError, EmptySourceError
from headrace.formats.read import by_row_groups, text_format, unreadable
from headrace.pipeline.plan import MANIFEST_SCHEME, fixed_part, select_objects
from headrace.storage.contract import ObjectInfo
from headrace.storage.resolve import Stores
from headrace.storage.uri import absolute
from headrace.transform.settings import TABLES, TaskSettings, TransformSettings

TASKS_AIM: Final = 16
"""A small source is cut into about so many tasks, so that there is something for several workers."""
TASK_BYTES_MIN: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class PlannedObject:
    """One input. Its output is ``DEST/`` + `output`, what failed of it ``DEST/`` + `failed`."""

    info: ObjectInfo
    output: str

    @property
    def failed(self) -> str:
        """Where its failed records are, below the destination."""
        return self.output + ".failed"


@dataclass(frozen=True, slots=True)
class Shard:
    """Object `index` of the plan, or range `number` of the `of` that it is cut into: bytes `start` to `stop`."""

    index: int
    number: int = 0
    of: int = 1
    start: int = 0
    stop: int | None = None

    @property
    def whole(self) -> bool:
        """Whether it is all of its object."""
        return self.of == 1


@dataclass(frozen=True, slots=True)
class Task:
    """Consecutive shards, done by one worker in one go."""

    number: int
    shards: tuple[Shard, ...]


@dataclass(frozen=True, slots=True)
class TransformPlan:
    """All objects, in the order of the source, and the tasks that they make."""

    objects: tuple[PlannedObject, ...]
    tasks: tuple[Task, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all objects whose size is known."""
        return sum(o.info.size_bytes or 0 for o in self.objects)


def make_plan(
    source: str | Sequence[str], destination: str, stores: Stores, settings: TransformSettings
) -> TransformPlan:
    """Look at the source and cut the work.

    Raises EmptySourceError, NotFoundError and AccessDeniedError; ConfigError for objects that could not be read, that
    lie in the destination, or of which two would have the same output.
    """
    infos, base = _select(source, stores, settings)
    asked = (info.uri for info in infos if not by_row_groups(info.uri, settings.read))
    why = next(filter(None, (unreadable(uri, settings.read) for uri in asked)), None)
    if why:
        raise ConfigError(why)
    _refuse_loop(infos, destination)
    suffix = f".out.{settings.output.accept}" if settings.output.accept in TABLES else ".out"
    objects = tuple(PlannedObject(info, _name(info.uri, base) + suffix) for info in infos)
    _refuse_twins(objects)
    return TransformPlan(objects, cut_tasks(objects, settings))


def _select(
    source: str | Sequence[str], stores: Stores, settings: TransformSettings
) -> tuple[list[ObjectInfo], str]:
    """The objects, and the folder that their outputs' names are relative to."""
    if settings.data_type == "prefix":
        prefixes = [source] if isinstance(source, str) else list(source)
        found = [i for p in prefixes for i in stores.for_uri(p).list(p) if not i.uri.endswith("/")]
        if not found:
            raise EmptySourceError(", ".join(prefixes), "no object's name begins so; check it and the bucket")
        return found, _folder(prefixes[0]) if len(prefixes) == 1 else _common_folder(found)
    if settings.data_type == "manifest" and isinstance(source, str):
        source = MANIFEST_SCHEME + source.removeprefix(MANIFEST_SCHEME)
    infos = select_objects(source, stores)
    if not isinstance(source, str) or source.startswith(MANIFEST_SCHEME):
        return infos, _common_folder(infos)
    base = _folder(fixed_part(source))
    named = source.rstrip("/") + "/"
    # A folder's name without its slash.
    return infos, named if all(i.uri.startswith(named) for i in infos) else base


def _folder(uri: str) -> str:
    return uri[: uri.rfind("/") + 1]


def _common_folder(infos: Sequence[ObjectInfo]) -> str:
    folders = [_folder(i.uri) for i in infos]
    first, last = min(folders), max(folders)
    alike = next((n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    return _folder(first[:alike] + ("" if alike < len(first) else "/")) if first != last else first


def _name(uri: str, base: str) -> str:
    """An object's name below the base; of a web address without its query."""
    name = uri.removeprefix(base)
    if uri.startswith(("http://", "https://")):
        name = name.partition("?")[0]
    return name.lstrip("/") or posixpath.basename(uri)


def _refuse_loop(infos: Sequence[ObjectInfo], destination: str) -> None:
    output = absolute(destination)
    inside = next((i.uri for i in infos if absolute(i.uri).startswith(output)), None)
    if inside:
        raise ConfigError(
            f"{inside} lies in the output {destination}: a transform must not read what it writes. Choose a "
            "destination outside the source"
        )


def _refuse_twins(objects: Sequence[PlannedObject]) -> None:
    name, count = Counter(o.output for o in objects).most_common(1)[0]
    if count > 1:
        twins = [o.info.uri for o in objects if o.output == name]
        raise ConfigError(
            f"{twins[0]} and {twins[1]} would both be written to {name}: transform them apart, or name a source above "
            "both"
        )


def cut_tasks(objects: Sequence[PlannedObject], settings: TransformSettings) -> tuple[Task, ...]:
    """Tasks of objects put together, and of ranges of large ones."""
    task_bytes = _task_bytes(objects, settings.tasks)
    groups = _groups(objects, settings, task_bytes)
    return tuple(Task(number, tuple(shards)) for number, shards in enumerate(groups))


def _task_bytes(objects: Sequence[PlannedObject], settings: TaskSettings) -> int:
    total = sum(o.info.size_bytes or 0 for o in objects)
    return min(settings.task_bytes, max(total // TASKS_AIM, TASK_BYTES_MIN))


def _groups(
    objects: Sequence[PlannedObject], settings: TransformSettings, task_bytes: int
) -> Iterator[list[Shard]]:
    group: list[Shard] = []
    group_bytes = 0
    for index, planned in enumerate(objects):
        shards = _shards(index, planned.info, settings, task_bytes)
        size = planned.info.size_bytes
        full = group_bytes >= task_bytes or len(group) >= settings.tasks.task_objects_max
        if group and (full or len(shards) > 1 or size is None):
            yield group
            group, group_bytes = [], 0
        if len(shards) > 1:
            yield from ([shard] for shard in shards)
            continue
        group += shards
        group_bytes += task_bytes if size is None else size
    if group:
        yield group


def _shards(index: int, info: ObjectInfo, settings: TransformSettings, task_bytes: int) -> list[Shard]:
    size = info.size_bytes
    if size is None or size < 2 * task_bytes or not cuttable(info.uri, settings):
        return [Shard(index)]
    count = -(-size // task_bytes)
    edges = [size * number // count for number in range(count)]
    return [
        Shard(index, number, count, start, stop)
        for number, (start, stop) in enumerate(zip(edges, [*edges[1:], None], strict=True))
    ]


def cuttable(uri: str, settings: TransformSettings) -> bool:
    """Whether an object can be read in ranges, and its output be put together of theirs."""
    return settings.output.accept not in TABLES and text_format(uri, settings.read) is not None
