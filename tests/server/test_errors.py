"""Every error of the tree has a status, and the more special one counts."""

import pytest

from headrace.core import errors as e
from headrace.server.errors import INTERNAL, WHY_CHARS_MAX, status_of

_MADE = {
    e.MissingExtraError: e.MissingExtraError("onnx", "this"),
    e.OutputExistsError: e.OutputExistsError("s3://b/k"),
    e.EmptySourceError: e.EmptySourceError("s3://b", "nothing"),
    e.CorruptError: e.CorruptError("broken", byte=1),
    e.TruncatedError: e.TruncatedError("ends", byte=1),
    e.OverloadedError: e.OverloadedError("full", retry_after_s=1.2),
    e.CountMismatchError: e.CountMismatchError("here", records_in=1, out=0, failed=0),
}


def every(kind=e.HeadraceError):
    for sub in kind.__subclasses__():
        yield sub
        yield from every(sub)


def made(kind):
    if kind in _MADE:
        return _MADE[kind]
    two = issubclass(kind, e.ModelError | e.StorageError | e.EndpointError)
    return kind("m", "why") if two else kind("why")


EXPECTED = {
    e.UnauthenticatedError: (401, "UNAUTHENTICATED"),
    e.ForbiddenError: (403, "PERMISSION_DENIED"),
    e.ModelNotFoundError: (404, "NOT_FOUND"),
    e.LimitError: (413, "RESOURCE_EXHAUSTED"),
    e.RefusedRowsError: (422, "INVALID_ARGUMENT"),
    e.OverloadedError: (429, "RESOURCE_EXHAUSTED"),
    e.CancelledRequestError: (499, "CANCELLED"),
    e.DeadlineError: (504, "DEADLINE_EXCEEDED"),
    e.UnsupportedError: (501, "UNIMPLEMENTED"),
    e.ModelNotReadyError: (503, "UNAVAILABLE"),
    e.StoppedError: (503, "UNAVAILABLE"),
    e.InstanceLostError: (503, "UNAVAILABLE"),
    e.ModelLoadError: (503, "FAILED_PRECONDITION"),
    e.ModelInputError: (400, "INVALID_ARGUMENT"),
    e.DataError: (400, "INVALID_ARGUMENT"),
    e.ConfigError: (400, "INVALID_ARGUMENT"),
    e.PredictError: (500, "INTERNAL"),
    e.ModelContractError: (500, "INTERNAL"),
}


@pytest.mark.parametrize("kind", list(every()), ids=lambda k: k.__name__)
def test_every_error_has_its_status_and_its_text(kind):
    """That of the nearest kind above it; what no client can cause is 500."""
    error = made(kind)
    status = status_of(error)
    expected = next((EXPECTED[k] for k in kind.__mro__ if k in EXPECTED), (500, "INTERNAL"))
    assert (status.http, status.grpc) == expected
    assert status.why == str(error)


def test_what_nobody_expected_is_logged_and_told_as_nothing(caplog):
    error = RuntimeError("secret /etc/passwd")
    status = status_of(error)
    assert (status.http, status.grpc, status.why) == (500, "INTERNAL", INTERNAL)
    assert "secret" in caplog.text


def test_when_to_ask_again_is_whole_seconds_upwards():
    assert status_of(made(e.OverloadedError)).retry_after_s == 2
    assert status_of(e.OverloadedError("full", retry_after_s=0.1)).retry_after_s == 1
    assert status_of(e.StoppedError("going down")).retry_after_s == 1
    assert status_of(e.DataError("wrong")).retry_after_s is None


def test_long_texts_are_cut():
    assert len(status_of(e.ModelNotFoundError("x" * 100_000, "unknown")).why) == WHY_CHARS_MAX + 1
