"""The status of every error. Only errors of headrace disclose their message."""

import logging

import pytest

from cases import for_each
from headrace.core import errors
from headrace.server.errors import (
    MESSAGE_CHARS_MAX,
    GrpcCode,
    grpc_status,
    status_of,
    trailing_metadata,
)


@for_each(
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
    ],
)
def test_headrace_errors_keep_their_message(error, code):
    assert grpc_status(error) == (code, str(error))


@pytest.mark.parametrize("error", [ValueError("secret"), KeyError(1)])
def test_unexpected_errors_are_logged_but_not_disclosed(error, caplog):
    with caplog.at_level(logging.ERROR):
        assert grpc_status(error) == (GrpcCode.INTERNAL, "internal error")
    assert caplog.records[0].exc_info[1] is error


def test_ledger_address_is_only_in_the_log(caplog):
    away = errors.JobLedgerUnavailableError(
        "the job ledger at postgresql://jobs@db.internal/jobs does not answer"
    )
    with caplog.at_level(logging.WARNING):
        status = status_of(away)
    assert (status.http, status.retry_after_s) == (503, 2)
    assert "the job ledger does not respond" in status.why
    assert "db.internal" not in status.why
    assert "db.internal" in caplog.text


def test_long_message_is_truncated():
    assert len(grpc_status(errors.DataError("x" * 100_000))[1]) == MESSAGE_CHARS_MAX


def test_only_overload_errors_have_metadata():
    assert trailing_metadata(errors.DataError("x")) == ()
    assert dict(trailing_metadata(errors.OverloadedError("x", retry_after_s=0.0001))) == {
        "retry-after-s": "0.000",
        "grpc-retry-pushback-ms": "1",
    }


_MADE = {
    errors.MissingExtraError: errors.MissingExtraError("onnx", "this"),
    errors.OutputExistsError: errors.OutputExistsError("s3://b/k"),
    errors.EmptySourceError: errors.EmptySourceError("s3://b", "nothing"),
    errors.CorruptError: errors.CorruptError("broken", byte=1),
    errors.TruncatedError: errors.TruncatedError("ends", byte=1),
    errors.OverloadedError: errors.OverloadedError("full", retry_after_s=1.2),
    errors.CountMismatchError: errors.CountMismatchError("here", records_in=1, out=0, failed=0),
    errors.JobNotFoundError: errors.JobNotFoundError("j"),
    errors.EndpointNotFoundError: errors.EndpointNotFoundError("e"),
    errors.ResourceNotFoundError: errors.ResourceNotFoundError("delivery", "d"),
    errors.UncontrolledPoolError: errors.UncontrolledPoolError("p", "no controller"),
    errors.JobStateError: errors.JobStateError("j", "running", "why"),
    errors.OutputTakenError: errors.OutputTakenError("k", "j", "why"),
    errors.IdempotencyError: errors.IdempotencyError("k", "j"),
    errors.QueueFullError: errors.QueueFullError("full", retry_after_s=1.2),
    errors.ResultGoneError: errors.ResultGoneError("j"),
    errors.SequenceError: errors.SequenceError("s", "why"),
    errors.SequenceGoneError: errors.SequenceGoneError("s", "why"),
    errors.SequenceLostError: errors.SequenceLostError("s", "why"),
    errors.SequenceFullError: errors.SequenceFullError("s", "why", retry_after_s=0.2),
    errors.TooManySequencesError: errors.TooManySequencesError("s", "why", retry_after_s=1.2),
}


def every(kind=errors.HeadraceError):
    for sub in kind.__subclasses__():
        yield sub
        yield from every(sub)


def made(kind):
    if kind in _MADE:
        return _MADE[kind]
    two = issubclass(kind, errors.ModelError | errors.StorageError | errors.EndpointError)
    return kind("m", "why") if two else kind("why")


