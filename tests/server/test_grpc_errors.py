"""Every error has a status, and only ours say what happened."""

import logging

import pytest

from headrace.core import errors
from headrace.server.grpc_errors import MESSAGE_CHARS_MAX, GrpcCode, grpc_status, trailing_metadata


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.TruncatedError("ends", byte=1), GrpcCode.INVALID_ARGUMENT),
        (errors.MissingExtraError("x", "y"), GrpcCode.INVALID_ARGUMENT),
        (errors.ModelNotFoundError("m", "no"), GrpcCode.NOT_FOUND),
        (errors.StoppedError("stopped"), GrpcCode.UNAVAILABLE),
        (errors.InstanceLostError("m", "died"), GrpcCode.UNAVAILABLE),
        (errors.LimitError("too large"), GrpcCode.RESOURCE_EXHAUSTED),
        (errors.DeadlineError("late"), GrpcCode.DEADLINE_EXCEEDED),
        (errors.CancelledRequestError("gone"), GrpcCode.CANCELLED),
        (errors.ForbiddenError("no"), GrpcCode.PERMISSION_DENIED),
        (errors.UnsupportedError("no"), GrpcCode.UNIMPLEMENTED),
        (errors.ModelContractError("m", "rows"), GrpcCode.INTERNAL),
        (errors.RefusedRowsError("m", "row 1: negative"), GrpcCode.INVALID_ARGUMENT),
        (errors.ModelLoadError("m", "no such file"), GrpcCode.FAILED_PRECONDITION),
    ],
)
def test_an_error_of_ours_keeps_its_words(error, code):
    assert grpc_status(error) == (code, str(error))


@pytest.mark.parametrize("error", [ValueError("secret"), KeyError(1)])
def test_a_defect_is_logged_and_says_nothing(error, caplog):
    with caplog.at_level(logging.ERROR):
        assert grpc_status(error) == (GrpcCode.INTERNAL, "internal error")
    assert caplog.records[0].exc_info[1] is error


def test_a_long_message_is_cut():
    assert len(grpc_status(errors.DataError("x" * 100_000))[1]) == MESSAGE_CHARS_MAX


def test_only_an_overload_has_metadata():
    assert trailing_metadata(errors.DataError("x")) == ()
    assert dict(trailing_metadata(errors.OverloadedError("x", retry_after_s=0.0001))) == {
        "retry-after-s": "0.000",
        "grpc-retry-pushback-ms": "1",
    }
