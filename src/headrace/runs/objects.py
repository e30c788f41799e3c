"""The objects of a run, and the names of their outputs.

A source as the user writes it (an object, a prefix, a glob, a manifest file or an event notification)
becomes `ObjectInfo`s, sorted by URI. A manifest keeps its order.
"""

import fnmatch
import os.path
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import orjson

from headrace.core.errors import ConfigError, EmptySourceError, NotFoundError
from headrace.formats.read import is_random_access, unreadable_reason
from headrace.protocols.object_events import ObjectEvent, object_events
from headrace.runs.open_table import DELTA, DELTA_LOG, ICEBERG, is_table, source_folder, table_files
from headrace.runs.output_settings import TABLES
from headrace.runs.records import LEDGER_FOLDER, PlannedObject
from headrace.runs.settings import DataType, RunSettings
from headrace.storage.contract import ObjectInfo
from headrace.storage.resolve import Stores
from headrace.storage.uri import HTTP_SCHEMES, absolute, parse

_GLOB_CHARACTERS = frozenset("*?[")
MANIFEST_SCHEME = "manifest:"


def select_objects(source: str | Sequence[str], stores: Stores) -> list[ObjectInfo]:
    """Return the objects of a source, as `iterate_objects` yields them."""
    return list(iterate_objects(source, stores))


def iterate_objects(source: str | Sequence[str], stores: Stores) -> Iterator[ObjectInfo]:
    """Yield the objects of a source while it is listed.

    A source is the URI of an object, a prefix that ends with ``/``, a glob
    (``s3://b/day-*/x-?.csv``; ``*`` also matches slashes), ``manifest:URI`` (a text file with one
    URI per line, or the JSON array ``[{"prefix": …}, "key", …]``), a table (``delta:FOLDER``,
    ``iceberg:CATALOG/NAMESPACE.TABLE``, with ``@VERSION`` for an older one), or a sequence of these. A folder
    with a Delta table is read as the table.

    Raises:
        EmptySourceError: The source has no objects.
        NotFoundError: The object does not exist.
        AccessDeniedError: The store denies access.
        ConfigError: The manifest is malformed.
    """
    if not isinstance(source, str):
        return iter(_unique(info for one in source for info in iterate_objects(one, stores)))
    if source.startswith(MANIFEST_SCHEME):
        return iter(_from_manifest(source.removeprefix(MANIFEST_SCHEME), stores))
    if is_table(source):
        return iter(table_files(source, stores))
    if _is_glob(source):
        return _from_glob(source, stores)
    if source.endswith("/"):
        return _from_prefix(source, stores)
    return _from_name(source, stores)


def _from_name(source: str, stores: Stores) -> Iterator[ObjectInfo]:
    store = stores.for_uri(source)
    try:
        found = store.head(source)
    except NotFoundError:
        # People often type the name of a folder without its slash.
        if next(filter(_is_readable, store.list(source + "/")), None) is None:
            raise
        yield from _from_prefix(source + "/", stores)
    else:
        yield found


def is_single_listing(source: str | Sequence[str], data_type: DataType) -> bool:
    """Return True for a source whose objects are the sorted listing of one name, prefix or glob."""
    if not isinstance(source, str):
        return len(source) == 1 and is_single_listing(source[0], data_type)
    return data_type != "manifest" and not source.startswith(MANIFEST_SCHEME) and not is_table(source)


def select_typed_objects(
    source: str | Sequence[str], stores: Stores, data_type: DataType
) -> list[ObjectInfo]:
    """Return the objects of a source, as `iterate_typed_objects` yields them."""
    return list(iterate_typed_objects(source, stores, data_type))


def iterate_typed_objects(
    source: str | Sequence[str], stores: Stores, data_type: DataType
) -> Iterator[ObjectInfo]:
    """Yield the objects of a source that is read as `data_type` says, while it is listed.

    "auto": by its form, as `iterate_objects` does. "prefix": all objects whose names begin with it.
    "manifest": those that the manifest file names. The errors are those of `iterate_objects`.
    """
    if data_type == "prefix":
        return _from_prefixes([source] if isinstance(source, str) else source, stores)
    if data_type == "manifest" and isinstance(source, str):
        source = MANIFEST_SCHEME + source.removeprefix(MANIFEST_SCHEME)
    return iterate_objects(source, stores)


def _from_prefixes(prefixes: Sequence[str], stores: Stores) -> Iterator[ObjectInfo]:
    listed = (i for p in prefixes for i in stores.for_uri(p).list(p) if _is_readable(i))
    found = iter(_unique(listed)) if len(prefixes) > 1 else listed
    return _not_empty(found, ", ".join(prefixes), "no object has this prefix: check it and the bucket")


def _not_empty(infos: Iterator[ObjectInfo], source: str, why: str) -> Iterator[ObjectInfo]:
    """Yield the objects. Raise EmptySourceError if there are none."""
    first = next(infos, None)
    if first is None:
        raise EmptySourceError(source, why)
    yield first
    yield from infos


def notice_objects(notice: bytes | str | Mapping[str, Any]) -> list[ObjectInfo]:
    """Return the created objects of an event notification, in its order, each once.

    Removals and test events name no objects.

    Raises:
        DataError: The format of the notification is unknown.
        LimitError: The notification is too large.
    """
    found = {(i.uri, i.etag): i for i in map(_event_object, object_events(notice))}
    return list(found.values())


def _event_object(event: ObjectEvent) -> ObjectInfo:
    # Stores quote ETags. With quotes, listings and notifications identify the same version.
    return ObjectInfo(event.uri, event.size_bytes, f'"{event.etag}"' if event.etag else "")


