"""The gRPC status of an error, by the names that `headrace.server.errors` gives."""

from enum import IntEnum
from math import ceil
from typing import Final

from headrace.core.errors import OverloadedError
from headrace.server.errors import status_of

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
    FAILED_PRECONDITION = 9
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


def grpc_status(error: BaseException) -> tuple[GrpcCode, str]:
    """The code and the message that a caller gets; see the table of `headrace.server.errors`.

    What is no error of ours says only "internal error", and is logged with its traceback.
    """
    status = status_of(error)
    return GrpcCode[status.grpc], status.why[:MESSAGE_CHARS_MAX]


def trailing_metadata(error: BaseException) -> tuple[tuple[str, str], ...]:
    """What goes beside the status: of an overload, when to come back, in seconds and as gRPC's own retry policy reads it."""
    if not isinstance(error, OverloadedError):
        return ()
    return (
        ("retry-after-s", f"{error.retry_after_s:.3f}"),
        ("grpc-retry-pushback-ms", str(ceil(error.retry_after_s * 1000))),
    )
