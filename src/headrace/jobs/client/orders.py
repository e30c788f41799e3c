"""What a caller of the client wants done, and how it is said to the API."""

import mimetypes
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypedDict

import orjson

from headrace.core.errors import ConfigError
from headrace.jobs.job import Kind

INLINE_BYTES_MAX: Final = 1 << 20
"""Payloads beyond it are uploaded first. APIs take no less with a submission, unless a key says so."""
_JSON: Final = "application/json"
_ENDINGS: Final = {
    ".jsonl": "application/jsonlines",
    ".ndjson": "application/jsonlines",
    ".csv": "text/csv",
    ".json": _JSON,
    ".parquet": "application/x-parquet",
    ".tfrecord": "application/x-tfrecord",
    ".txt": "text/plain",
}


class Nothing:
    """Where None is a value."""


NOTHING: Final = Nothing()


class SubmitOptions(TypedDict, total=False):
    """What a submission may say beside its model and its payload."""

    input_uri: str
    """In place of a payload: an object that is there already, and that the key may read."""
    kind: Kind
    queue: str
    """Whose workers take it."""
    content_type: str
    """How to read the payload; a file's name tells it otherwise."""
    accept: str
    """How to write the result."""
    output_uri: str
    """A prefix to publish the result below, as ``KEY.out``."""
    key: str
    """The KEY; the job's id otherwise."""
    region: str
    """Where its data lives; workers of that region take it first."""
    options: Mapping[str, Any]
    """What the kind takes besides."""
    priority: int
    """0 is taken first, 9 last."""
    delay_s: float
    """How long from now it becomes due."""
    attempts_max: int
    time_limit_s: float
    """The longest that one attempt may take."""
    time_to_live_s: float
    """It expires unless it is begun by then."""
    deadline_s: float
    """It expires unless it is done by then."""
    tags: Mapping[str, str]
    notify: Sequence[Mapping[str, Any]]
    """Whom to tell."""
    correlation_id: str
    """The caller's own name for it."""
    upload: str
    """In place of a payload: what `upload` gave. Needs a `content_type`."""
    idempotency_key: str
    """The same key and submission are the same job, for as long as that is kept. Where it is not given one is made, so that
    the client may try again; with "" there is none, and then an answer that is lost is an error."""
    traceparent: str
    """The trace that it belongs to."""


class Filters(TypedDict, total=False):
    """Which jobs to list; all that is given must hold."""

    queue: str
    states: Sequence[str]
    model: str
    kind: str
    correlation_id: str
    tags: Mapping[str, str]
    tenant: str
    """For keys that see everybody's."""
    created_from_ms: int
    created_before_ms: int


@dataclass(frozen=True, slots=True)
class Order:
    """A submission. `fields` are those of the API's document that were given.

    Its payload is `source` (bytes or a file), `upload`, a value to be told as JSON (`input`), or an object that is there
    already (``input_uri`` in `fields`).
    """

    fields: Mapping[str, Any]
    idempotency_key: str
    source: bytes | Path | None = None
    upload: str = ""
    input: Any = NOTHING
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def keyed(self) -> bool:
        """Whether it may be sent twice."""
        return bool(self.idempotency_key or self.upload)


@dataclass(frozen=True, slots=True)
class Said:
    """The parts of a request that say an order."""

    params: tuple[tuple[str, str], ...]
    headers: Mapping[str, str]
    content: bytes | Path


def order_of(model: str, given: Any, options: SubmitOptions) -> Order:
    """An order from what a caller of `submit` gave. ConfigError for a payload that cannot be one."""
    told: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    key = told.pop("idempotency_key", None)
    key = secrets.token_hex(16) if key is None else key
    trace, upload = told.pop("traceparent", ""), told.pop("upload", "")
    headers = {"traceparent": trace} if trace else {}
    if model:
        told["model"] = model
    named = [name for name, is_given in (("input_uri", "input_uri" in told), ("upload", upload)) if is_given]
    if given is not NOTHING:
        named.append("input")
    if len(named) != 1:
        raise ConfigError(f"give one of input, input_uri and upload, not {' and '.join(named) or 'none'}")
    if given is NOTHING:
        return Order(told, key, upload=upload, headers=headers)
    if isinstance(given, Path):
        if not given.is_file():
            raise ConfigError(f"{given}: there is no such file")
        told.setdefault("content_type", media_type_of(given.name))
        return Order(told, key, source=given, headers=headers)
    if isinstance(given, bytes | bytearray):
        told.setdefault("content_type", "application/octet-stream")
        return Order(told, key, source=bytes(given), headers=headers)
    if isinstance(given, str) and told.get("content_type", _JSON) != _JSON:
        return Order(told, key, source=given.encode(), headers=headers)
    return _json_order(given, told, key, headers)


def document_of(order: Order) -> Said:
    """How an order is said: as a JSON document, or, where its payload is bytes, as those with all else in the query.

    Raises ConfigError for values that JSON, as the API reads it, has not got.
    """
    try:
        return _document_of(order)
    except TypeError as error:
        raise ConfigError(f"an option of the job is nothing that the API can be told: {error}") from None


def _document_of(order: Order) -> Said:
    headers = dict(order.headers)
    if order.idempotency_key:
        headers["idempotency-key"] = order.idempotency_key
    if order.source is not None:
        headers["content-type"] = order.fields["content_type"]
        return Said(_query(order.fields), headers, order.source)
    document = dict(order.fields)
    if order.upload:
        document["upload"] = order.upload
    if order.input is not NOTHING:
        document["input"] = order.input
    headers["content-type"] = _JSON
    return Said((), headers, orjson.dumps(document))


def media_type_of(name: str) -> str:
    """What a file most likely holds, by its name's ending."""
    known = _ENDINGS.get(Path(name).suffix.lower())
    return known or mimetypes.guess_type(name)[0] or "application/octet-stream"


def query_of(wanted: Filters) -> tuple[tuple[str, str], ...]:
    """The query of a listing; what is "" is not asked for."""
    params: list[tuple[str, str]] = []
    for name, value in wanted.items():
        if name == "states":
            params += [("state", str(state)) for state in wanted.get("states", ())]
        elif name == "tags":
            params += [("tag", f"{tag}={text}") for tag, text in wanted.get("tags", {}).items()]
        elif value not in (None, ""):
            params.append((name, str(value)))
    return tuple(params)


def _json_order(given: Any, told: dict[str, Any], key: str, headers: Mapping[str, str]) -> Order:
    try:
        text = orjson.dumps(given, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError as error:
        raise ConfigError(
            f"the input is neither bytes, a path, nor anything that JSON has: {error}"
        ) from None
    told.setdefault("content_type", _JSON)
    if len(text) > INLINE_BYTES_MAX:
        return Order(told, key, source=text, headers=headers)
    return Order(told, key, input=orjson.Fragment(text), headers=headers)


def _query(fields: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    params: list[tuple[str, str]] = []
    for name, value in fields.items():
        if name == "content_type":
            continue
        if name == "tags":
            params += [("tag", f"{tag}={text}") for tag, text in value.items()]
        else:
            params.append((name, value if isinstance(value, str) else orjson.dumps(value).decode()))
    # It is what says that the body is the payload.
    return tuple(params) if "model" in fields else (("model", ""), *params)
