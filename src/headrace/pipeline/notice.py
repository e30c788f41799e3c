"""Event notices as objects of a source: what S3, MinIO and Ceph post when objects appear. Pure."""

from collections.abc import Mapping
from typing import Any

from headrace.protocols.object_events import ObjectEvent, object_events
from headrace.storage.contract import ObjectInfo


def notice_objects(notice: bytes | str | Mapping[str, Any]) -> list[ObjectInfo]:
    """The objects that were created, in the notice's order, each once.

    Removals and test events name nothing. Raises DataError when it is no notice that we know, and LimitError when it is
    too large to be one.
    """
    found = {(i.uri, i.etag): i for i in map(_object, object_events(notice))}
    return list(found.values())


def _object(event: ObjectEvent) -> ObjectInfo:
    # In quotes, as stores give it: so a listing and a notice mean the same object, and the store the same version.
    return ObjectInfo(event.uri, event.size_bytes, f'"{event.etag}"' if event.etag else "")
