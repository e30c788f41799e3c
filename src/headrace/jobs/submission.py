"""Submissions to `NewJob`: a JSON document or a bare payload, field by field, with exact errors.

Pure: bytes in, values or DataError and LimitError out. The job service decides about the tenant,
the payload's location and the permission to read URIs.
"""

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, cast

import orjson

from headrace.core.errors import ConfigError, DataError, LimitError
from headrace.core.json_numbers import whole_number
from headrace.jobs.job import (
    AFTER_MAX,
    IF_EXISTS,
    KINDS,
    PRIORITY_FIRST,
    PRIORITY_LAST,
    NewJob,
    is_job_id,
)
from headrace.jobs.tracing import read_traceparent
from headrace.runs.media_types import bare_type
from headrace.storage.regions import require_region
from headrace.storage.uri import parse

JSON: Final = "application/json"
SHOWN_CHARS: Final = 80
KEY_CHARS_MAX: Final = 512
URI_CHARS_MAX: Final = 4096

_PLAIN: Final = NewJob()
_PAYLOADS: Final = ("input", "upload")
_NOT_IN_DIGEST: Final = frozenset(
    {
        "id",
        "idempotency_key",
        "body_digest",
        "trace",
        "tenant",
        "submitted_by",
        "endpoint_version",
        "owned_input",
        "correlation_id",
    }
)
"""Fields that distinguish two submissions of the same work, or that are generated."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_MODEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}(@[A-Za-z0-9._-]{1,64})?")
_MEDIA: Final = re.compile(r"[\x20-\x7e]{3,255}")
_ID: Final = re.compile(r"[\x21-\x7e]{1,255}")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class SubmissionLimits:
    """The limits of a submission."""

    inline_bytes_max: int = 8 << 20
    """The size of a payload in the submission."""
    depth_max: int = 64
    options_bytes_max: int = 64 << 10
    tags_max: int = 32
    tag_chars_max: int = 256
    notify_max: int = 8
    attempts_max: int = 100
    seconds_max: float = 366 * 86_400.0
    """The limit of delays, times to live and deadlines."""
    time_limit_s_max: float = 30 * 86_400.0


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
    given: frozenset[str] = frozenset()
    """The fields of `job` that the client gave, also if they are equal to the defaults."""


def read_document(
    body: bytes, headers: SubmissionHeaders, limits: SubmissionLimits, *, model_optional: bool = False
) -> Submission:
    """Parse a submission from one JSON object.

    The model may be missing if an endpoint is named, or with `model_optional`: the endpoint of the
    client's key has one.

    Raise DataError for an invalid field, with the permitted values, and LimitError for exceeded
    limits.
    """
    return read_submission(read_object(body), headers, limits, model_optional=model_optional)


def read_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object of a body. Raise DataError for anything else."""
    try:
        found: Any = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise DataError(f"the body is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise DataError(f"the body must be a JSON object, not {format_value(found)}")
    return cast("dict[str, Any]", found)


def read_submission(
    document: dict[str, Any],
    headers: SubmissionHeaders,
    limits: SubmissionLimits,
    *,
    model_optional: bool = False,
) -> Submission:
    """Return the submission of a JSON object, which is changed. The errors are those of `read_document`."""
    check_nesting(document, limits.depth_max)
    refuse_unknown(document, {*FIELDS, *_PAYLOADS}, "a submission")
    sources = [name for name in (*_PAYLOADS, "input_uri") if name in document]
    if len(sources) > 1:
        raise DataError(f"{' and '.join(sources)}: only one of them is permitted")
    if "upload" in document:
        upload = _upload(document)
        return _submission(document, None, headers, limits, upload=upload, model_optional=model_optional)
    if "input" not in document:
        return _submission(document, None, headers, limits, model_optional=model_optional)
    value = document.pop("input")
    content_type, payload = _inline(value, document.get("content_type") or JSON)
    document["content_type"] = content_type
    return _submission(document, payload, headers, limits, model_optional=model_optional)


def read_raw(
    body: bytes,
    query: Sequence[tuple[str, str]],
    headers: SubmissionHeaders,
    limits: SubmissionLimits,
    *,
    model_optional: bool = False,
) -> Submission:
    """Parse a submission whose body is the payload and whose fields are query parameters.

    ``tag=NAME=VALUE`` may be repeated; ``options``, ``notify`` and ``after`` are JSON.
    `model_optional` and the errors are those of `read_document`.
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
        refuse_unknown([name], FIELDS, "a submission")
        document[name] = _of_text(name, text)
    if tags:
        document["tags"] = tags
    if "input_uri" in document:
        raise DataError("input_uri: the body is the payload; send a JSON document to name an object instead")
    if not body:
        raise DataError("the body is empty: with fields in the query it must be the payload")
    check_nesting(document, limits.depth_max)
    document.setdefault("content_type", headers.content_type or "application/octet-stream")
    return _submission(document, body, headers, limits, model_optional=model_optional)


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
    model_optional: bool = False,
) -> Submission:
    if payload is not None and len(payload) > limits.inline_bytes_max:
        raise LimitError(
            f"input: {len(payload)} bytes exceed the limit of {limits.inline_bytes_max} in a submission: "
            "upload it (POST /v1/uploads) and name the upload"
        )
    values: dict[str, Any] = {}
    for name, value in document.items():
        values["delay_ms" if name == "delay_s" else name] = FIELDS[name](name, value, limits)
    owned = payload is not None or bool(upload)
    needs_model = not (values.get("endpoint") or model_optional)
    if needs_model and values.get("kind", _PLAIN.kind) == "infer" and not values.get("model"):
        raise DataError("model: is missing; an infer job needs a model")
    if not owned and not values.get("input_uri"):
        raise DataError("input_uri: is missing; give input_uri, input or upload")
    key = headers.idempotency_key
    if key and not _ID.fullmatch(key):
        raise DataError("Idempotency-Key: must be 1 to 255 printable ASCII characters without spaces")
    job = NewJob(**values, idempotency_key=key, trace=read_traceparent(headers.trace), owned_input=owned)
    if key or upload:
        job = replace(job, body_digest=digest_of(job, payload, upload))
    return Submission(job, payload, upload, frozenset(values))


def _upload(document: dict[str, Any]) -> str:
    upload = document.pop("upload")
    if not isinstance(upload, str) or not upload:
        raise DataError(f"upload: must be an id from POST /v1/uploads, not {format_value(upload)}")
    if not document.get("content_type"):
        raise DataError("content_type: is missing; an upload needs it")
    return upload


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


def refuse_unknown(names: Iterable[str], known: Iterable[str], what: str) -> None:
    """Raise DataError for a name that is not a known field of `what`."""
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise DataError(
            f"{format_value(unknown[0])} is not a field of {what}; known: {', '.join(sorted(known))}"
        )


Read = Callable[[str, Any, SubmissionLimits], Any]
"""Returns the value of a named field as `NewJob` has it, or raises DataError or LimitError."""


def format_value(value: Any) -> str:
    """Return the beginning of a value on one line, for a message."""
    text = ascii(value)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}…"


def check_nesting(value: Any, depth_max: int) -> None:
    """Raise LimitError for JSON that is nested deeper than `depth_max`."""
    level: list[Any] = [value]
    for _ in range(depth_max):
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below += cast("dict[str, Any]", item).values()
            elif isinstance(item, list):
                below += cast("list[Any]", item)
        if not below:
            return
        level = below
    raise LimitError(f"the JSON is nested deeper than {depth_max} levels")


def _wrong(name: str, what: str, value: Any) -> DataError:
    return DataError(f"{name}: must be {what}, not {format_value(value)}")


def _matching(pattern: re.Pattern[str], what: str) -> Read:
    def read(name: str, value: Any, _limits: SubmissionLimits) -> str:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise _wrong(name, what, value)
        return value

    return read


def _one_of(known: Sequence[str]) -> Read:
    def read(name: str, value: Any, _limits: SubmissionLimits) -> str:
        if value not in known:
            raise _wrong(name, f"one of {', '.join(known)}", value)
        return value

    return read


def _uri(name: str, value: Any, _limits: SubmissionLimits) -> str:
    if not isinstance(value, str) or not value:
        raise _wrong(name, "a URI", value)
    if len(value) > URI_CHARS_MAX:
        raise LimitError(f"{name}: is longer than {URI_CHARS_MAX} characters")
    if _CONTROL.search(value) or value != value.strip():
        raise _wrong(name, "a URI without control characters, and without spaces at its ends", value)
    try:
        parse(value)
    except ConfigError as error:
        raise DataError(f"{name}: {error}") from None
    return value


def _key(name: str, value: Any, _limits: SubmissionLimits) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= KEY_CHARS_MAX or _CONTROL.search(value):
        raise _wrong(
            name, f"a name of at most {KEY_CHARS_MAX} characters, none of them a control character", value
        )
    return value


def _region(name: str, value: Any, _limits: SubmissionLimits) -> str:
    if not isinstance(value, str):
        raise _wrong(name, "a label, such as eu-west-1", value)
    try:
        return require_region(value)
    except ConfigError as error:
        raise DataError(f"{name}: {error}") from None


def _whole(first: int, last: Callable[[SubmissionLimits], int]) -> Read:
    def read(name: str, value: Any, limits: SubmissionLimits) -> int:
        number: Any = whole_number(value)
        fits = isinstance(number, int) and not isinstance(number, bool)
        if not fits or not first <= number <= last(limits):
            raise _wrong(name, f"a whole number from {first} to {last(limits)}", value)
        return number

    return read


def _seconds(last: Callable[[SubmissionLimits], float], *, zero: bool = False) -> Read:
    def read(name: str, value: Any, limits: SubmissionLimits) -> float:
        most = last(limits)
        what = f"seconds, {'from 0' if zero else 'more than 0'} to {most:.0f}"
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
            raise _wrong(name, what, value)
        if not (value >= 0 if zero else value > 0) or value > most:
            raise _wrong(name, what, value)
        return float(value)

    return read


def _delay_ms(name: str, value: Any, limits: SubmissionLimits) -> int:
    return round(_seconds(lambda limits: limits.seconds_max, zero=True)(name, value, limits) * 1000)


def _options(name: str, value: Any, limits: SubmissionLimits) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(name, "a JSON object", value)
    _bounded_json(name, value, limits)
    return cast("dict[str, Any]", value)


def _notify(name: str, value: Any, limits: SubmissionLimits) -> tuple[Mapping[str, Any], ...]:
    items = cast("list[Any]", value) if isinstance(value, list) else None
    if items is None or not all(isinstance(item, dict) for item in items):
        raise _wrong(name, "a list of JSON objects", value)
    if len(items) > limits.notify_max:
        raise LimitError(f"{name}: {len(items)} entries exceed the limit of {limits.notify_max}")
    _bounded_json(name, items, limits)
    return tuple(items)


def _after(name: str, value: Any, _limits: SubmissionLimits) -> tuple[str, ...]:
    ids = cast("list[Any]", value) if isinstance(value, list) else None
    if ids is None or not all(isinstance(each, str) and is_job_id(each) for each in ids):
        raise _wrong(name, "a list of job ids", value)
    if len(ids) > AFTER_MAX:
        raise LimitError(f"{name}: {len(ids)} jobs exceed the limit of {AFTER_MAX}")
    if len(set(ids)) < len(ids):
        raise _wrong(name, "a list of different job ids", value)
    return tuple(ids)


def _bounded_json(name: str, value: Any, limits: SubmissionLimits) -> None:
    text = orjson.dumps(value)
    if len(text) > limits.options_bytes_max:
        raise LimitError(f"{name}: {len(text)} bytes of JSON exceed the limit of {limits.options_bytes_max}")
    # Databases do not accept NUL in a text.
    if b"\\u0000" in text.replace(b"\\\\", b""):
        raise DataError(f"{name}: contains a NUL character")


def _tags(name: str, value: Any, limits: SubmissionLimits) -> Mapping[str, str]:
    if not isinstance(value, dict):
        raise _wrong(name, "a JSON object of strings", value)
    tags = cast("dict[str, Any]", value)
    if len(tags) > limits.tags_max:
        raise LimitError(f"{name}: {len(tags)} tags exceed the limit of {limits.tags_max}")
    for tag, text in tags.items():
        if not _NAME.fullmatch(tag):
            raise _wrong(name, "named with letters, digits, dots, dashes and underscores, 128 at most", tag)
        if not isinstance(text, str) or _CONTROL.search(text):
            raise _wrong(f"{name}.{tag}", "a string without control characters", text)
        if len(text) > limits.tag_chars_max:
            raise LimitError(f"{name}.{tag}: is longer than {limits.tag_chars_max} characters")
    return cast("dict[str, str]", tags)


_name = _matching(_NAME, "a letter or digit, then letters, digits, dots, dashes and underscores, 128 at most")
_media = _matching(_MEDIA, "a media type of printable ASCII, 255 characters at most")
_period = _seconds(lambda limits: limits.seconds_max)

FIELDS: Final[Mapping[str, Read]] = {
    "endpoint": _name,
    "model": _matching(_MODEL, "a model's name, optionally with @ and a version"),
    "kind": _one_of(KINDS),
    "queue": _name,
    "input_uri": _uri,
    "content_type": _media,
    "accept": _media,
    "output_uri": _uri,
    "key": _key,
    "if_exists": _one_of(IF_EXISTS),
    "region": _region,
    "options": _options,
    "priority": _whole(PRIORITY_FIRST, lambda _: PRIORITY_LAST),
    "delay_s": _delay_ms,
    "attempts_max": _whole(1, lambda limits: limits.attempts_max),
    "time_limit_s": _seconds(lambda limits: limits.time_limit_s_max),
    "time_to_live_s": _period,
    "deadline_s": _period,
    "after": _after,
    "tags": _tags,
    "notify": _notify,
    "correlation_id": _matching(_ID, "1 to 255 printable ASCII characters without spaces"),
}
"""The readers of all fields except `input`, by their names in JSON and in a query."""

SHAPES: Final[Mapping[str, str]] = {
    **dict.fromkeys(FIELDS, "text"),
    **dict.fromkeys(("priority", "attempts_max"), "a whole number"),
    **dict.fromkeys(("delay_s", "time_limit_s", "time_to_live_s", "deadline_s"), "a number of seconds"),
    "options": "a JSON object",
    "after": "a JSON list of job ids",
    "tags": "a JSON object of strings",
    "notify": "a list of JSON objects",
}
"""The type of each field in a query, in words."""
