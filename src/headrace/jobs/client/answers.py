"""What a job API answers: documents, and errors as the ones of our own tree that they were."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import orjson

from headrace.core import errors as e
from headrace.core.errors import EndpointRefusedError, EndpointUnavailableError, HeadraceError

_MESSAGE_CHARS: Final = 4000
_KNOWN: Final[Mapping[str, type[HeadraceError]]] = {
    kind.__name__: kind
    for kind in (
        e.ConfigError,
        e.DataError,
        e.ForbiddenError,
        e.IdempotencyError,
        e.JobLedgerUnavailableError,
        e.JobNotFoundError,
        e.JobStateError,
        e.LimitError,
        e.OverloadedError,
        e.QueueClosedError,
        e.QueueFullError,
        e.RefusedAddressError,
        e.ResultGoneError,
        e.StoppedError,
        e.UnauthenticatedError,
        e.UnavailableError,
        e.UnsupportedError,
    )
}
_FACTS: Final[Mapping[str, Any]] = {"job_id": "", "state": "", "key": "", "retry_after_s": 1.0}
"""Attributes of those errors, and what they are where the answer does not say."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP response. Names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    url: str


def read_document(answer: Answer) -> dict[str, Any]:
    """The JSON object of an answer. EndpointRefusedError where there is none: something else listens there."""
    try:
        found: Any = orjson.loads(answer.body)
    except orjson.JSONDecodeError as error:
        raise EndpointRefusedError(
            answer.url, f"what came is not JSON: {error}", status=answer.status
        ) from None
    if not isinstance(found, dict):
        raise EndpointRefusedError(answer.url, "what came is no JSON object", status=answer.status)
    return cast("dict[str, Any]", found)


def error_of(answer: Answer) -> HeadraceError:
    """The error that an answer tells of: of the kind that the API raised, where it says so."""
    try:
        document = read_document(answer)
    except EndpointRefusedError:
        document = {}
    why = str(document.get("error") or f"answered with status {answer.status}")[:_MESSAGE_CHARS]
    kind = _KNOWN.get(str(document.get("type", "")))
    if kind is None:
        plain = EndpointUnavailableError if answer.status >= 500 else EndpointRefusedError
        return plain(answer.url, why, status=answer.status)
    return _remade(kind, why, document)


def _remade(kind: type[HeadraceError], why: str, document: Mapping[str, Any]) -> HeadraceError:
    """An error with the words that it had: its own constructor would find others."""
    error = kind.__new__(kind)
    Exception.__init__(error, why)
    for name, default in _FACTS.items():
        value = document.get(name, default)
        setattr(error, name, value if isinstance(value, type(default)) else default)
    if isinstance(error, e.StorageError):
        error.uri, error.why = "", why
    return error
