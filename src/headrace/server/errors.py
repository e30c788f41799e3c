"""Which status an error becomes, in HTTP and in gRPC. No other module knows status codes.

==============================================  ====  =====================
error                                           HTTP  gRPC
==============================================  ====  =====================
DataError, ModelInputError, ConfigError         400   INVALID_ARGUMENT
UnauthenticatedError                            401   UNAUTHENTICATED
ForbiddenError                                  403   PERMISSION_DENIED
ModelNotFoundError, JobNotFoundError            404   NOT_FOUND
JobStateError                                   409   FAILED_PRECONDITION
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
ModelLoadError                                  503   FAILED_PRECONDITION
DeadlineError                                   504   DEADLINE_EXCEEDED
anything else                                   500   INTERNAL
==============================================  ====  =====================

The text of a `HeadraceError` goes out: what a model raised is in it as the model said it (`PredictError`), which is meant,
since nobody else can tell a caller what is wrong with rows. Why a model did not load is told to those alone who load it.
Errors of sequences have a `kind` besides, since other errors have the same statuses: over REST in the body, beside the text;
over gRPC in the trailing metadata, as ``headrace-error-kind``.
What is no `HeadraceError` is a defect of ours: it is logged, and the caller is told "internal error" and nothing more.
"""

import logging
from dataclasses import dataclass
from enum import IntEnum
from math import ceil
from typing import Final

from headrace.core import errors as e

_log = logging.getLogger("headrace.server")

MESSAGE_CHARS_MAX: Final = 4000
"""Of what a caller is told: over gRPC it travels in a header, and clients limit those to 8 KiB."""
INTERNAL: Final = "internal error"
LEDGER_AWAY: Final = "the job ledger does not answer: ask again; what has an idempotency key is queued once, however often it is sent"
ERROR_KIND: Final = "headrace-error-kind"
"""Trailing metadata that says the kind of an error of a sequence."""
INTERNAL_ERROR: Final = 500
NOT_FOUND: Final = 404
CLIENT_GONE: Final = 499
"""What is counted where nobody was left who could be answered."""

_FAULTS: Final = frozenset(
    {"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"}
)


class GrpcCode(IntEnum):
    """Status codes of gRPC that are used here."""

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
    # The more special first.
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
    (e.JobStateError, 409, GrpcCode.FAILED_PRECONDITION),
    (e.ResultGoneError, 410, GrpcCode.NOT_FOUND),
    (e.IdempotencyError, 422, GrpcCode.INVALID_ARGUMENT),
    (e.QueueFullError, 429, GrpcCode.RESOURCE_EXHAUSTED),
    (e.QueueClosedError, 503, GrpcCode.UNAVAILABLE),
    (e.JobLedgerUnavailableError, 503, GrpcCode.UNAVAILABLE),
    (e.UnavailableError, 503, GrpcCode.UNAVAILABLE),
    (e.HeadraceError, 500, GrpcCode.INTERNAL),
)


# These say themselves when to ask again.
_PUSHED_BACK: Final = (e.OverloadedError, e.SequenceFullError, e.TooManySequencesError)
_ASK_AGAIN_S: Final[tuple[tuple[type[BaseException], int], ...]] = (
    (e.StoppedError, 1),
    (e.JobLedgerUnavailableError, 2),
    (e.UnavailableError, 2),
    # Somebody has to end it by hand.
    (e.QueueClosedError, 30),
)


@dataclass(frozen=True, slots=True)
class Status:
    """What a caller is told: HTTP status, gRPC code, text, when to ask again, and a word for the kind of an error of a sequence."""

    http: int
    grpc: GrpcCode
    why: str
    retry_after_s: int | None = None
    kind: str = ""


def is_fault(status: int | str) -> bool:
    """Whether a status, HTTP's or gRPC's by name, tells of a fault on this side."""
    return status >= 500 if isinstance(status, int) else status in _FAULTS


def status_of(error: BaseException) -> Status:
    """The status of an error. What nobody expected is logged here."""
    status = quiet_status_of(error)
    if status.why is LEDGER_AWAY:
        _log.warning("%s", error)
    if status.why is INTERNAL:
        _log.error("a request failed in an unexpected way", exc_info=error)
    return status


def quiet_status_of(error: BaseException) -> Status:
    """The status of an error that somebody else logs."""
    found = next(((http, grpc) for kind, http, grpc in _TABLE if isinstance(error, kind)), None)
    if found is None:
        return Status(INTERNAL_ERROR, GrpcCode.INTERNAL, INTERNAL)
    # Where a database is, and what it said, is for the log.
    away = isinstance(error, e.JobLedgerUnavailableError)
    why = LEDGER_AWAY if away else str(error)[:MESSAGE_CHARS_MAX]
    return Status(*found, why, _retry_after_s(error), kind_of(error))


def _retry_after_s(error: BaseException) -> int | None:
    if isinstance(error, (*_PUSHED_BACK, e.QueueFullError)):
        return ceil(error.retry_after_s)
    return next((seconds for kind, seconds in _ASK_AGAIN_S if isinstance(error, kind)), None)


def grpc_status(error: BaseException) -> tuple[GrpcCode, str]:
    """The code and the message of an error, for a gRPC caller."""
    status = status_of(error)
    return status.grpc, status.why


def kind_of(error: BaseException) -> str:
    """The word that tells errors of sequences apart; empty for others."""
    return error.kind if isinstance(error, e.SequenceError) else ""


def trailing_metadata(error: BaseException) -> tuple[tuple[str, str], ...]:
    """What goes beside a gRPC status: when to come back, in seconds and as gRPC's own retry policy reads it; the error's kind."""
    kind = kind_of(error)
    told = ((ERROR_KIND, kind),) if kind else ()
    if not isinstance(error, _PUSHED_BACK):
        return told
    return (
        *told,
        ("retry-after-s", f"{error.retry_after_s:.3f}"),
        ("grpc-retry-pushback-ms", str(ceil(error.retry_after_s * 1000))),
    )
