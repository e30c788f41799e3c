"""The responses of a job API: JSON documents, and errors as headrace's own exceptions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import orjson

from headrace.core import errors as e
from headrace.core.errors import EndpointRefusedError, EndpointUnavailableError, HeadraceError

_MESSAGE_CHARS: Final = 4000
_ERRORS: Final[Mapping[str, type[HeadraceError]]] = {
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
        e.ModelNotFoundError,
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
"""Attributes of these errors, with the defaults for responses without them."""


@dataclass(frozen=True, slots=True)
class ApiResponse:
    """An HTTP response. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    url: str


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
        error.uri, error.why = "", why
    if isinstance(error, e.ModelError):
        error.model, error.why = "", why
    return error
