"""The client's messages as our errors: the table."""

import pytest

from headrace.core.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    ChangedError,
    ConfigError,
    NotFoundError,
    StorageError,
)
from headrace.storage.faults import EmptyRangeError, RangeIgnoredError, translate
from headrace.storage.retry import TransientFault


def _answer(status: int, code: str = "") -> str:
    body = f'<?xml version="1.0"?>\n<Error><Code>{code}</Code></Error>' if code else ""
    return f"Generic S3 error: Error performing GET http://h/b/k in 1ms - Server returned non-2xx status code: {status} X: {body}"


@pytest.mark.parametrize(
    ("kind", "text", "becomes"),
    [
        ("FileNotFoundError", _answer(404, "NoSuchKey"), NotFoundError),
        ("GenericError", _answer(404), NotFoundError),
        ("PermissionDeniedError", _answer(403, "AccessDenied"), AccessDeniedError),
        ("UnauthenticatedError", "External AWS credential provider: RuntimeError", AccessDeniedError),
        ("GenericError", _answer(403, "SignatureDoesNotMatch"), AccessDeniedError),
        ("GenericError", _answer(400, "ExpiredToken"), AccessDeniedError),
        ("GenericError", "Error performing PUT http://169.254.169.254/latest/api/token", AccessDeniedError),
        ("AlreadyExistsError", _answer(412, "PreconditionFailed"), AlreadyExistsError),
        ("PreconditionError", _answer(412, "PreconditionFailed"), ChangedError),
        ("GenericError", _answer(416, "InvalidRange"), EmptyRangeError),
        ("NotSupportedError", "NotPartial", RangeIgnoredError),
        ("GenericError", "Generic S3 error: Received non-partial response: NotPartial", RangeIgnoredError),
        ("GenericError", 'Path "x//y" contained empty path segment', StorageError),
        ("GenericError", "HTTP error: builder error", ConfigError),
        (
            "GenericError",
            "Generic S3 error: Missing SecretAccessKey\n\nDebug source:\nMissingSecretAccessKey",
            ConfigError,
        ),
        ("GenericError", "Generic MicrosoftAzure error: Account must be specified", ConfigError),
        ("GenericError", _answer(400, "InvalidArgument"), StorageError),
        ("GenericError", _answer(400, "RequestTimeout"), TransientFault),
        ("GenericError", _answer(409, "ConditionalRequestConflict"), TransientFault),
        ("GenericError", _answer(429, "TooManyRequests"), TransientFault),
        ("GenericError", _answer(500, "InternalError"), TransientFault),
        ("GenericError", _answer(503, "SlowDown"), TransientFault),
        ("GenericError", "HTTP error: error sending request", TransientFault),
        ("GenericError", "HTTP error: request or response body error", TransientFault),
        ("GenericError", _answer(501, "NotImplemented"), StorageError),
        ("JoinError", "task panicked", TransientFault),
    ],
)
def test_translate(kind, text, becomes):
    assert type(translate("s3://b", "s3://b/k", kind, text)) is becomes


@pytest.mark.parametrize("key", ["LOCATION", "NotPartial", "MissingValues", "169.254.169.254"])
def test_a_key_may_spell_any_word(key):
    lost = f"Error performing GET http://h/b/{key} in 1ms - HTTP error: error sending request\n\nuri: http://h/b/{key},"
    for text in (lost, _answer(503, "SlowDown").replace("/k ", f"/{key} ")):
        assert type(translate("s3://b", f"s3://b/{key}", "GenericError", text)) is TransientFault


def test_a_missing_bucket_is_the_buckets_error():
    for text in (_answer(404, "NoSuchBucket"), _answer(404, "ContainerNotFound")):
        error = translate("s3://b", "s3://b/k", "GenericError", text)
        assert isinstance(error, NotFoundError)
        assert error.uri == "s3://b"


@pytest.mark.parametrize("code", ["AuthorizationHeaderMalformed", "PermanentRedirect"])
def test_a_wrong_region_says_what_to_set(code):
    error = translate("s3://b", "s3://b/k", "GenericError", _answer(400, code))
    assert "set AWS_REGION" in str(error)


def test_messages_are_short():
    error = translate(
        "s3://b", "s3://b/k", "GenericError", _answer(400, "BadDigest") + "\n\nDebug source:\n" + "x" * 9000
    )
    assert len(str(error)) < 250
    assert str(error).endswith("(BadDigest)")
    assert "<Error>" not in str(error)
