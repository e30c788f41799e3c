"""The objects of a run, and the names of their outputs.

A source as the user writes it (an object, a prefix, a glob, a manifest file or an event notification)
becomes `ObjectInfo`s, sorted by URI. A manifest keeps its order.
"""

import fnmatch
import os.path
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import orjson

from headrace.core.errors import ConfigError, EmptySourceError, NotFoundError
from headrace.formats.read import is_read_by_row_groups, unreadable_reason
from headrace.protocols.object_events import ObjectEvent, object_events
from headrace.runs.output_settings import TABLES
from headrace.runs.records import LEDGER_FOLDER, PlannedObject
from headrace.runs.settings import DataType, RunSettings
from headrace.storage.contract import ObjectInfo
from headrace.storage.resolve import Stores
from headrace.storage.uri import HTTP_SCHEMES, absolute, parse

_GLOB_CHARACTERS = frozenset("*?[")
MANIFEST_SCHEME = "manifest:"


def select_objects(source: str | Sequence[str], stores: Stores) -> list[ObjectInfo]:
    """Return the objects of a source.

    A source is the URI of an object, a prefix that ends with ``/``, a glob
    (``s3://b/day-*/x-?.csv``; ``*`` also matches slashes), ``manifest:URI`` (a text file with one
    URI per line, or the JSON array ``[{"prefix": …}, "key", …]``), or a sequence of these.

    Raises:
        EmptySourceError: The source has no objects.
        NotFoundError: The object does not exist.
        AccessDeniedError: The store denies access.
        ConfigError: The manifest is malformed.
    """
    if not isinstance(source, str):
        return _unique(info for one in source for info in select_objects(one, stores))
    if source.startswith(MANIFEST_SCHEME):
        return _from_manifest(source.removeprefix(MANIFEST_SCHEME), stores)
    store = stores.for_uri(source)
    if _is_glob(source):
        return _from_glob(source, stores)
    if source.endswith("/"):
        return _from_prefix(source, stores)
    try:
        return [store.head(source)]
    except NotFoundError:
        # People often type the name of a folder without its slash.
        found = [i for i in store.list(source + "/") if _is_readable(i)]
        if found:
            return found
        raise


def select_typed_objects(
    source: str | Sequence[str], stores: Stores, data_type: DataType
) -> list[ObjectInfo]:
    """Return the objects of a source that is read as `data_type` says.

    "auto": by its form, as `select_objects` does. "prefix": all objects whose names begin with it.
    "manifest": those that the manifest file names. The errors are those of `select_objects`.
    """
    if data_type == "prefix":
        prefixes = [source] if isinstance(source, str) else list(source)
        found = _unique(i for p in prefixes for i in stores.for_uri(p).list(p) if _is_readable(i))
        if not found:
            raise EmptySourceError(", ".join(prefixes), "no object has this prefix: check it and the bucket")
        return found
    if data_type == "manifest" and isinstance(source, str):
        source = MANIFEST_SCHEME + source.removeprefix(MANIFEST_SCHEME)
    return select_objects(source, stores)


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
    if source.startswith(MANIFEST_SCHEME):
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


def _from_prefix(prefix: str, stores: Stores) -> list[ObjectInfo]:
    found = [i for i in stores.for_uri(prefix).list(prefix) if _is_readable(i)]
    if not found:
        raise EmptySourceError(prefix, "no object has this prefix; check the spelling and the bucket")
    return found


def _from_glob(pattern: str, stores: Stores) -> list[ObjectInfo]:
    """List from the last whole segment before the first wildcard, then match."""
    prefix = literal_prefix(pattern)
    if "/" not in prefix:
        prefix = ""
    listed = stores.for_uri(pattern).list(prefix or "./")
    found = [i for i in listed if _is_readable(i) and fnmatch.fnmatchcase(i.uri.removeprefix("./"), pattern)]
    if found:
        return found
    try:
        return [stores.for_uri(pattern).head(pattern)]  # an object name may contain wildcards
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
    return _unique(info for name in names for info in select_objects(name, stores))


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


def select_infos(source: str | Sequence[str], stores: Stores, settings: RunSettings) -> list[ObjectInfo]:
    """Return the objects of a source after a check that all of them are readable.

    Raises EmptySourceError, NotFoundError and AccessDeniedError, and ConfigError for an object of
    an unreadable format: the check comes before hours of scoring.
    """
    infos = select_typed_objects(source, stores, settings.data_type)
    for info in infos:
        if is_read_by_row_groups(info.uri, settings.read):
            continue
        if why := unreadable_reason(info.uri, settings.read):
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
