"""Event notifications as objects of a source: S3, MinIO and Ceph send them when objects appear."""

from collections.abc import Mapping
from typing import Any

from headrace.protocols.object_events import ObjectEvent, object_events
from headrace.storage.contract import ObjectInfo


def notice_objects(notice: bytes | str | Mapping[str, Any]) -> list[ObjectInfo]:
    """Return the created objects, in the order of the notification, each once.

    Removals and test events name no objects.

    Raises:
        DataError: The format of the notification is unknown.
        LimitError: The notification is too large.
    """
    found = {(i.uri, i.etag): i for i in map(_object, object_events(notice))}
    return list(found.values())


def _object(event: ObjectEvent) -> ObjectInfo:
    # Stores quote ETags. With quotes, listings and notifications identify the same version.
    return ObjectInfo(event.uri, event.size_bytes, f'"{event.etag}"' if event.etag else "")
