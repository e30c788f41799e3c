"""The HTTP and gRPC status of each error. No other module knows status codes.

==============================================  ====  =====================
error                                           HTTP  gRPC
==============================================  ====  =====================
DataError, ModelInputError, ConfigError         400   INVALID_ARGUMENT
UnauthenticatedError                            401   UNAUTHENTICATED
ForbiddenError                                  403   PERMISSION_DENIED
ModelNotFoundError, JobNotFoundError            404   NOT_FOUND
EndpointNotFoundError                           404   NOT_FOUND
ResourceNotFoundError                           404   NOT_FOUND
JobStateError, OutputTakenError                 409   FAILED_PRECONDITION
QueueInUseError                                 409   FAILED_PRECONDITION
SequenceLostError                               409   ABORTED
SequenceGoneError                               410   NOT_FOUND
ResultGoneError                                 410   NOT_FOUND
LimitError                                      413   RESOURCE_EXHAUSTED
RefusedRowsError, IdempotencyError              422   INVALID_ARGUMENT
OverloadedError (with Retry-After)              429   RESOURCE_EXHAUSTED
QueueFullError (with Retry-After)               429   RESOURCE_EXHAUSTED
SequenceFullError (with Retry-After)            429   RESOURCE_EXHAUSTED
CancelledRequestError                           499   CANCELLED
PredictError, ModelContractError                500   INTERNAL
UnsupportedError                                501   UNIMPLEMENTED
ModelNotReadyError, StoppedError                503   UNAVAILABLE
InstanceLostError, UnavailableError             503   UNAVAILABLE
TooManySequencesError (with Retry-After)        503   UNAVAILABLE
JobLedgerUnavailableError (with Retry-After)    503   UNAVAILABLE
QueueClosedError (with Retry-After)             503   UNAVAILABLE
UncontrolledPoolError                           503   UNAVAILABLE
ModelLoadError                                  503   FAILED_PRECONDITION
DeadlineError                                   504   DEADLINE_EXCEEDED
anything else                                   500   INTERNAL
==============================================  ====  =====================

Clients receive the text of a `HeadraceError`. The text of a `PredictError` contains the message of
the model on purpose: only the model knows what is wrong with the rows. The reason for a failed load
goes only to clients that may load models. Errors of sequences also have a `kind`, because other
errors share their statuses: over REST in the body, over gRPC in the trailing metadata
``headrace-error-kind``. Any other exception is a defect of headrace. It is logged, and the client
receives only "internal error".
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from math import ceil
from typing import Any, Final

from headrace.core import errors as e
from headrace.protocols.oip_documents import ERROR_KIND, encode_error

_log = logging.getLogger("headrace.server")

MESSAGE_CHARS_MAX: Final = 4000
"""The maximum length of an error text. gRPC sends it in a header, which clients limit to 8 KiB."""
INTERNAL: Final = "internal error"
STOPPING: Final = "the server is stopping"
"""The error of a stream that the server cuts off."""
INTERNAL_ERROR: Final = 500
NOT_FOUND: Final = 404
METHOD_NOT_ALLOWED: Final = 405
CLIENT_DISCONNECTED: Final = 499
"""The status that is counted if the client disconnected before the response (nginx's 499)."""

STATUS_DESCRIPTIONS: Final = {
    400: "The request is malformed or does not fit the model; `error` names the field.",
    401: "The API key is missing or unknown.",
    403: "The API key lacks the permission, or this server does not offer the operation.",
    404: "The model, version, job or endpoint is unknown, or is not visible to the key; or no worker has the "
    "model.",
    408: "The body did not arrive in time.",
    409: "The state of the job does not allow the operation, another job owns the output's name, the queue "
    "has unfinished jobs, or the state of the sequence is lost.",
    410: "The sequence or the result is gone.",
    413: "The body exceeds the size limit, or has more rows than the queue holds.",
    422: "The model refused rows of the request, or the idempotency key belongs to another submission.",
    429: "Too many requests, rows or jobs wait, or the API key has reached a limit: retry after "
    "`Retry-After` seconds.",
    500: "The model failed on the request.",
    501: "This part of the protocol is not supported; the text names an alternative.",
    503: "The model, the database or the object store is not ready, too many sequences are live, the queue "
    "is draining, or the server is stopping: retry after `Retry-After` seconds.",
    504: "The timeout of the request has passed.",
}
_FACTS: Final = ("job_id", "state", "retry_after_s", "key")
"""Attributes of errors that headrace's client restores."""
_SERVER_FAULTS: Final = frozenset(
    {"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"}
)


class GrpcCode(IntEnum):
    """The gRPC status codes that headrace sends."""

    OK = 0
    CANCELLED = 1
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


_TABLE: Final[tuple[tuple[type[BaseException], int, GrpcCode], ...]] = (
    # Subclasses come before their base classes.
    (e.UnauthenticatedError, 401, GrpcCode.UNAUTHENTICATED),
    (e.ForbiddenError, 403, GrpcCode.PERMISSION_DENIED),
    (e.ModelNotFoundError, 404, GrpcCode.NOT_FOUND),
    (e.LimitError, 413, GrpcCode.RESOURCE_EXHAUSTED),
    (e.RefusedRowsError, 422, GrpcCode.INVALID_ARGUMENT),
    (e.OverloadedError, 429, GrpcCode.RESOURCE_EXHAUSTED),
    (e.CancelledRequestError, 499, GrpcCode.CANCELLED),
    (e.DeadlineError, 504, GrpcCode.DEADLINE_EXCEEDED),
    (e.UnsupportedError, 501, GrpcCode.UNIMPLEMENTED),
    (e.ModelNotReadyError, 503, GrpcCode.UNAVAILABLE),
    (e.StoppedError, 503, GrpcCode.UNAVAILABLE),
    (e.InstanceLostError, 503, GrpcCode.UNAVAILABLE),
    (e.ModelLoadError, 503, GrpcCode.FAILED_PRECONDITION),
    (e.ModelInputError, 400, GrpcCode.INVALID_ARGUMENT),
    (e.DataError, 400, GrpcCode.INVALID_ARGUMENT),
    (e.ConfigError, 400, GrpcCode.INVALID_ARGUMENT),
    (e.SequenceLostError, 409, GrpcCode.ABORTED),
    (e.SequenceGoneError, 410, GrpcCode.NOT_FOUND),
    (e.SequenceFullError, 429, GrpcCode.RESOURCE_EXHAUSTED),
    (e.TooManySequencesError, 503, GrpcCode.UNAVAILABLE),
    (e.JobNotFoundError, 404, GrpcCode.NOT_FOUND),
    (e.EndpointNotFoundError, 404, GrpcCode.NOT_FOUND),
    (e.ResourceNotFoundError, 404, GrpcCode.NOT_FOUND),
    (e.JobStateError, 409, GrpcCode.FAILED_PRECONDITION),
    (e.OutputTakenError, 409, GrpcCode.FAILED_PRECONDITION),
    (e.QueueInUseError, 409, GrpcCode.FAILED_PRECONDITION),
    (e.ResultGoneError, 410, GrpcCode.NOT_FOUND),
    (e.IdempotencyError, 422, GrpcCode.INVALID_ARGUMENT),
    (e.QueueFullError, 429, GrpcCode.RESOURCE_EXHAUSTED),
    (e.QueueClosedError, 503, GrpcCode.UNAVAILABLE),
    (e.UncontrolledPoolError, 503, GrpcCode.UNAVAILABLE),
    (e.JobLedgerUnavailableError, 503, GrpcCode.UNAVAILABLE),
    (e.UnavailableError, 503, GrpcCode.UNAVAILABLE),
    (e.HeadraceError, 500, GrpcCode.INTERNAL),
)


# These errors have a `retry_after_s` of their own.
_RETRY_LATER: Final = (e.OverloadedError, e.SequenceFullError, e.TooManySequencesError)
_RETRY_AFTER_S: Final[tuple[tuple[type[BaseException], int], ...]] = (
    (e.StoppedError, 1),
    (e.JobLedgerUnavailableError, 2),
    (e.UnavailableError, 2),
    # An operator has to reopen the queue.
    (e.QueueClosedError, 30),
)


@dataclass(frozen=True, slots=True)
class ErrorStatus:
    """The status of an error in both protocols, and the text for the client.

    `kind` tells errors of sequences apart; it is empty for other errors. `type` is the class of the
    error that headrace's client raises, and `facts` are its attributes.
    """

    http: int
    grpc: GrpcCode
    why: str
    retry_after_s: int | None = None
    kind: str = ""
    type: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])


