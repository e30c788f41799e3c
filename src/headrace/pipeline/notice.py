"""Event notices to objects: what S3, MinIO and Ceph post when objects appear. Pure.

Facts: AWS' ``Records[].s3`` shape (keys are URL-encoded, with ``+`` for a space); MinIO posts the same with
``EventName`` and ``Key`` beside it; SNS and SQS wrap the JSON as text in ``Message`` or ``body``;
``s3:TestEvent`` names nothing; a notice may arrive twice and out of order.
"""

from collections.abc import Iterator, Mapping
from typing import Any, cast
from urllib.parse import unquote_plus

import orjson

from headrace.core.errors import DataError
from headrace.storage.contract import ObjectInfo

_DEPTH_MAX = 4


def notice_objects(notice: bytes | str | Mapping[str, Any]) -> list[ObjectInfo]:
    """The objects that were created, in the notice's order, each once.

    Removals and test events name nothing. Raises DataError when it is no notice that we know.
    """
    data: Any = notice
    if isinstance(notice, bytes | str):
        try:
            data = orjson.loads(notice)
        except orjson.JSONDecodeError as error:
            raise DataError(f"this is no event notice: not JSON ({error})") from error
    found = {(i.uri, i.etag): i for i in _objects(data, 0)}
    return list(found.values())


def _objects(data: Any, depth: int) -> Iterator[ObjectInfo]:
    if depth > _DEPTH_MAX or not isinstance(data, dict):
        raise DataError("this is no event notice: expected a JSON object with Records, Message or body")
    document = cast("dict[str, Any]", data)
    for wrapper in ("Message", "body", "Body"):
        inner = document.get(wrapper)
        if isinstance(inner, str):
            try:
                inner = orjson.loads(inner)
            except orjson.JSONDecodeError as error:
                raise DataError(f"the notice's {wrapper!r} is not JSON ({error})") from error
            yield from _objects(inner, depth + 1)
            return
    if document.get("Event") == "s3:TestEvent":
        return
    records = document.get("Records")
    if not isinstance(records, list):
        raise DataError("this is no event notice: it has no Records")
    for record in cast("list[Any]", records):
        wrapped = _wrapped(record)
        yield from _record_objects(record) if wrapped is None else _objects(wrapped, depth + 1)


def _wrapped(record: Any) -> Any:
    """The notice inside a record of SQS or SNS; None when the record is itself what happened."""
    if not isinstance(record, dict):
        return None
    fields = cast("dict[str, Any]", record)
    if "s3" in fields or not ("body" in fields or "Sns" in fields):
        return None
    return fields.get("Sns") or fields


def _record_objects(record: Any) -> Iterator[ObjectInfo]:
    try:
        event = str(record["eventName"])
        bucket = record["s3"]["bucket"]["name"]
        described = record["s3"]["object"]
        key = described["key"]
    except (KeyError, TypeError) as error:
        raise DataError(f"a record of the notice has no {error}") from error
    if "ObjectCreated" not in event:
        return
    size = described.get("size")
    if not (isinstance(bucket, str) and isinstance(key, str) and isinstance(size, int | None)):
        raise DataError(
            f"a record of the notice names no object: bucket {bucket!r}, key {key!r}, size {size!r}"
        )
    # In quotes, as stores give it: so a listing and a notice mean the same object, and the store the same version.
    bare = str(described.get("eTag") or described.get("etag") or "").strip('"')
    etag = f'"{bare}"' if bare else ""
    yield ObjectInfo(f"s3://{bucket}/{unquote_plus(key)}", size, etag)
