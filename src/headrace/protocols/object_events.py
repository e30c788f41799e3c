"""Event notices: what S3, MinIO and Ceph post when objects appear, and how SNS, SQS and EventBridge wrap it. Pure.

Facts: AWS' ``Records[].s3`` shape, whose keys are URL-encoded with ``+`` for a space; MinIO posts the same with
``EventName`` and ``Key`` beside it, and encodes too; Ceph (radosgw, ``eventSource`` ``ceph:s3``) posts it with keys as
they stand, and so does EventBridge, in a shape of its own. SNS and SQS wrap the JSON as text in ``Message`` or ``body``.
``s3:TestEvent`` names nothing. A notice may arrive twice and out of order.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast
from urllib.parse import unquote_to_bytes

import orjson

from headrace.core.errors import DataError, LimitError

NOTICE_BYTES_MAX: Final = 1 << 20
"""As much as SNS and SQS carry at most."""
RECORDS_MAX: Final = 1000
_WRAPPINGS_MAX = 4
_SHOWN_CHARACTERS_MAX = 80


@dataclass(frozen=True, slots=True)
class ObjectEvent:
    """An object that was created. `key` is decoded; what the notice does not say is "" or None.

    `etag` has no quotes. `sequencer` orders the events of one key, where the store gives one.
    """

    bucket: str
    key: str
    size_bytes: int | None = None
    etag: str = ""
    version_id: str = ""
    sequencer: str = ""
    name: str = ""
    """Such as ``ObjectCreated:Put``, without the ``s3:`` that some put before it."""

    @property
    def uri(self) -> str:
        """Where the object is."""
        return f"s3://{self.bucket}/{self.key}"


def object_events(notice: bytes | str | Mapping[str, Any]) -> list[ObjectEvent]:
    """The objects that were created, in the notice's order; an event that stands there twice is told once.

    Removals, restorations and test events name nothing. Raises DataError when it is no notice that we know, and
    LimitError when it is larger, or names more, than any of them.
    """
    data: Any = notice
    if isinstance(notice, bytes | str):
        if len(notice) > NOTICE_BYTES_MAX:
            raise LimitError(
                f"an event notice of {len(notice)} bytes: {NOTICE_BYTES_MAX} are the most that is read"
            )
        data = _json(notice, "this is no event notice: not JSON")
    found: dict[ObjectEvent, None] = {}
    for count, event in enumerate(_events(data, 0), 1):
        if count > RECORDS_MAX:
            raise LimitError(f"an event notice of more than {RECORDS_MAX} records is not read")
        if event is not None:
            found[event] = None
    return list(found)


def _events(data: Any, depth: int) -> Iterator[ObjectEvent | None]:
    """One for each record, None for those that created nothing."""
    if depth > _WRAPPINGS_MAX or not isinstance(data, dict):
        raise DataError(
            "this is no event notice: expected a JSON object with Records, detail, Message or body"
        )
    document = cast("dict[str, Any]", data)
    for wrapper in ("Message", "body", "Body"):
        inner = document.get(wrapper)
        if isinstance(inner, str):
            yield from _events(_json(inner, f"the notice's {wrapper!r} is not JSON"), depth + 1)
            return
    if document.get("Event") == "s3:TestEvent":
        return
    if document.get("source") == "aws.s3" and "detail" in document:
        yield _bridged(document)
        return
    records = document.get("Records")
    if not isinstance(records, list):
        raise DataError("this is no event notice: it has no Records")
    for record in cast("list[Any]", records):
        wrapped = _wrapped(record)
        if wrapped is None:
            yield _recorded(record)
        else:
            yield from _events(wrapped, depth + 1)


def _wrapped(record: Any) -> Any:
    """The notice inside a record of SQS or SNS; None when the record is itself what happened."""
    if not isinstance(record, dict):
        return None
    fields = cast("dict[str, Any]", record)
    if "s3" in fields or not ("body" in fields or "Sns" in fields):
        return None
    return fields.get("Sns") or fields


def _recorded(record: Any) -> ObjectEvent | None:
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


def _bridged(document: Mapping[str, Any]) -> ObjectEvent | None:
    """EventBridge's: the key as it stands, and other names for the same things."""
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
            f"a record of the notice names no object: bucket {_shown(bucket)}, key {_shown(key)}, size {_shown(size)}"
        )
    return ObjectEvent(
        bucket=bucket,
        key=_decoded(key) if encoded else key,
        size_bytes=size,
        # In quotes with some stores, bare with others.
        etag=_text(described, "eTag", "etag").strip('"'),
        version_id=_text(described, "versionId", "version-id"),
        sequencer=_text(described, "sequencer"),
        name=name,
    )


def _decoded(key: str) -> str:
    try:
        return unquote_to_bytes(key.replace("+", " ")).decode()
    except UnicodeDecodeError as error:
        raise DataError(f"the key {_shown(key)} of a notice is not UTF-8 once it is decoded") from error


def _text(described: Mapping[str, Any], *names: str) -> str:
    """The first of these fields that says something; ``"null"`` is how S3 writes that there is no version."""
    for name in names:
        value = described.get(name)
        if value is not None and not isinstance(value, str):
            raise DataError(f"a record of the notice has {_shown(value)} as its {name}, not a text")
        if value and value != "null":
            return value
    return ""


def _json(text: bytes | str, what: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise DataError(f"{what} ({error})") from error


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS_MAX else f"{text[:_SHOWN_CHARACTERS_MAX]}…"
