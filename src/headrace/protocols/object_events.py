"""Parser of object-created notices from S3, MinIO and Ceph. Pure.

SNS, SQS and EventBridge envelopes are opened. The forms:

- AWS posts ``Records[].s3`` with URL-encoded keys, where ``+`` stands for a space.
- MinIO posts the same, with ``EventName`` and ``Key`` beside it, and encodes keys too.
- Ceph (radosgw, ``eventSource`` ``ceph:s3``) posts ``Records[].s3`` with keys that are not encoded.
- EventBridge has a shape of its own; its keys are not encoded.
- SNS and SQS carry the notice as JSON text in ``Message`` or ``body``.

``s3:TestEvent`` names no object. A notice may arrive twice and out of order.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast
from urllib.parse import unquote_to_bytes

import orjson

from headrace.core.errors import DataError, LimitError

NOTICE_BYTES_MAX: Final = 1 << 20
"""Limit of a notice's bytes, which is that of SNS and SQS."""
RECORDS_MAX: Final = 1000
_WRAPPINGS_MAX = 4
_SHOWN_CHARACTERS_MAX = 80


@dataclass(frozen=True, slots=True)
class ObjectEvent:
    """The creation of an object. `key` is decoded. Fields missing from the notice are "" or None.

    `etag` has no quotes. `sequencer` orders the events of one key, if the store sends it.
    """

    bucket: str
    key: str
    size_bytes: int | None = None
    etag: str = ""
    version_id: str = ""
    sequencer: str = ""
    name: str = ""
    """The event's name without the ``s3:`` prefix of some stores, such as ``ObjectCreated:Put``."""

    @property
    def uri(self) -> str:
        """The object's URI."""
        return f"s3://{self.bucket}/{self.key}"


def object_events(notice: bytes | str | Mapping[str, Any]) -> list[ObjectEvent]:
    """Return the created objects in the order of the notice, each event once.

    Removals, restorations and test events name no object.

    Raises:
        DataError: The notice has none of the known forms.
        LimitError: The notice exceeds NOTICE_BYTES_MAX, or has more than RECORDS_MAX records.
    """
    data: Any = notice
    if isinstance(notice, bytes | str):
        if len(notice) > NOTICE_BYTES_MAX:
            raise LimitError(f"the event notice has {len(notice)} bytes; the limit is {NOTICE_BYTES_MAX}")
        data = _json(notice, "not an event notice: the body is not JSON")
    found: dict[ObjectEvent, None] = {}
    for count, event in enumerate(_events(data, 0), 1):
        if count > RECORDS_MAX:
            raise LimitError(f"the event notice has more than {RECORDS_MAX} records, which is the limit")
        if event is not None:
            found[event] = None
    return list(found)


def _events(data: Any, depth: int) -> Iterator[ObjectEvent | None]:
    """Yield an event for each record of a notice, None for a record that created no object."""
    if depth > _WRAPPINGS_MAX or not isinstance(data, dict):
        raise DataError("not an event notice: expected a JSON object with Records, detail, Message or body")
    document = cast("dict[str, Any]", data)
    for wrapper in ("Message", "body", "Body"):
        inner = document.get(wrapper)
        if isinstance(inner, str):
            yield from _events(_json(inner, f"the notice's {wrapper!r} is not JSON"), depth + 1)
            return
    if document.get("Event") == "s3:TestEvent":
        return
    if document.get("source") == "aws.s3" and "detail" in document:
        yield _event_from_eventbridge(document)
        return
    records = document.get("Records")
    if not isinstance(records, list):
        raise DataError("not an event notice: it has no Records")
    for record in cast("list[Any]", records):
        wrapped = _unwrap(record)
        if wrapped is None:
            yield _event_from_record(record)
        else:
            yield from _events(wrapped, depth + 1)


def _unwrap(record: Any) -> Any:
    """Return the notice inside a record of SQS or SNS, or None if the record is itself an event."""
    if not isinstance(record, dict):
        return None
    fields = cast("dict[str, Any]", record)
    if "s3" in fields or not ("body" in fields or "Sns" in fields):
        return None
    return fields.get("Sns") or fields


def _event_from_record(record: Any) -> ObjectEvent | None:
    try:
        name = str(record["eventName"])
        bucket = record["s3"]["bucket"]["name"]
        described = record["s3"]["object"]
        key = described["key"]
        encoded = record.get("eventSource") != "ceph:s3"
    except (KeyError, TypeError) as error:
        raise DataError(f"a record of the notice has no {error}") from error
    name = name.removeprefix("s3:")
    return _event(bucket, key, described, name, encoded=encoded) if "ObjectCreated" in name else None


def _event_from_eventbridge(document: Mapping[str, Any]) -> ObjectEvent | None:
    """Return the event of an EventBridge document.

    Its key is not encoded, and its fields have other names.
    """
    try:
        name = str(document["detail-type"])
        bucket = document["detail"]["bucket"]["name"]
        described = document["detail"]["object"]
        key = described["key"]
    except (KeyError, TypeError) as error:
        raise DataError(f"the event of EventBridge has no {error}") from error
    if name != "Object Created":
        return None
    return _event(bucket, key, described, "ObjectCreated", encoded=False)


def _event(bucket: Any, key: Any, described: Any, name: str, *, encoded: bool) -> ObjectEvent:
    size = described.get("size")
    named = isinstance(bucket, str) and isinstance(key, str) and bucket and key and "/" not in bucket
    if not named or isinstance(size, bool) or not isinstance(size, int | None) or (size or 0) < 0:
        raise DataError(
            f"a record of the notice names no object: bucket {_excerpt(bucket)}, "
            f"key {_excerpt(key)}, size {_excerpt(size)}"
        )
    return ObjectEvent(
        bucket=bucket,
        key=_decode_key(key) if encoded else key,
        size_bytes=size,
        # Some stores put the ETag in quotes, others do not.
        etag=_text(described, "eTag", "etag").strip('"'),
        version_id=_text(described, "versionId", "version-id"),
        sequencer=_text(described, "sequencer"),
        name=name,
    )


def _decode_key(key: str) -> str:
    try:
        return unquote_to_bytes(key.replace("+", " ")).decode()
    except UnicodeDecodeError as error:
        raise DataError(f"the key {_excerpt(key)} of the notice is not UTF-8 after URL decoding") from error


def _text(described: Mapping[str, Any], *names: str) -> str:
    """Return the first non-empty field of `names`, else "".

    S3 writes ``"null"`` for an object without a version.
    """
    for name in names:
        value = described.get(name)
        if value is not None and not isinstance(value, str):
            raise DataError(f"a record of the notice has {_excerpt(value)} as its {name}, not a string")
        if value and value != "null":
            return value
    return ""


def _json(text: bytes | str, what: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise DataError(f"{what} ({error})") from error


def _excerpt(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS_MAX else f"{text[:_SHOWN_CHARACTERS_MAX]}…"