def source_covers(source: str | Sequence[str], uri: str) -> bool:
    """Return True if the source selects this URI by name. A manifest selects no URI by name."""
    if not isinstance(source, str):
        return any(source_covers(one, uri) for one in source)
    if source.startswith(MANIFEST_SCHEME) or is_table(source):
        return False
    if _is_glob(source):
        return fnmatch.fnmatchcase(uri, source)
    return uri == source or uri.startswith(source.rstrip("/") + "/")


def literal_prefix(source: str) -> str:
    """Return the part of a source before its first wildcard, or all of it without one."""
    if not _is_glob(source):
        return source
    return source[: min(source.index(c) for c in _GLOB_CHARACTERS if c in source)]


def _is_glob(source: str) -> bool:
    """Return True for a pattern. Web addresses are none: a question mark starts their query."""
    return not source.startswith(("http://", "https://")) and bool(_GLOB_CHARACTERS & set(source))


def _is_readable(info: ObjectInfo) -> bool:
    """Return False for folder markers, which are not objects to read."""
    return not info.uri.endswith("/")


def _from_prefix(prefix: str, stores: Stores) -> Iterator[ObjectInfo]:
    store = stores.for_uri(prefix)
    if next(store.list(prefix + DELTA_LOG), None) is not None:
        return iter(table_files(DELTA + prefix, stores))
    found = filter(_is_readable, store.list(prefix))
    return _not_empty(found, prefix, "no object has this prefix; check the spelling and the bucket")


def _from_glob(pattern: str, stores: Stores) -> Iterator[ObjectInfo]:
    """List from the last whole segment before the first wildcard, then match."""
    prefix = literal_prefix(pattern)
    if "/" not in prefix:
        prefix = ""
    store, is_empty = stores.for_uri(pattern), True
    for info in store.list(prefix or "./"):
        if _is_readable(info) and fnmatch.fnmatchcase(info.uri.removeprefix("./"), pattern):
            is_empty = False
            yield info
    if not is_empty:
        return
    try:
        yield store.head(pattern)  # an object name may contain wildcards
    except NotFoundError:
        raise EmptySourceError(pattern, "no object matches this pattern") from None


def _from_manifest(uri: str, stores: Stores) -> list[ObjectInfo]:
    text = stores.for_uri(uri).get(uri)
    names = _json_manifest(uri, text) if text.lstrip()[:1] == b"[" else _text_manifest(uri, text)
    if not names:
        raise EmptySourceError(uri, "the manifest names no objects")
    nested = next((name for name in names if name.startswith(MANIFEST_SCHEME)), None)
    if nested:
        raise ConfigError(f"{uri}: names another manifest, {nested}: list its objects instead")
    return _unique(info for name in names for info in iterate_objects(name, stores))


def _text_manifest(uri: str, text: bytes) -> list[str]:
    try:
        lines = [line.strip() for line in text.decode("utf-8-sig").splitlines()]
    except UnicodeDecodeError as error:
        raise ConfigError(f"{uri}: the manifest is not UTF-8 text, from byte {error.start} on") from error
    return [line for line in lines if line and not line.startswith("#")]


def _json_manifest(uri: str, text: bytes) -> list[str]:
    """Return the names of a manifest in SageMaker's format: a leading prefix, then keys below it."""
    try:
        entries: list[Any] = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"{uri}: the manifest starts like JSON but is invalid: {error}") from error
    prefix = ""
    names: list[str] = []
    for index, entry in enumerate(entries):
        if isinstance(entry, str):
            names.append(prefix + entry)
        elif index == 0 and (leading := _prefix_of(entry)) is not None:
            prefix = leading
        else:
            raise ConfigError(
                f"{uri}: manifest entry {index} is neither a string nor a leading {{'prefix': …}}"
            )
    return names


def _prefix_of(entry: Any) -> str | None:
    """Return the prefix of a manifest's leading ``{"prefix": …}``, or None."""
    if not isinstance(entry, dict):
        return None
    prefix = cast("dict[str, Any]", entry).get("prefix")
    return prefix if isinstance(prefix, str) else None


def _unique(infos: Iterable[ObjectInfo]) -> list[ObjectInfo]:
    """Return each object once, at its first mention."""
    return list({info.uri: info for info in infos}.values())


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

    def like(self, planned: PlannedObject) -> "OutputNames":
        """Return the rule by which this object has its name, as the first objects of a run have theirs."""
        uri, name = _normalized(planned.info.uri), planned.output.removesuffix(self.suffix)
        return replace(self, base=uri.removesuffix(name))


def select_infos(source: str | Sequence[str], stores: Stores, settings: RunSettings) -> list[ObjectInfo]:
    """Return the objects of a source, as `iterate_infos` yields them."""
    return list(iterate_infos(source, stores, settings))


def iterate_infos(source: str | Sequence[str], stores: Stores, settings: RunSettings) -> Iterator[ObjectInfo]:
    """Yield the objects of a source while it is listed, each after a check that it is readable.

    Raises EmptySourceError, NotFoundError and AccessDeniedError, and ConfigError for an object of
    an unreadable format.
    """
    for info in iterate_typed_objects(source, stores, settings.data_type):
        if not is_random_access(info.uri, settings.read) and (
            why := unreadable_reason(info.uri, settings.read)
        ):
            raise ConfigError(why)
        yield info


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


def _base(source: str | Sequence[str], infos: Sequence[ObjectInfo], data_type: DataType) -> str:
    """Return the folder that output names are relative to."""
    sources = [source] if isinstance(source, str) else list(source)
    if data_type == "prefix" and len(sources) == 1:
        return _folder(_normalized(sources[0]))
    if isinstance(source, str) and data_type == "auto" and not source.startswith((MANIFEST_SCHEME, ICEBERG)):
        named = _normalized(source_folder(source) or source).rstrip("/") + "/"
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
