"""What a transform does: which objects, what each one's output is called, and how the work is cut into tasks.

Arrives: a source and settings. Leaves: a `TransformPlan`, which depends on nothing else: the same objects and settings
give the same tasks, wherever and by however many workers they are done.
"""

import os.path
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from headrace.core.errors import ConfigError, EmptySourceError
from headrace.formats.read import by_row_groups, text_format, unreadable
from headrace.pipeline.ledger import LEDGER_FOLDER
from headrace.pipeline.plan import MANIFEST_SCHEME, fixed_part, select_objects, selects
from headrace.storage.contract import ObjectInfo
from headrace.storage.resolve import Stores
from headrace.storage.uri import HTTP_SCHEMES, absolute, parse
from headrace.transforms.settings import TABLES, DataType, TaskSettings, TransformSettings

TASKS_AIM: Final = 16
"""A small source is cut into about so many tasks, so that there is something for several workers."""
TASK_BYTES_MIN: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class PlannedObject:
    """One input, and the region that it lies in, where that is known.

    Its output is ``DEST/`` + `output`, what failed of it ``DEST/`` + `failed`.
    """

    info: ObjectInfo
    output: str
    region: str | None = None

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

    @property
    def ends_object(self) -> bool:
        """Whether nothing of its object is behind it."""
        return self.number == self.of - 1


@dataclass(frozen=True, slots=True)
class Task:
    """Consecutive shards, all in one region, done by one worker in one go."""

    number: int
    shards: tuple[Shard, ...]
    region: str | None = None


@dataclass(frozen=True, slots=True)
class TransformPlan:
    """All objects, in the order of the source, and the tasks that they make."""

    objects: tuple[PlannedObject, ...]
    tasks: tuple[Task, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all objects whose size is known."""
        return sum(o.info.size_bytes or 0 for o in self.objects)


def nowhere(_: str) -> str | None:
    """Nobody knows where an object lies."""
    return None


def make_plan(
    source: str | Sequence[str],
    destination: str,
    stores: Stores,
    settings: TransformSettings,
    *,
    region_of: Callable[[str], str | None] = nowhere,
) -> TransformPlan:
    """Look at the source and cut the work; `region_of` says where an object lies, by its URI.

    Raises EmptySourceError, NotFoundError and AccessDeniedError; ConfigError for objects that could not be read, that
    lie in the destination, or of which two would have the same output.
    """
    infos, base = _select(source, stores, settings)
    asked = (info.uri for info in infos if not by_row_groups(info.uri, settings.read))
    why = next(filter(None, (unreadable(uri, settings.read) for uri in asked)), None)
    if why:
        raise ConfigError(why)
    suffix = f".out.{settings.output.accept}" if settings.output.accept in TABLES else ".out"
    objects = tuple(
        PlannedObject(info, _name(info.uri, base) + suffix, region_of(info.uri)) for info in infos
    )
    _refuse_loop(source, settings.data_type, objects, destination)
    _refuse_twins(objects)
    return TransformPlan(objects, cut_tasks(objects, settings))


def _select(
    source: str | Sequence[str], stores: Stores, settings: TransformSettings
) -> tuple[list[ObjectInfo], str]:
    """The objects, and the folder (a place) that their outputs' names are relative to."""
    if settings.data_type == "prefix":
        prefixes = [source] if isinstance(source, str) else list(source)
        found = {i.uri: i for p in prefixes for i in stores.for_uri(p).list(p) if not i.uri.endswith("/")}
        if not found:
            raise EmptySourceError(", ".join(prefixes), "no object's name begins so; check it and the bucket")
        infos = list(found.values())
        return infos, _folder(_place(prefixes[0])) if len(prefixes) == 1 else _common_folder(infos)
    if settings.data_type == "manifest" and isinstance(source, str):
        source = MANIFEST_SCHEME + source.removeprefix(MANIFEST_SCHEME)
    infos = select_objects(source, stores)
    if not isinstance(source, str) or source.startswith(MANIFEST_SCHEME):
        return infos, _common_folder(infos)
    named = _place(source).rstrip("/") + "/"
    if all(_place(i.uri).startswith(named) for i in infos):
        return infos, named  # a folder, with or without its slash
    return infos, _folder(_place(fixed_part(source)))


def _place(uri: str) -> str:
    """A URI as it is named and compared: a web address without its query, a file by its one absolute path."""
    location = parse(uri)
    if location.scheme == "file":
        return absolute(location.key or "./")
    return uri.partition("?")[0] if location.scheme in HTTP_SCHEMES else uri


def _folder(place: str) -> str:
    return place[: place.rfind("/") + 1]


def _common_folder(infos: Sequence[ObjectInfo]) -> str:
    # Character by character is right: what is cut off after a slash is a folder again.
    return _folder(os.path.commonprefix([_folder(_place(i.uri)) for i in infos]))  # noqa: RUF071


def _name(uri: str, base: str) -> str:
    """An object's name below the base; of objects in several stores without their schemes."""
    name = _place(uri).removeprefix(base)
    return name.rpartition("://")[2].lstrip("/")


def _refuse_loop(
    source: str | Sequence[str], data_type: DataType, objects: Sequence[PlannedObject], destination: str
) -> None:
    """Not now, and not when it is looked at again, to resume it."""
    output = _place(destination).rstrip("/") + "/"
    inside = next((o.info.uri for o in objects if _place(o.info.uri).startswith(output)), None)
    if inside:
        raise ConfigError(
            f"{inside} lies in the output {destination}: a transform must not read what it writes. Choose a "
            "destination outside the source"
        )
    sources = [source] if isinstance(source, str) else source
    written = [f"{output}{LEDGER_FOLDER}/run.json", *(output + o.output for o in objects)]
    for one in sources:
        if any(_covers(one, data_type, uri) for uri in written):
            raise ConfigError(
                f"{destination} lies in the source {one}: a transform must not read what it writes. Choose a "
                "destination outside the source"
            )


def _covers(source: str, data_type: DataType, place: str) -> bool:
    """Whether a source would have an object of that place; what a manifest names is not looked at."""
    if data_type == "manifest" or source.startswith((MANIFEST_SCHEME, "http://", "https://")):
        return False
    if data_type == "prefix":
        return place.startswith(_place(source))
    return selects(_place(source), place)


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
    return tuple(
        Task(number, tuple(shards), objects[shards[0].index].region) for number, shards in enumerate(groups)
    )


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
