"""Plan a run: its objects, the names of their outputs, and the tasks.

Input: a source and settings. Output: a `Plan`. The same objects and settings always give the same
tasks, on any machine and for any number of workers.
"""

import os.path
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from headrace.core.errors import ConfigError
from headrace.formats.read import is_read_by_row_groups, text_format, unreadable_reason
from headrace.runs.objects import MANIFEST_SCHEME, literal_prefix, select_typed_objects, source_covers
from headrace.runs.settings import TABLES, DataType, RunSettings, TaskSettings
from headrace.storage.contract import ObjectInfo
from headrace.storage.resolve import Stores
from headrace.storage.uri import HTTP_SCHEMES, absolute, parse

LEDGER_FOLDER: Final = "_headrace"
TASKS_AIM: Final = 16
"""The number of tasks that a small source is split into, for several workers."""
TASK_BYTES_MIN: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class PlannedObject:
    """An input object and its region, if known.

    If the run writes an output for each object, it is ``DEST/`` + `output`, and its failed records
    are ``DEST/`` + `failed`. In a run that writes parts, both are empty.
    """

    info: ObjectInfo
    output: str = ""
    region: str | None = None

    @property
    def failed(self) -> str:
        """The name of the file of failed records, below the destination."""
        return f"{self.output}.failed" if self.output else ""


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

    objects: tuple[PlannedObject, ...]
    tasks: tuple[Task, ...] = ()

    @property
    def nbytes(self) -> int:
        """The total size of all objects of known size in bytes."""
        return sum(o.info.size_bytes or 0 for o in self.objects)


def no_region(_: str) -> str | None:
    """Return None: no object has a known region."""
    return None


@dataclass(frozen=True, slots=True)
class OutputNames:
    """The rule that names the output of each object: its name below `base`, and a suffix."""

    base: str
    suffix: str

    def name(self, uri: str) -> str:
        """Return the output of an object. For objects of several stores, the scheme is left out."""
        name = _normalized(uri).removeprefix(self.base).rpartition("://")[2].lstrip("/")
        return name + self.suffix


def select_infos(source: str | Sequence[str], stores: Stores, settings: RunSettings) -> list[ObjectInfo]:
    """Return the objects of a source after a check that all of them are readable.

    Raises EmptySourceError, NotFoundError and AccessDeniedError, and ConfigError for an object of
    an unreadable format: the check comes before hours of scoring.
    """
    infos = select_typed_objects(source, stores, settings.data_type)
    uris = (i.uri for i in infos if not is_read_by_row_groups(i.uri, settings.read))
    why = next(filter(None, (unreadable_reason(uri, settings.read) for uri in uris)), None)
    if why:
        raise ConfigError(why)
    return infos


def output_names(
    source: str | Sequence[str], infos: Sequence[ObjectInfo], settings: RunSettings
) -> OutputNames:
    """Return the rule for a source and its first objects."""
    suffix = f".out.{settings.output.format}" if settings.output.format in TABLES else ".out"
    return OutputNames(_base(source, infos, settings.data_type), suffix)


def plan_objects(
    infos: Iterable[ObjectInfo],
    names: OutputNames | None,
    *,
    region_of: Callable[[str], str | None] = no_region,
) -> list[PlannedObject]:
    """Return the objects with the names of their outputs (None: the run writes parts) and their regions.

    `region_of` maps an object's URI to its region.
    """
    return [PlannedObject(i, "" if names is None else names.name(i.uri), region_of(i.uri)) for i in infos]


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


def _base(source: str | Sequence[str], infos: Sequence[ObjectInfo], data_type: DataType) -> str:
    """Return the folder that output names are relative to."""
    sources = [source] if isinstance(source, str) else list(source)
    if data_type == "prefix" and len(sources) == 1:
        return _folder(_normalized(sources[0]))
    if isinstance(source, str) and data_type == "auto" and not source.startswith(MANIFEST_SCHEME):
        named = _normalized(source).rstrip("/") + "/"
        if infos and all(_normalized(info.uri).startswith(named) for info in infos):
            return named  # a folder, with or without its slash
        return _folder(_normalized(literal_prefix(source)))
    return _common_folder([info.uri for info in infos])


def _normalized(uri: str) -> str:
    """Return a URI in its comparable form: web addresses without query, files as absolute paths."""
    location = parse(uri)
    if location.scheme == "file":
        return absolute(location.key or "./")
    return uri.partition("?")[0] if location.scheme in HTTP_SCHEMES else uri


def _folder(place: str) -> str:
    return place[: place.rfind("/") + 1]


def _common_folder(uris: Sequence[str]) -> str:
    # A prefix by characters is right: it is cut at a slash afterwards.
    return _folder(os.path.commonprefix([_folder(_normalized(uri)) for uri in uris]))  # noqa: RUF071


def check_separate(
    source: str | Sequence[str], destination: str, objects: Sequence[PlannedObject], data_type: DataType
) -> None:
    """Raise ConfigError if the run would read what it writes, now or after outputs are written.

    If it writes an output for each object, also raise ConfigError for two objects of one output.
    """
    output = _normalized(destination).rstrip("/") + "/"
    inside = next((o.info.uri for o in objects if _normalized(o.info.uri).startswith(output)), None)
    if inside:
        raise ConfigError(
            f"{inside} is in the output {destination}: a run must not read what it writes. Choose a "
            "destination outside the source"
        )
    if not any(planned.output for planned in objects):
        return
    sources = [source] if isinstance(source, str) else source
    written = [f"{output}{LEDGER_FOLDER}/run.json", *(output + o.output for o in objects)]
    for one in sources:
        if any(_covers(one, data_type, uri) for uri in written):
            raise ConfigError(
                f"{destination} is in the source {one}: a run must not read what it writes. Choose a "
                "destination outside the source"
            )
    _check_unique_outputs(objects)


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


def _cut_tasks(
    objects: Sequence[PlannedObject], settings: RunSettings, *, first: int, offset: int
) -> Iterator[Task]:
    """Yield the tasks: groups of small objects, and ranges of large ones.

    They are numbered from `first` on; the index of an object is its place plus `offset`.
    """
    task_bytes = _task_bytes(objects, settings.tasks)
    for number, shards in enumerate(_groups(objects, settings, task_bytes), first):
        region = objects[shards[0].index].region
        yield Task(number, tuple(replace(s, index=s.index + offset) for s in shards), region)


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
