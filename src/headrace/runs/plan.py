"""Plan a transform: its objects, the names of their outputs, and the tasks.

Input: a source and settings. Output: a `TransformPlan`. The same objects and settings always give
the same tasks, on any machine and for any number of workers.
"""

import os.path
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from headrace.core.errors import ConfigError, EmptySourceError
from headrace.formats.read import is_read_by_row_groups, text_format, unreadable_reason
from headrace.runs.objects import MANIFEST_SCHEME, literal_prefix, select_objects, source_covers
from headrace.runs.part_ledger import LEDGER_FOLDER
from headrace.runs.settings import TABLES, DataType, RunSettings, TaskSettings
from headrace.storage.contract import ObjectInfo
from headrace.storage.resolve import Stores
from headrace.storage.uri import HTTP_SCHEMES, absolute, parse

TASKS_AIM: Final = 16
"""The number of tasks that a small source is split into, for several workers."""
TASK_BYTES_MIN: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class PlannedObject:
    """An input object and its region, if known.

    Its output is ``DEST/`` + `output`, its failed records are ``DEST/`` + `failed`.
    """

    info: ObjectInfo
    output: str
    region: str | None = None

    @property
    def failed(self) -> str:
        """The name of the file of failed records, below the destination."""
        return self.output + ".failed"


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
class TransformPlan:
    """All objects in the order of the source, and their tasks."""

    objects: tuple[PlannedObject, ...]
    tasks: tuple[Task, ...]

    @property
    def nbytes(self) -> int:
        """The total size of all objects of known size in bytes."""
        return sum(o.info.size_bytes or 0 for o in self.objects)


def no_region(_: str) -> str | None:
    """Return None: no object has a known region."""
    return None


def make_plan(
    source: str | Sequence[str],
    destination: str,
    stores: Stores,
    settings: RunSettings,
    *,
    region_of: Callable[[str], str | None] = no_region,
) -> TransformPlan:
    """List the source and split the work into tasks.

    `region_of` maps an object's URI to its region.

    Raises EmptySourceError, NotFoundError and AccessDeniedError. Raises ConfigError for objects
    that cannot be read, that lie in the destination, or that would share one output name.
    """
    infos, base = _select(source, stores, settings)
    uris = (info.uri for info in infos if not is_read_by_row_groups(info.uri, settings.read))
    why = next(filter(None, (unreadable_reason(uri, settings.read) for uri in uris)), None)
    if why:
        raise ConfigError(why)
    suffix = f".out.{settings.output.format}" if settings.output.format in TABLES else ".out"
    objects = tuple(
        PlannedObject(info, _name(info.uri, base) + suffix, region_of(info.uri)) for info in infos
    )
    _check_no_overlap(source, settings.data_type, objects, destination)
    _check_unique_outputs(objects)
    return TransformPlan(objects, cut_tasks(objects, settings))


def _select(
    source: str | Sequence[str], stores: Stores, settings: RunSettings
) -> tuple[list[ObjectInfo], str]:
    """Return the objects, and the folder that output names are relative to."""
    if settings.data_type == "prefix":
        prefixes = [source] if isinstance(source, str) else list(source)
        found = {i.uri: i for p in prefixes for i in stores.for_uri(p).list(p) if not i.uri.endswith("/")}
        if not found:
            raise EmptySourceError(", ".join(prefixes), "no object has this prefix: check it and the bucket")
        infos = list(found.values())
        return infos, _folder(_normalized(prefixes[0])) if len(prefixes) == 1 else _common_folder(infos)
    if settings.data_type == "manifest" and isinstance(source, str):
        source = MANIFEST_SCHEME + source.removeprefix(MANIFEST_SCHEME)
    infos = select_objects(source, stores)
    if not isinstance(source, str) or source.startswith(MANIFEST_SCHEME):
        return infos, _common_folder(infos)
    named = _normalized(source).rstrip("/") + "/"
    if all(_normalized(i.uri).startswith(named) for i in infos):
        return infos, named  # a folder, with or without its slash
    return infos, _folder(_normalized(literal_prefix(source)))


def _normalized(uri: str) -> str:
    """Return a URI in its comparable form: web addresses without query, files as absolute paths."""
    location = parse(uri)
    if location.scheme == "file":
        return absolute(location.key or "./")
    return uri.partition("?")[0] if location.scheme in HTTP_SCHEMES else uri


def _folder(place: str) -> str:
    return place[: place.rfind("/") + 1]


def _common_folder(infos: Sequence[ObjectInfo]) -> str:
    # A prefix by characters is right: it is cut at a slash afterwards.
    return _folder(os.path.commonprefix([_folder(_normalized(i.uri)) for i in infos]))  # noqa: RUF071


def _name(uri: str, base: str) -> str:
    """Return an object's name below the base; for objects of several stores, without the scheme."""
    name = _normalized(uri).removeprefix(base)
    return name.rpartition("://")[2].lstrip("/")


def _check_no_overlap(
    source: str | Sequence[str], data_type: DataType, objects: Sequence[PlannedObject], destination: str
) -> None:
    """Raise ConfigError if the source contains the destination, now or after outputs are written."""
    output = _normalized(destination).rstrip("/") + "/"
    inside = next((o.info.uri for o in objects if _normalized(o.info.uri).startswith(output)), None)
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
    """Return True if a source selects objects of this URI.

    The entries of a manifest are not checked.
    """
    if data_type == "manifest" or source.startswith((MANIFEST_SCHEME, "http://", "https://")):
        return False
    if data_type == "prefix":
        return place.startswith(_normalized(source))
    return source_covers(_normalized(source), place)


def _check_unique_outputs(objects: Sequence[PlannedObject]) -> None:
    name, count = Counter(o.output for o in objects).most_common(1)[0]
    if count > 1:
        twins = [o.info.uri for o in objects if o.output == name]
        raise ConfigError(
            f"{twins[0]} and {twins[1]} would both be written to {name}: transform them "
            "separately, or choose a source folder above both"
        )


def cut_tasks(objects: Sequence[PlannedObject], settings: RunSettings) -> tuple[Task, ...]:
    """Return the tasks: groups of small objects, and ranges of large ones."""
    task_bytes = _task_bytes(objects, settings.tasks)
    groups = _groups(objects, settings, task_bytes)
    return tuple(
        Task(number, tuple(shards), objects[shards[0].index].region) for number, shards in enumerate(groups)
    )


def _task_bytes(objects: Sequence[PlannedObject], settings: TaskSettings) -> int:
    total = sum(o.info.size_bytes or 0 for o in objects)
    return min(settings.task_bytes, max(total // TASKS_AIM, TASK_BYTES_MIN))


def _groups(
    objects: Sequence[PlannedObject], settings: RunSettings, task_bytes: int
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


def _shards(index: int, info: ObjectInfo, settings: RunSettings, task_bytes: int) -> list[Shard]:
    size = info.size_bytes
    if size is None or size < 2 * task_bytes or not cuttable(info.uri, settings):
        return [Shard(index)]
    count = -(-size // task_bytes)
    edges = [size * number // count for number in range(count)]
    return [
        Shard(index, number, count, start, stop)
        for number, (start, stop) in enumerate(zip(edges, [*edges[1:], None], strict=True))
    ]


def cuttable(uri: str, settings: RunSettings) -> bool:
    """Return True if the object can be read in ranges and its output assembled from their outputs."""
    return settings.output.format not in TABLES and text_format(uri, settings.read) is not None
