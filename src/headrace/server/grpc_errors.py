"""Which gRPC status an error becomes: nothing else knows one."""

import logging
from enum import IntEnum
from math import ceil
from typing import Final

from headrace.core.errors import (
    CancelledRequestError,
    ConfigError,
    DataError,
    DeadlineError,
    ForbiddenError,
    HeadraceError,
    InstanceLostError,
    LimitError,
    ModelContractError,
    ModelInputError,
    ModelNotFoundError,
    ModelNotReadyError,
    OverloadedError,
    PredictError,
    StoppedError,
    UnauthenticatedError,
    UnsupportedError,
)

_LOG = logging.getLogger(__name__)

MESSAGE_CHARS_MAX: Final = 4000
"""Of a status message: it travels in a header, and clients limit those to 8 KiB."""


class GrpcCode(IntEnum):
    """Status codes of gRPC that are used here."""

    OK = 0
    CANCELLED = 1
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


_CODES: Final[dict[type[HeadraceError], GrpcCode]] = {
    DataError: GrpcCode.INVALID_ARGUMENT,
    ModelInputError: GrpcCode.INVALID_ARGUMENT,
    ConfigError: GrpcCode.INVALID_ARGUMENT,
    ModelNotFoundError: GrpcCode.NOT_FOUND,
    ModelNotReadyError: GrpcCode.UNAVAILABLE,
    StoppedError: GrpcCode.UNAVAILABLE,
    InstanceLostError: GrpcCode.UNAVAILABLE,
    OverloadedError: GrpcCode.RESOURCE_EXHAUSTED,
    LimitError: GrpcCode.RESOURCE_EXHAUSTED,
    DeadlineError: GrpcCode.DEADLINE_EXCEEDED,
    CancelledRequestError: GrpcCode.CANCELLED,
    UnauthenticatedError: GrpcCode.UNAUTHENTICATED,
    ForbiddenError: GrpcCode.PERMISSION_DENIED,
    UnsupportedError: GrpcCode.UNIMPLEMENTED,
    PredictError: GrpcCode.INTERNAL,
    ModelContractError: GrpcCode.INTERNAL,
}


def grpc_status(error: BaseException) -> tuple[GrpcCode, str]:
    """The code and the message that a caller gets.

    What is no error of ours says only "internal error", and is logged with its traceback.
    """
    for kind in type(error).__mro__:
        if code := _CODES.get(kind):
            return code, str(error)[:MESSAGE_CHARS_MAX]
    _LOG.error("a call failed by a defect", exc_info=error)
    return GrpcCode.INTERNAL, "internal error"


def trailing_metadata(error: BaseException) -> tuple[tuple[str, str], ...]:
    """What goes beside the status: of an overload, when to come back, in seconds and as gRPC's own retry policy reads it."""
    if not isinstance(error, OverloadedError):
        return ()
    return (
        ("retry-after-s", f"{error.retry_after_s:.3f}"),
        ("grpc-retry-pushback-ms", str(ceil(error.retry_after_s * 1000))),
    )