EXPECTED = {
    errors.UnauthenticatedError: (401, GrpcCode.UNAUTHENTICATED),
    errors.ForbiddenError: (403, GrpcCode.PERMISSION_DENIED),
    errors.ModelNotFoundError: (404, GrpcCode.NOT_FOUND),
    errors.LimitError: (413, GrpcCode.RESOURCE_EXHAUSTED),
    errors.RefusedRowsError: (422, GrpcCode.INVALID_ARGUMENT),
    errors.OverloadedError: (429, GrpcCode.RESOURCE_EXHAUSTED),
    errors.CancelledRequestError: (499, GrpcCode.CANCELLED),
    errors.DeadlineError: (504, GrpcCode.DEADLINE_EXCEEDED),
    errors.UnsupportedError: (501, GrpcCode.UNIMPLEMENTED),
    errors.ModelNotReadyError: (503, GrpcCode.UNAVAILABLE),
    errors.StoppedError: (503, GrpcCode.UNAVAILABLE),
    errors.InstanceLostError: (503, GrpcCode.UNAVAILABLE),
    errors.ModelLoadError: (503, GrpcCode.FAILED_PRECONDITION),
    errors.ModelInputError: (400, GrpcCode.INVALID_ARGUMENT),
    errors.DataError: (400, GrpcCode.INVALID_ARGUMENT),
    errors.ConfigError: (400, GrpcCode.INVALID_ARGUMENT),
    errors.JobNotFoundError: (404, GrpcCode.NOT_FOUND),
    errors.EndpointNotFoundError: (404, GrpcCode.NOT_FOUND),
    errors.ResourceNotFoundError: (404, GrpcCode.NOT_FOUND),
    errors.JobStateError: (409, GrpcCode.FAILED_PRECONDITION),
    errors.OutputTakenError: (409, GrpcCode.FAILED_PRECONDITION),
    errors.QueueInUseError: (409, GrpcCode.FAILED_PRECONDITION),
    errors.UncontrolledPoolError: (503, GrpcCode.UNAVAILABLE),
    errors.ResultGoneError: (410, GrpcCode.NOT_FOUND),
    errors.IdempotencyError: (422, GrpcCode.INVALID_ARGUMENT),
    errors.QueueFullError: (429, GrpcCode.RESOURCE_EXHAUSTED),
    errors.QueueClosedError: (503, GrpcCode.UNAVAILABLE),
    errors.JobLedgerUnavailableError: (503, GrpcCode.UNAVAILABLE),
    errors.UnavailableError: (503, GrpcCode.UNAVAILABLE),
    errors.SequenceLostError: (409, GrpcCode.ABORTED),
    errors.SequenceGoneError: (410, GrpcCode.NOT_FOUND),
    errors.SequenceFullError: (429, GrpcCode.RESOURCE_EXHAUSTED),
    errors.TooManySequencesError: (503, GrpcCode.UNAVAILABLE),
    errors.PredictError: (500, GrpcCode.INTERNAL),
    errors.ModelContractError: (500, GrpcCode.INTERNAL),
}


@for_each("kind", list(every()))
def test_every_error_has_a_status_and_its_text(kind):
    """An error has the status of its nearest base class, or 500. The text of a ledger is only
    logged.
    """
    error = made(kind)
    status = status_of(error)
    expected = next((EXPECTED[k] for k in kind.__mro__ if k in EXPECTED), (500, GrpcCode.INTERNAL))
    assert (status.http, status.grpc) == expected
    assert status.why == (
        errors.LEDGER_UNAVAILABLE if kind is errors.JobLedgerUnavailableError else str(error)
    )


@for_each(
    ("kind", "word", "retry_after_s"),
    [
        (errors.SequenceGoneError, "sequence_gone", None),
        (errors.SequenceLostError, "sequence_lost", None),
        (errors.SequenceFullError, "sequence_full", 1),
        (errors.TooManySequencesError, "too_many_sequences", 2),
    ],
)
def test_sequence_errors_have_kind_and_retry_time(kind, word, retry_after_s):
    error = made(kind)
    status = status_of(error)
    assert (status.kind, status.retry_after_s) == (word, retry_after_s)
    metadata = dict(trailing_metadata(error))
    assert metadata.pop("headrace-error-kind") == word
    pushed_back = {"retry-after-s", "grpc-retry-pushback-ms"}
    assert metadata.keys() == (set() if retry_after_s is None else pushed_back)
    assert status_of(made(errors.OverloadedError)).kind == ""


def test_retry_after_is_rounded_up():
    assert status_of(made(errors.OverloadedError)).retry_after_s == 2
    assert status_of(errors.OverloadedError("full", retry_after_s=0.1)).retry_after_s == 1
    assert status_of(errors.StoppedError("going down")).retry_after_s == 1
    assert status_of(errors.DataError("wrong")).retry_after_s is None
