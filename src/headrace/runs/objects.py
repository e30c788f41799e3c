"""The objects of a run, from a prefix, a glob, one object, a manifest file or an event notification.

A source as the user writes it becomes `ObjectInfo`s, sorted by URI. A manifest keeps its order.
"""

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import orjson

from headrace.core.errors import ConfigError, EmptySourceError, NotFoundError
from headrace.protocols.object_events import ObjectEvent, object_events
from headrace.runs.settings import DataType
from headrace.storage.contract import ObjectInfo
from headrace.storage.resolve import Stores

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
