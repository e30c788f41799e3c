"""Submissions to `NewJob`: a JSON document or a bare payload, with exact errors.

Pure: bytes in, values or DataError and LimitError out. The job service decides about the tenant,
the payload's location and the permission to read URIs.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, cast

import orjson

from headrace.core.errors import DataError, LimitError
from headrace.jobs.job import NewJob
from headrace.jobs.submission_fields import FIELDS, SHAPES, SubmissionLimits, check_nesting, format_value
from headrace.runs.media_types import bare_type

JSON: Final = "application/json"
_IDEMPOTENCY_KEY: Final = re.compile(r"[\x21-\x7e]{1,255}")
_TRACE: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-.{0,200})?")
_PLAIN: Final = NewJob()
_PAYLOADS: Final = ("input", "upload")
_NOT_IN_DIGEST: Final = frozenset(
    {"id", "idempotency_key", "body_digest", "trace", "tenant", "owned_input", "correlation_id"}
)
"""Fields that distinguish two submissions of the same work, or that are generated."""


@dataclass(frozen=True, slots=True)
class SubmissionHeaders:
    """The data beside a request's body, such as HTTP headers; "" if absent."""

    content_type: str = ""
    idempotency_key: str = ""
    trace: str = ""


@dataclass(frozen=True, slots=True)
class Submission:
    """A well-formed job.

    If it has a `payload` to store, or names an `upload`, its `input_uri` is "".
    """

    job: NewJob
    payload: bytes | None = None
    upload: str = ""


def read_document(body: bytes, headers: SubmissionHeaders, limits: SubmissionLimits) -> Submission:
    """Parse a submission from one JSON object.

    Raise DataError for an invalid field, with the permitted values, and LimitError for exceeded
    limits.
    """
    try:
        found: Any = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise DataError(f"the body is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise DataError(f"the body must be a JSON object, not {format_value(found)}")
    check_nesting(found, limits.depth_max)
    document = cast("dict[str, Any]", found)
    _refuse_unknown(document, {*FIELDS, *_PAYLOADS})
    sources = [name for name in (*_PAYLOADS, "input_uri") if name in document]
    if len(sources) > 1:
        raise DataError(f"{' and '.join(sources)}: only one of them is permitted")
    if "upload" in document:
        return _submission(document, None, headers, limits, upload=_upload(document))
    if "input" not in document:
        return _submission(document, None, headers, limits)
    value = document.pop("input")
    content_type, payload = _inline(value, document.get("content_type") or JSON)
    document["content_type"] = content_type
    return _submission(document, payload, headers, limits)


def read_raw(
    body: bytes, query: Sequence[tuple[str, str]], headers: SubmissionHeaders, limits: SubmissionLimits
) -> Submission:
    """Parse a submission whose body is the payload and whose fields are query parameters.

    ``tag=NAME=VALUE`` may be repeated; ``options`` and ``notify`` are JSON. Raises as
    `read_document` does.
    """
    document: dict[str, Any] = {}
    tags: dict[str, str] = {}
    for name, text in query:
        if name == "tag":
            tag, equals, value = text.partition("=")
            if not equals:
                raise DataError(f"tag: must be NAME=VALUE, not {format_value(text)}")
            tags[tag] = value
            continue
        if name in document:
            raise DataError(f"{name}: is repeated")
        if name == "model" and not text:
            # An empty model marks the body as the payload; the kind finds its model elsewhere.
            continue
        _refuse_unknown([name], FIELDS)
        document[name] = _of_text(name, text)
    if tags:
        document["tags"] = tags
    if "input_uri" in document:
        raise DataError("input_uri: the body is the payload; send a JSON document to name an object instead")
    if not body:
        raise DataError("the body is empty: with fields in the query it must be the payload")
    check_nesting(document, limits.depth_max)
    document.setdefault("content_type", headers.content_type or "application/octet-stream")
    return _submission(document, body, headers, limits)


def digest_of(job: NewJob, payload: bytes | None, upload: str = "") -> str:
    """Return the digest that an idempotency key stands for: equal for equal work.

    Only values other than the defaults count, so that future fields do not change stored digests.
    """
    values: dict[str, Any] = {}
    for field in fields(NewJob):
        value = getattr(job, field.name)
        if field.name not in _NOT_IN_DIGEST and value != getattr(_PLAIN, field.name):
            values[field.name] = (
                dict(cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else value
            )
    if payload is not None:
        values["payload"] = hashlib.sha256(payload).hexdigest()
    if upload:
        values["upload"] = upload
    return hashlib.sha256(orjson.dumps(values, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _submission(
    document: Mapping[str, Any],
    payload: bytes | None,
    headers: SubmissionHeaders,
    limits: SubmissionLimits,
    *,
    upload: str = "",
) -> Submission:
    if payload is not None and len(payload) > limits.inline_bytes_max:
        raise LimitError(
            f"input: {len(payload)} bytes exceed the limit of {limits.inline_bytes_max} in a submission: "
            "upload it (POST /v1/uploads) and name the upload"
        )
    values: dict[str, Any] = {}
    for name, value in document.items():
        field = FIELDS[name]
        values[field.into] = field.read(name, value, limits)
    owned = payload is not None or bool(upload)
    _check_whole(values, owned=owned)
    key = headers.idempotency_key
    if key and not _IDEMPOTENCY_KEY.fullmatch(key):
        raise DataError("Idempotency-Key: must be 1 to 255 printable ASCII characters without spaces")
    trace = headers.trace if _TRACE.fullmatch(headers.trace) else ""
    job = NewJob(**values, idempotency_key=key, trace=trace, owned_input=owned)
    if key or upload:
        job = replace(job, body_digest=digest_of(job, payload, upload))
    return Submission(job, payload, upload)


def _upload(document: dict[str, Any]) -> str:
    upload = document.pop("upload")
    if not isinstance(upload, str) or not upload:
        raise DataError(f"upload: must be an id from POST /v1/uploads, not {format_value(upload)}")
    if not document.get("content_type"):
        raise DataError("content_type: is missing; an upload needs it")
    return upload


def _check_whole(values: Mapping[str, Any], *, owned: bool) -> None:
    kind = values.get("kind", _PLAIN.kind)
    if kind == "infer" and not values.get("model"):
        raise DataError("model: is missing; an infer job needs a model")
    if not owned and not values.get("input_uri"):
        raise DataError("input_uri: is missing; give input_uri, input or upload")


def _inline(value: Any, content_type: Any) -> tuple[str, bytes]:
    """Return the content type and the payload: JSON values as JSON, or a text of another type."""
    if not isinstance(content_type, str):
        raise DataError(f"content_type: must be a media type, not {format_value(content_type)}")
    bare = bare_type(content_type)
    if bare == JSON or bare.endswith("+json"):
        return content_type, orjson.dumps(value)
    if not isinstance(value, str):
        raise DataError(
            f"input: must be a string for content_type {format_value(content_type)}; other JSON needs {JSON}"
        )
    return content_type, value.encode()


def _of_text(name: str, text: str) -> Any:
    """Return a query parameter's value as JSON would have it."""
    if SHAPES[name] == "text":
        return text
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        raise DataError(f"{name}: must be {SHAPES[name]}, not {format_value(text)}") from None


def _refuse_unknown(names: Any, known: Any) -> None:
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise DataError(
            f"{format_value(unknown[0])} is not a field of a submission; known: {', '.join(sorted(known))}"
        )
