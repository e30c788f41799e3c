"""Which objects a stream reads: a prefix, a glob, one object, or a manifest file; and in which order.

Arrives: a source as a user writes it. Leaves: `ObjectInfo`s, sorted by URI (a manifest keeps its own order).
"""

import fnmatch
from collections.abc import Iterable, Sequence
from typing import Any, cast

import orjson

from headrace.core.errors import ConfigError, EmptySourceError, NotFoundError
from headrace.formats.read import ReadOptions, unreadable
from headrace.storage.contract import ObjectInfo
from headrace.storage.resolve import Stores

_GLOB_CHARACTERS = frozenset("*?[")
MANIFEST_SCHEME = "manifest:"


def select_objects(source: str | Sequence[str], stores: Stores) -> list[ObjectInfo]:
    """The objects that `source` names.

    A source is an object's URI, a prefix that ends with ``/``, a glob (``s3://b/day-*/x-?.csv``; ``*`` also
    crosses slashes), ``manifest:URI`` (a text file of one URI a line, or the JSON array ``[{"prefix": …}, "key",
    …]``), or a sequence of such. Raises EmptySourceError, NotFoundError, AccessDeniedError, ConfigError.
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
        # A folder's name without its slash is what people type.
        found = [i for i in store.list(source + "/") if _wanted(i)]
        if found:
            return found
        raise


def plan_objects(source: str | Sequence[str], stores: Stores, read: ReadOptions) -> list[ObjectInfo]:
    """`select_objects`; and ConfigError when one could not be read: better now than after hours of scoring."""
    plan = select_objects(source, stores)
    why = next(filter(None, (unreadable(info.uri, read) for info in plan)), None)
    if why:
        raise ConfigError(why)
    return plan


def selects(source: str | Sequence[str], uri: str) -> bool:
    """Whether `source` covers an object of that URI, by name alone; a manifest covers nothing but itself names."""
    if not isinstance(source, str):
        return any(selects(one, uri) for one in source)
    if source.startswith(MANIFEST_SCHEME):
        return False
    if _is_glob(source):
        return fnmatch.fnmatchcase(uri, source)
    return uri == source or uri.startswith(source.rstrip("/") + "/")


def fixed_part(source: str) -> str:
    """What of a source stands before its first wildcard: all of it, where it is no glob."""
    if not _is_glob(source):
        return source
    return source[: min(source.index(c) for c in _GLOB_CHARACTERS if c in source)]


def _is_glob(source: str) -> bool:
    """Web addresses are none: they cannot be listed, and what follows a question mark there is a query."""
    return not source.startswith(("http://", "https://")) and bool(_GLOB_CHARACTERS & set(source))


def _wanted(info: ObjectInfo) -> bool:
    """Folder markers are no objects to read."""
    return not info.uri.endswith("/")


def _from_prefix(prefix: str, stores: Stores) -> list[ObjectInfo]:
    found = [i for i in stores.for_uri(prefix).list(prefix) if _wanted(i)]
    if not found:
        raise EmptySourceError(prefix, "no object has this prefix; check the spelling and the bucket")
    return found


def _from_glob(pattern: str, stores: Stores) -> list[ObjectInfo]:
    """List from the last whole segment before the first wildcard, then match."""
    prefix = fixed_part(pattern)
    if "/" not in prefix:
        prefix = ""
    listed = stores.for_uri(pattern).list(prefix or "./")
    found = [i for i in listed if _wanted(i) and fnmatch.fnmatchcase(i.uri.removeprefix("./"), pattern)]
    if found:
        return found
    try:
        return [stores.for_uri(pattern).head(pattern)]  # a name may have such characters
    except NotFoundError:
        raise EmptySourceError(pattern, "no object matches this pattern") from None


def _from_manifest(uri: str, stores: Stores) -> list[ObjectInfo]:
    text = stores.for_uri(uri).get(uri)
    names = _json_manifest(uri, text) if text.lstrip()[:1] == b"[" else _text_manifest(uri, text)
    if not names:
        raise EmptySourceError(uri, "the manifest names no objects")
    nested = next((name for name in names if name.startswith(MANIFEST_SCHEME)), None)
    if nested:
        raise ConfigError(f"{uri}: names another manifest, {nested}: name its objects instead")
    return _unique(info for name in names for info in select_objects(name, stores))


def _text_manifest(uri: str, text: bytes) -> list[str]:
    try:
        lines = [line.strip() for line in text.decode("utf-8-sig").splitlines()]
    except UnicodeDecodeError as error:
        raise ConfigError(f"{uri}: the manifest is not UTF-8 text, from byte {error.start} on") from error
    return [line for line in lines if line and not line.startswith("#")]


def _json_manifest(uri: str, text: bytes) -> list[str]:
    """The batch-transform vendor's shape: a first element with the prefix, then keys below it."""
    try:
        entries: list[Any] = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"{uri}: the manifest starts like JSON but is not: {error}") from error
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
    """The prefix of a manifest's leading ``{"prefix": …}``."""
    if not isinstance(entry, dict):
        return None
    prefix = cast("dict[str, Any]", entry).get("prefix")
    return prefix if isinstance(prefix, str) else None


def _unique(infos: Iterable[ObjectInfo]) -> list[ObjectInfo]:
    """Each object once, at its first mention."""
    return list({info.uri: info for info in infos}.values())
