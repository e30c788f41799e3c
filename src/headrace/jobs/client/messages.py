"""The requests and responses of the job API: submissions, JSON documents, errors, event streams."""

import mimetypes
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, TypedDict, cast

import orjson

from headrace.core import errors as e
from headrace.core.errors import (
    ConfigError,
    EndpointRefusedError,
    EndpointUnavailableError,
    HeadraceError,
    LimitError,
)
from headrace.jobs.job import Job, Kind, read_job

INLINE_BYTES_MAX: Final = 1 << 20
"""Larger payloads are uploaded first. APIs accept this size with a submission, unless a key's limit
is lower.
"""
_JSON: Final = "application/json"
_ENDINGS: Final = {
    ".jsonl": "application/jsonlines",
    ".ndjson": "application/jsonlines",
    ".csv": "text/csv",
    ".json": _JSON,
    ".parquet": "application/x-parquet",
    ".arrow": "application/vnd.apache.arrow.file",
    ".orc": "application/vnd.apache.orc",
    ".avro": "application/avro",
    ".tfrecord": "application/x-tfrecord",
    ".txt": "text/plain",
}
_MESSAGE_CHARS: Final = 4000
_ERRORS: Final[Mapping[str, type[HeadraceError]]] = {
    kind.__name__: kind
    for kind in (
        e.ConfigError,
        e.DataError,
        e.EndpointNotFoundError,
        e.ForbiddenError,
        e.IdempotencyError,
        e.JobLedgerUnavailableError,
        e.JobNotFoundError,
        e.JobStateError,
        e.LimitError,
        e.ModelNotFoundError,
        e.OutputTakenError,
        e.OverloadedError,
        e.QueueClosedError,
        e.QueueFullError,
        e.QueueInUseError,
        e.RefusedAddressError,
        e.ResourceNotFoundError,
        e.ResultGoneError,
        e.StoppedError,
        e.UnauthenticatedError,
        e.UnavailableError,
        e.UncontrolledPoolError,
        e.UnsupportedError,
    )
}
_FACTS: Final[Mapping[str, Any]] = {"job_id": "", "state": "", "key": "", "retry_after_s": 1.0}
"""Attributes of these errors, with the defaults for responses without them."""
EVENT_BYTES_MAX: Final = 4 << 20


BATCH_S: Final = 60.0
"""Seconds that the response to a batch may take beyond the usual timeout: its payloads are stored first."""


class Unset:
    """The type of `UNSET`, for arguments that may be None."""


UNSET: Final = Unset()


class SubmitOptions(TypedDict, total=False):
    """The options of a submission, besides its model and payload."""

    input_uri: str
    """An existing object instead of a payload; the key must be permitted to read it."""
    endpoint: str
    """The endpoint that the job is submitted to. Its settings replace those that are left out."""
    kind: Kind
    queue: str
    """The queue whose workers run the job."""
    content_type: str
    """The payload's media type; a file's name implies it otherwise."""
    accept: str
    """The result's media type."""
    output_uri: str
    """A prefix below which the result is published as ``KEY.out``."""
    key: str
    """The KEY; the job's id by default."""
    if_exists: str
    """If another job of the tenant owns the KEY: "fail" (refuse the job, the default), "replace" (take
    the KEY over) or "version" (publish under a name with the job's id).
    """
    region: str
    """The data's region; workers of that region claim the job first."""
    options: Mapping[str, Any]
    """Options of the kind."""
    priority: int
    """0 is claimed first, 9 last."""
    delay_s: float
    """Seconds until the job becomes due."""
    attempts_max: int
    time_limit_s: float
    """The time limit of one attempt, in seconds."""
    time_to_live_s: float
    """Seconds after which the job expires if no attempt has begun."""
    deadline_s: float
    """Seconds after which the job expires if it has not ended."""
    after: Sequence[str]
    """Ids of jobs, at most 64. The job begins when all of them have completed; it fails if one ends
    otherwise. `delay_s` counts from then on.
    """
    tags: Mapping[str, str]
    notify: Sequence[Mapping[str, Any]]
    """The notification targets."""
    correlation_id: str
    """The client's own id of the job."""
    upload: str
    """An upload's id instead of a payload, as `upload` returned it. Needs a `content_type`."""
    idempotency_key: str
    """The same key and submission create one job, as long as the job is kept. By default a key is
    generated, so that the client can retry. With "" there is no key, and a lost response is an
    error.
    """
    traceparent: str
    """The trace context of the submission."""


