"""What somebody wants done, as JSON or as a bare payload, to a `NewJob`; or exactly what is wrong with it.

Pure: bytes in, values or DataError and LimitError out. Whose job it is, where its payload goes and whether its URIs may be read
is decided by the desk.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, cast

import orjson

from headrace.core.errors import DataError, LimitError
from headrace.jobs.intake_fields import FIELDS, SHAPES, IntakeLimits, check_nesting, shown
from headrace.jobs.job import NewJob
from headrace.transforms.media_types import bare_type

JSON: Final = "application/json"
_IDEMPOTENCY_KEY: Final = re.compile(r"[\x21-\x7e]{1,255}")
_TRACE: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-.{0,200})?")
_PLAIN: Final = NewJob()
_PAYLOADS: Final = ("input", "upload")
_NOT_IN_DIGEST: Final = frozenset(
    {"id", "idempotency_key", "body_digest", "trace", "tenant", "owned_input", "correlation_id"}
)
"""What tells two submissions of the same work apart, or is made for each."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """What comes beside a body: of HTTP, headers. "" where nothing was sent."""

    content_type: str = ""
    idempotency_key: str = ""
    trace: str = ""


@dataclass(frozen=True, slots=True)
class Submission:
    """A job that is well formed. Where it has a `payload` to be stored for it, or names an `upload`, its `input_uri` is ""."""

    job: NewJob
    payload: bytes | None = None
    upload: str = ""


def read_document(body: bytes, envelope: Envelope, limits: IntakeLimits) -> Submission:
    """A submission as one JSON object. DataError says which field is wrong and what it may be; LimitError what is too much."""
    try:
        found: Any = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise DataError(f"the body is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise DataError(f"the body must be a JSON object, not {shown(found)}")
    check_nesting(found, limits.depth_max)
    document = cast("dict[str, Any]", found)
    _refuse_unknown(document, {*FIELDS, *_PAYLOADS})
    given = [name for name in (*_PAYLOADS, "input_uri") if name in document]
    if len(given) > 1:
        raise DataError(f"{' and '.join(given)}: give one of them, not both")
    if "upload" in document:
        return _submission(document, None, envelope, limits, upload=_upload(document))
    if "input" not in document:
        return _submission(document, None, envelope, limits)
    value = document.pop("input")
    content_type, payload = _inline(value, document.get("content_type") or JSON)
    document["content_type"] = content_type
    return _submission(document, payload, envelope, limits)


def read_raw(
    body: bytes, query: Sequence[tuple[str, str]], envelope: Envelope, limits: IntakeLimits
) -> Submission:
    """A submission whose body is the payload; all else stands in the query, ``tag=NAME=VALUE`` as often as there are tags.

    ``options`` and ``notify`` are JSON there. Raises as `read_document`.
    """
    document: dict[str, Any] = {}
    tags: dict[str, str] = {}
    for name, text in query:
        if name == "tag":
            tag, equals, value = text.partition("=")
            if not equals:
                raise DataError(f"tag: must be NAME=VALUE, not {shown(text)}")
            tags[tag] = value
            continue
        if name in document:
            raise DataError(f"{name}: was given twice")
        if name == "model" and not text:
            # It says that the body is the payload; the kind finds its model elsewhere.
            continue
        _refuse_unknown([name], FIELDS)
        document[name] = _of_text(name, text)
    if tags:
        document["tags"] = tags
    if "input_uri" in document:
        raise DataError("input_uri: the body is the payload already; send a JSON document to name one")
    if not body:
        raise DataError("the body is empty: it is the payload where the job is described in the query")
    check_nesting(document, limits.depth_max)
    document.setdefault("content_type", envelope.content_type or "application/octet-stream")
    return _submission(document, body, envelope, limits)


def digest_of(job: NewJob, payload: bytes | None, upload: str = "") -> str:
    """What an idempotency key stands for: the same for the same work, however it was written down.

    Only what is not the default counts, so that a field that is new some day changes no digest that is stored today.
    """
    told: dict[str, Any] = {}
    for field in fields(NewJob):
        value = getattr(job, field.name)
        if field.name not in _NOT_IN_DIGEST and value != getattr(_PLAIN, field.name):
            told[field.name] = dict(cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else value
    if payload is not None:
        told["payload"] = hashlib.sha256(payload).hexdigest()
    if upload:
        told["upload"] = upload
    return hashlib.sha256(orjson.dumps(told, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _submission(
    document: Mapping[str, Any],
    payload: bytes | None,
    envelope: Envelope,
    limits: IntakeLimits,
    *,
    upload: str = "",
) -> Submission:
    if payload is not None and len(payload) > limits.inline_bytes_max:
        raise LimitError(
            f"input: {len(payload)} bytes are more than the {limits.inline_bytes_max} that are taken in a submission: "
            "upload it (POST /v1/uploads) and name the upload"
        )
    values: dict[str, Any] = {}
    for name, value in document.items():
        field = FIELDS[name]
        values[field.into] = field.read(name, value, limits)
    owned = payload is not None or bool(upload)
    _check_whole(values, owned=owned)
    key = envelope.idempotency_key
    if key and not _IDEMPOTENCY_KEY.fullmatch(key):
        raise DataError("Idempotency-Key: must be 1 to 255 printable ASCII characters without spaces")
    trace = envelope.trace if _TRACE.fullmatch(envelope.trace) else ""
    job = NewJob(**values, idempotency_key=key, trace=trace, owned_input=owned)
    if key or upload:
        job = replace(job, body_digest=digest_of(job, payload, upload))
    return Submission(job, payload, upload)


def _upload(document: dict[str, Any]) -> str:
    upload = document.pop("upload")
    if not isinstance(upload, str) or not upload:
        raise DataError(f"upload: must be the id that POST /v1/uploads gave, not {shown(upload)}")
    if not document.get("content_type"):
        raise DataError("content_type: is missing; of an upload nothing else tells it")
    return upload


def _check_whole(values: Mapping[str, Any], *, owned: bool) -> None:
    kind = values.get("kind", _PLAIN.kind)
    if kind == "infer" and not values.get("model"):
        raise DataError("model: is missing; it names the model that is to be asked")
    if not owned and not values.get("input_uri"):
        raise DataError("input_uri: is missing; name the payload, or send it as input, or upload it")


def _inline(value: Any, content_type: Any) -> tuple[str, bytes]:
    """JSON as it came, or a text of another type."""
    if not isinstance(content_type, str):
        raise DataError(f"content_type: must be a media type, not {shown(content_type)}")
    bare = bare_type(content_type)
    if bare == JSON or bare.endswith("+json"):
        return content_type, orjson.dumps(value)
    if not isinstance(value, str):
        raise DataError(
            f"input: must be a string where content_type is {shown(content_type)}; JSON of any form goes with {JSON}"
        )
    return content_type, value.encode()


def _of_text(name: str, text: str) -> Any:
    """A value of a query, as JSON would have it."""
    if SHAPES[name] == "text":
        return text
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        raise DataError(f"{name}: must be {SHAPES[name]}, not {shown(text)}") from None


def _refuse_unknown(names: Any, known: Any) -> None:
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise DataError(
            f"{shown(unknown[0])} is no field of a submission; known are {', '.join(sorted(known))}"
        )
