"""Classify the responses of an endpoint. Pure: the caller waits and retries.

`TransientFault` stands for an attempt that may succeed when repeated. Responses are classified by
their status.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from headrace.protocols.oip_documents import decode_error_kind

BRIEF_ATTEMPTS_MAX = 3
"""The limit of attempts for a request whose rows may exhaust the memory."""


class ResponseKind(Enum):
    """The consequence of a response for its request."""

    SUCCESS = auto()
    """The response answers the request."""
    ROWS_REFUSED = auto()
    """The endpoint refuses the request, perhaps only because of some rows."""
    REQUEST_REFUSED = auto()
    """The endpoint refuses every such request: a wrong URL, model name or credentials."""
    RETRY = auto()
    """A transient failure: retry within the budget."""
    RETRY_BRIEFLY = auto()
    """A transient failure, or one caused by the rows: retry a few times, then refuse the rows."""


_RETRIED_STATUSES = frozenset({408, 425, 429, 502, 503, 504})
_SEQUENCE_ERROR_KINDS = frozenset({"sequence_gone", "sequence_lost"})
"""Kinds of errors about sequences, as headrace servers send them."""
_REQUEST_REFUSED_STATUSES = frozenset(
    {401, 402, 403, 404, 405, 406, 407, 410, 411, 415, 426, 431, 501, 505, 511}
)


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A complete response. Header names are in lower case."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


def classify_response(response: HttpResponse) -> ResponseKind:
    """Return the kind of a response, by its status and by sequence errors in its body.

    500 may concern only some of the rows, because the model raised. 507 means that the model is out
    of memory.
    """
    status = response.status
    if 200 <= status < 300:
        return ResponseKind.SUCCESS
    if status in _RETRIED_STATUSES:
        return ResponseKind.RETRY
    if status == 507:
        return ResponseKind.RETRY_BRIEFLY
    if is_sequence_error(response):
        return ResponseKind.ROWS_REFUSED
    if status in _REQUEST_REFUSED_STATUSES or not 400 <= status <= 500:
        return ResponseKind.REQUEST_REFUSED
    return ResponseKind.ROWS_REFUSED


def is_sequence_error(response: HttpResponse) -> bool:
    """Return True if a refusal says that a sequence has ended or has lost its state.

    The client must start such a sequence again.
    """
    return response.status in (409, 410) and decode_error_kind(response.body) in _SEQUENCE_ERROR_KINDS


def describe_refusal(response: HttpResponse, text: str) -> str:
    """Return the message of a refusal, with advice. `text` is the server's own message."""
    detail = f": {text}" if text else ""
    status = response.status
    if status == 401:
        advice = " (it requires credentials: set or correct HEADRACE_ENDPOINT_TOKEN)"
    elif status == 403:
        advice = " (the credentials do not allow this)"
    elif status in (404, 410) and not is_sequence_error(response):
        advice = " (are the model's name, its version and the URL right?)"
    elif 300 <= status < 400:
        advice = f" (it redirects to {response.headers.get('location', '?')}: use that URL)"
    else:
        advice = ""
    return f"HTTP {status}{detail}{advice}"