class Filters(TypedDict, total=False):
    """Conditions on listed jobs; all given ones must match."""

    queue: str
    states: Sequence[str]
    model: str
    kind: str
    correlation_id: str
    fingerprint: str
    """The fingerprint of a failure, as `failures` returns it."""
    tags: Mapping[str, str]
    tenant: str
    """A tenant, for keys that may see all."""
    created_from_ms: int
    created_before_ms: int


@dataclass(frozen=True, slots=True)
class SubmitRequest:
    """A submission. `fields` are the given fields of the API's document.

    Its payload is one of: `source` (bytes or a file), `upload`, a JSON value (`input`), or an
    existing object (``input_uri`` in `fields`).
    """

    fields: Mapping[str, Any]
    idempotency_key: str
    source: bytes | Path | None = None
    upload: str = ""
    input: Any = UNSET
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def repeatable(self) -> bool:
        """True if the request may be sent twice."""
        return bool(self.idempotency_key or self.upload)


@dataclass(frozen=True, slots=True)
class ApiCall:
    """An HTTP request.

    `url` is a path of the API, or a full address elsewhere that receives no key.

    `repeatable`: the request may be repeated if its arrival is unknown.
    """

    method: str
    url: str
    params: tuple[tuple[str, str], ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    content: bytes | Path | None = None
    repeatable: bool = True
    extra_s: float = 0.0
    """Seconds that the response may take beyond the usual timeout."""


def make_submit_request(model: str, value: Any, options: SubmitOptions) -> SubmitRequest:
    """Return the submission for the arguments of `submit`.

    Raise ConfigError for an invalid payload.
    """
    fields: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    key = fields.pop("idempotency_key", None)
    key = secrets.token_hex(16) if key is None else key
    trace, upload = fields.pop("traceparent", ""), fields.pop("upload", "")
    headers = {"traceparent": trace} if trace else {}
    if model:
        fields["model"] = model
    named = [name for name, is_set in (("input_uri", "input_uri" in fields), ("upload", upload)) if is_set]
    if value is not UNSET:
        named.append("input")
    if len(named) != 1:
        raise ConfigError(f"give one of input, input_uri and upload, not {' and '.join(named) or 'none'}")
    if value is UNSET:
        return SubmitRequest(fields, key, upload=upload, headers=headers)
    if isinstance(value, Path):
        if not value.is_file():
            raise ConfigError(f"{value}: the file does not exist")
        fields.setdefault("content_type", media_type_of(value.name))
        return SubmitRequest(fields, key, source=value, headers=headers)
    if isinstance(value, bytes | bytearray):
        fields.setdefault("content_type", "application/octet-stream")
        return SubmitRequest(fields, key, source=bytes(value), headers=headers)
    if isinstance(value, str) and fields.get("content_type", _JSON) != _JSON:
        return SubmitRequest(fields, key, source=value.encode(), headers=headers)
    return _json_order(value, fields, key, headers)


def encode_submit_request(order: SubmitRequest) -> ApiCall:
    """Return the request: a JSON document, or, for a payload of bytes, a body with a query.

    Raise ConfigError for values that the API's JSON does not have.
    """
    headers = dict(order.headers)
    if order.idempotency_key:
        headers["idempotency-key"] = order.idempotency_key
    if order.source is not None:
        headers["content-type"] = order.fields["content_type"]
        params, repeatable = _query(order.fields), order.repeatable
        return ApiCall("POST", "/v1/jobs", params, headers, order.source, repeatable=repeatable)
    headers["content-type"] = _JSON
    return ApiCall("POST", "/v1/jobs", (), headers, _dump(_document(order)), repeatable=order.repeatable)


def split_arguments(arguments: Mapping[str, Any]) -> tuple[str, Any, SubmitOptions]:
    """Return the model, the input and the options among the arguments of `submit`.

    Raise ConfigError for an unknown name.
    """
    options = dict(arguments)
    model, value = options.pop("model", ""), options.pop("input", UNSET)
    if unknown := sorted(options.keys() - SubmitOptions.__annotations__.keys()):
        raise ConfigError(f"{unknown[0]!r} is not an argument of submit")
    return model, value, cast("SubmitOptions", options)


def encode_batch(documents: Sequence[bytes], *, all_or_nothing: bool, repeatable: bool) -> ApiCall:
    """Return the request of a batch, whose jobs are documents of `batch_document`."""
    document = {"jobs": list(map(orjson.Fragment, documents)), "all_or_nothing": all_or_nothing}
    headers = {"content-type": _JSON}
    return ApiCall(
        "POST", "/v1/jobs/batch", (), headers, orjson.dumps(document), repeatable=repeatable, extra_s=BATCH_S
    )


def batch_document(order: SubmitRequest) -> bytes:
    """Return a submission without a payload of bytes as a job of a batch.

    Raise ConfigError for values that the API's JSON does not have.
    """
    key = {"idempotency_key": order.idempotency_key} if order.idempotency_key else {}
    return _dump(_document(order) | key)


def encode_settings(settings: Mapping[str, Any]) -> bytes:
    """Return settings as JSON. Raise ConfigError for values that JSON does not have."""
    return _dump(dict(settings), "a setting")


def _dump(value: Any, what: str = "an option of the job") -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError as error:
        raise ConfigError(f"{what} is not JSON: {error}") from None


def _document(order: SubmitRequest) -> dict[str, Any]:
    document = dict(order.fields)
    if order.upload:
        document["upload"] = order.upload
    if order.input is not UNSET:
        document["input"] = order.input
    return document


def media_type_of(name: str) -> str:
    """Return the probable media type of a file, by its suffix."""
    known = _ENDINGS.get(Path(name).suffix.lower())
    return known or mimetypes.guess_type(name)[0] or "application/octet-stream"


def list_query(wanted: Filters) -> tuple[tuple[str, str], ...]:
    """Return the query parameters of a list; "" matches all."""
    params: list[tuple[str, str]] = []
    for name, value in wanted.items():
        if name == "states":
            params += [("state", str(state)) for state in wanted.get("states", ())]
        elif name == "tags":
            params += [("tag", f"{tag}={text}") for tag, text in wanted.get("tags", {}).items()]
        elif value not in (None, ""):
            params.append((name, str(value)))
    return tuple(params)


def bulk_filter(wanted: Filters) -> dict[str, Any]:
    """Return the filter of an action on many jobs; "" matches all."""
    found: dict[str, Any] = {}
    for name, value in wanted.items():
        if name == "states":
            found["state"] = [str(state) for state in wanted.get("states", ())]
        elif name == "tags":
            found["tag"] = [f"{tag}={text}" for tag, text in wanted.get("tags", {}).items()]
        elif value not in (None, "") or (name == "tenant" and value is not None):
            found[name] = value
    return found


def _json_order(value: Any, fields: dict[str, Any], key: str, headers: Mapping[str, str]) -> SubmitRequest:
    try:
        text = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError as error:
        raise ConfigError(f"the input is neither bytes, a path nor JSON: {error}") from None
    fields.setdefault("content_type", _JSON)
    if len(text) > INLINE_BYTES_MAX:
        return SubmitRequest(fields, key, source=text, headers=headers)
    return SubmitRequest(fields, key, input=orjson.Fragment(text), headers=headers)


def _query(fields: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    params: list[tuple[str, str]] = []
    for name, value in fields.items():
        if name == "content_type":
            continue
        if name == "tags":
            params += [("tag", f"{tag}={text}") for tag, text in value.items()]
        else:
            params.append((name, value if isinstance(value, str) else _dump(value).decode()))
    # The query parameter model marks the body as the payload.
    return tuple(params) if "model" in fields else (("model", ""), *params)


class ConnectionLostError(Exception):
    """No connection was made, or it broke. `sent`: the request may have reached the server."""

    def __init__(self, why: str, *, sent: bool) -> None:
        super().__init__(why)
        self.sent = sent


class ApiStream(Protocol):
    """The body of a response while it arrives."""

    async def read(self) -> bytes | None:
        """Return the next chunk, None at the end. Raise ConnectionLostError."""
        ...

    async def aclose(self) -> None:
        """Close the connection. A second call does nothing."""
        ...


@dataclass(frozen=True, slots=True)
class ApiResponse:
    """An HTTP response. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    url: str
    stream: ApiStream | None = None
    """The rest of the body, if it was requested as a stream."""


def read_document(response: ApiResponse) -> dict[str, Any]:
    """Return the JSON object of a response. Raise EndpointRefusedError if it has none."""
    try:
        found: Any = orjson.loads(response.body)
    except orjson.JSONDecodeError as error:
        raise EndpointRefusedError(
            response.url, f"the response is not JSON: {error}", status=response.status
        ) from None
    if not isinstance(found, dict):
        raise EndpointRefusedError(response.url, "the response is no JSON object", status=response.status)
    return cast("dict[str, Any]", found)


def read_job_response(response: ApiResponse) -> Job:
    """Return the job of a response. Raise EndpointRefusedError if it has none."""
    return _read_job(read_document(response), response.url)


def read_batch_results(response: ApiResponse) -> list[Job | HeadraceError]:
    """Return the jobs and errors of a batch. Raise EndpointRefusedError if the response has none."""
    results: Any = read_document(response).get("results")
    if not isinstance(results, list):
        raise EndpointRefusedError(response.url, "the response has no results of a batch")
    return [_read_batch_result(result, response.url) for result in cast("list[Any]", results)]


def _read_batch_result(result: Any, url: str) -> Job | HeadraceError:
    if not isinstance(result, dict):
        raise EndpointRefusedError(url, f"the result of a job is {result!r}")
    found = cast("dict[str, Any]", result)
    if "job" in found:
        return _read_job(found["job"], url)
    return error_from_response(ApiResponse(found.get("status", 500), {}, orjson.dumps(found), url))


def _read_job(document: Mapping[str, Any], url: str) -> Job:
    try:
        return read_job(document)
    except (KeyError, TypeError, ValueError) as error:
        raise EndpointRefusedError(url, f"the response is no job: {error!r}") from error


def error_from_response(response: ApiResponse) -> HeadraceError:
    """Return the error of a response, of the class that the API raised if it says so."""
    try:
        document = read_document(response)
    except EndpointRefusedError:
        document = {}
    why = str(document.get("error") or f"responded with status {response.status}")[:_MESSAGE_CHARS]
    kind = _ERRORS.get(str(document.get("type", "")))
    if kind is None:
        plain = EndpointUnavailableError if response.status >= 500 else EndpointRefusedError
        return plain(response.url, why, status=response.status)
    return _remade(kind, why, document)


def _remade(kind: type[HeadraceError], why: str, document: Mapping[str, Any]) -> HeadraceError:
    """Return an error with its original message, which its constructor would change."""
    error = kind.__new__(kind)
    Exception.__init__(error, why)
    for name, default in _FACTS.items():
        value = document.get(name, default)
        setattr(error, name, value if isinstance(value, type(default)) else default)
    if isinstance(error, e.StorageError):
        error.uri, error.why, error.detail = "", why, ""
    if isinstance(error, e.ModelError):
        error.model, error.why = "", why
    return error


@dataclass(frozen=True, slots=True)
class Event:
    """One event. `id` is the last id received, possibly with an earlier event."""

    name: str
    id: str
    data: bytes


class EventReader:
    """A parser of one body.

    Comments and unknown fields are skipped; an unfinished event is dropped.
    """

    def __init__(self, event_bytes_max: int = EVENT_BYTES_MAX) -> None:
        self._event_bytes_max = event_bytes_max
        self._rest = b""
        self._size = 0
        self._name = ""
        self._id = ""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> list[Event]:
        """Return the events that this chunk completes.

        Raise LimitError for an event that is too long.
        """
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        events: list[Event] = []
        for line in lines:
            bare = line.removesuffix(b"\r")
            if bare:
                self._line(bare)
                continue
            if self._data:
                events.append(Event(self._name or "message", self._id, b"\n".join(self._data)))
            self._name, self._data, self._size = "", [], 0
        if self._size + len(self._rest) > self._event_bytes_max:
            raise LimitError(f"an event of the stream exceeds {self._event_bytes_max} bytes")
        return events

    def _line(self, line: bytes) -> None:
        self._size += len(line)
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._name = value.decode(errors="replace")
        elif name == b"id" and b"\0" not in value:
            self._id = value.decode(errors="replace")