class StatusError(Exception):
    """An error of a route that has a status of its own."""

    def __init__(self, status: ErrorStatus) -> None:
        super().__init__(status.why)
        self.status = status


SLOW_BODY: Final = ErrorStatus(408, GrpcCode.DEADLINE_EXCEEDED, "the body did not arrive in time")


def is_fault(status: int | str) -> bool:
    """Return True if an HTTP status, or a gRPC code by name, reports a fault of the server."""
    return status >= 500 if isinstance(status, int) else status in _SERVER_FAULTS


def status_of(error: BaseException) -> ErrorStatus:
    """Return the status of an error. Log it if it is unexpected."""
    status = quiet_status_of(error)
    if isinstance(error, e.HeadraceError) and error.public_message != str(error):
        _log.warning("%s", error)
    if status.why is INTERNAL:
        _log.error("unexpected error in a request", exc_info=error)
    return status


def quiet_status_of(error: BaseException) -> ErrorStatus:
    """Return the status of an error without logging it."""
    found = next(((http, grpc) for kind, http, grpc in _TABLE if isinstance(error, kind)), None)
    if found is None:
        return ErrorStatus(INTERNAL_ERROR, GrpcCode.INTERNAL, INTERNAL, type="InternalError")
    assert isinstance(error, e.HeadraceError)
    why = error.public_message[:MESSAGE_CHARS_MAX]
    facts = {name: getattr(error, name) for name in _FACTS if hasattr(error, name)}
    return ErrorStatus(*found, why, _retry_after_s(error), kind_of(error), type(error).__name__, facts)


