"""Which status an error becomes, in HTTP and in gRPC. No other module knows status codes.

==============================================  ====  =====================
error                                           HTTP  gRPC
==============================================  ====  =====================
DataError, ModelInputError, ConfigError         400   INVALID_ARGUMENT
UnauthenticatedError                            401   UNAUTHENTICATED
ForbiddenError                                  403   PERMISSION_DENIED
ModelNotFoundError                              404   NOT_FOUND
LimitError                                      413   RESOURCE_EXHAUSTED
RefusedRowsError                                422   INVALID_ARGUMENT
OverloadedError (with Retry-After)              429   RESOURCE_EXHAUSTED
CancelledRequestError                           499   CANCELLED
PredictError, ModelContractError                500   INTERNAL
UnsupportedError                                501   UNIMPLEMENTED
ModelNotReadyError, StoppedError                503   UNAVAILABLE
InstanceLostError                               503   UNAVAILABLE
ModelLoadError                                  503   FAILED_PRECONDITION
DeadlineError                                   504   DEADLINE_EXCEEDED
anything else                                   500   INTERNAL
==============================================  ====  =====================

The text of a `HeadraceError` goes out: what a model raised is in it as the model said it (`PredictError`), which is meant,
since nobody else can tell a caller what is wrong with rows. Why a model did not load is told to those alone who load it.
What is no `HeadraceError` is a defect of ours: it is logged, and the caller is told "internal error" and nothing more.
"""

import logging
from dataclasses import dataclass
from math import ceil
from typing import Final

from headrace.core import errors as e

_log = logging.getLogger("headrace.server")

_TABLE: Final[tuple[tuple[type[BaseException], int, str], ...]] = (
    # The more special first.
    (e.UnauthenticatedError, 401, "UNAUTHENTICATED"),
    (e.ForbiddenError, 403, "PERMISSION_DENIED"),
    (e.ModelNotFoundError, 404, "NOT_FOUND"),
    (e.LimitError, 413, "RESOURCE_EXHAUSTED"),
    (e.RefusedRowsError, 422, "INVALID_ARGUMENT"),
    (e.OverloadedError, 429, "RESOURCE_EXHAUSTED"),
    (e.CancelledRequestError, 499, "CANCELLED"),
    (e.DeadlineError, 504, "DEADLINE_EXCEEDED"),
    (e.UnsupportedError, 501, "UNIMPLEMENTED"),
    (e.ModelNotReadyError, 503, "UNAVAILABLE"),
    (e.StoppedError, 503, "UNAVAILABLE"),
    (e.InstanceLostError, 503, "UNAVAILABLE"),
    (e.ModelLoadError, 503, "FAILED_PRECONDITION"),
    (e.ModelInputError, 400, "INVALID_ARGUMENT"),
    (e.DataError, 400, "INVALID_ARGUMENT"),
    (e.ConfigError, 400, "INVALID_ARGUMENT"),
    (e.HeadraceError, 500, "INTERNAL"),
)
INTERNAL: Final = "internal error"
WHY_CHARS_MAX: Final = 2000
"""Of an error's text: names in it may be as long as whoever asked made them."""
NOT_FOUND: Final = 404


@dataclass(frozen=True, slots=True)
class Status:
    """What a caller is told: HTTP status, gRPC code by name, text, and when to ask again."""

    http: int
    grpc: str
    why: str
    retry_after_s: int | None = None


def status_of(error: BaseException) -> Status:
    """The status of an error. What nobody expected is logged here."""
    found = next(((http, grpc) for kind, http, grpc in _TABLE if isinstance(error, kind)), None)
    if found is None:
        _log.error("a request failed in an unexpected way", exc_info=error)
        return Status(500, "INTERNAL", INTERNAL)
    after_s = ceil(error.retry_after_s) if isinstance(error, e.OverloadedError) else None
    if isinstance(error, e.StoppedError):
        after_s = 1
    why = str(error)
    return Status(*found, why if len(why) <= WHY_CHARS_MAX else f"{why[:WHY_CHARS_MAX]}…", after_s)