def error_body(status: ErrorStatus, request_id: str = "") -> bytes:
    """Return the body of an error response, of every route: ``error`` and the facts for programs."""
    facts = dict(status.facts)
    if status.type:
        facts["type"] = status.type
    if request_id:
        facts["request_id"] = request_id
    return encode_error(status.why, status.kind, **facts)


def error_headers(status: ErrorStatus) -> Sequence[tuple[bytes, bytes]]:
    """Return the additional headers of an error response."""
    headers: list[tuple[bytes, bytes]] = []
    if status.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % status.retry_after_s))
    if status.http == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    return headers


def _retry_after_s(error: BaseException) -> int | None:
    if isinstance(error, (*_RETRY_LATER, e.QueueFullError)):
        return ceil(error.retry_after_s)
    return next((seconds for kind, seconds in _RETRY_AFTER_S if isinstance(error, kind)), None)


def grpc_status(error: BaseException) -> tuple[GrpcCode, str]:
    """Return the gRPC code and message of an error. Log the error if it is unexpected."""
    status = status_of(error)
    return status.grpc, status.why


def kind_of(error: BaseException) -> str:
    """Return the kind of a sequence error, or an empty string."""
    return error.kind if isinstance(error, e.SequenceError) else ""


def trailing_metadata(error: BaseException) -> tuple[tuple[str, str], ...]:
    """Return the trailing gRPC metadata of an error: its kind, and the time to wait before a retry.

    The time is in seconds, and also in the form that gRPC's own retry policy reads.
    """
    kind = kind_of(error)
    metadata = ((ERROR_KIND, kind),) if kind else ()
    if not isinstance(error, _RETRY_LATER):
        return metadata
    return (
        *metadata,
        ("retry-after-s", f"{error.retry_after_s:.3f}"),
        ("grpc-retry-pushback-ms", str(ceil(error.retry_after_s * 1000))),
    )
