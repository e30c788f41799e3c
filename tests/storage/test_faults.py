"""The table of client messages and headrace errors."""

from cases import for_each
from headrace.core.clock import TransientFault
from headrace.core.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    ChangedError,
    ConfigError,
    HeadraceError,
    NotFoundError,
    StorageError,
)
from headrace.storage.cloud import EmptyRangeError, RangeIgnoredError, translate_error


def _message(status: int, code: str = "") -> str:
    body = f'<?xml version="1.0"?>\n<Error><Code>{code}</Code></Error>' if code else ""
    return (
        "Generic S3 error: Error performing GET http://h/b/k in 1ms - "
        f"Server returned non-2xx status code: {status} X: {body}"
    )


@for_each(
    ("kind", "text", "becomes"),
    [
        ("FileNotFoundError", _message(404, "NoSuchKey"), NotFoundError),
        ("GenericError", _message(404), NotFoundError),
        ("PermissionDeniedError", _message(403, "AccessDenied"), AccessDeniedError),
        ("UnauthenticatedError", "External AWS credential provider: RuntimeError", AccessDeniedError),
        ("GenericError", _message(403, "SignatureDoesNotMatch"), AccessDeniedError),
        ("GenericError", _message(400, "ExpiredToken"), AccessDeniedError),
        ("GenericError", "Error performing PUT http://169.254.169.254/latest/api/token", AccessDeniedError),
        ("AlreadyExistsError", _message(412, "PreconditionFailed"), AlreadyExistsError),
        ("PreconditionError", _message(412, "PreconditionFailed"), ChangedError),
        ("GenericError", _message(416, "InvalidRange"), EmptyRangeError),
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
        ("GenericError", _message(400, "InvalidArgument"), StorageError),
        ("GenericError", _message(400, "RequestTimeout"), TransientFault),
        ("GenericError", _message(409, "ConditionalRequestConflict"), TransientFault),
        ("GenericError", _message(429, "TooManyRequests"), TransientFault),
        ("GenericError", _message(500, "InternalError"), TransientFault),
        ("GenericError", _message(503, "SlowDown"), TransientFault),
        ("GenericError", "HTTP error: error sending request", TransientFault),
        ("GenericError", "HTTP error: request or response body error", TransientFault),
        ("GenericError", _message(501, "NotImplemented"), StorageError),
        ("JoinError", "task panicked", TransientFault),
    ],
)
def test_client_error_is_translated(kind, text, becomes):
    error = translate_error("s3://b", "s3://b/k", kind, text)
    assert type(error) is becomes
    if isinstance(error, HeadraceError):
        assert "http://" not in error.public_message, "the address of the store is for the operator"


@for_each("key", ["LOCATION", "NotPartial", "MissingValues", "169.254.169.254"])
def test_key_text_does_not_affect_translation(key):
    lost = (
        f"Error performing GET http://h/b/{key} in 1ms - HTTP error: error sending request\n\n"
        f"uri: http://h/b/{key},"
    )
    for text in (lost, _message(503, "SlowDown").replace("/k ", f"/{key} ")):
        assert type(translate_error("s3://b", f"s3://b/{key}", "GenericError", text)) is TransientFault


def test_missing_bucket_error_has_the_bucket_uri():
    for text in (_message(404, "NoSuchBucket"), _message(404, "ContainerNotFound")):
        error = translate_error("s3://b", "s3://b/k", "GenericError", text)
        assert isinstance(error, NotFoundError)
        assert error.uri == "s3://b"


@for_each("code", ["AuthorizationHeaderMalformed", "PermanentRedirect"])
def test_wrong_region_error_names_aws_region(code):
    error = translate_error("s3://b", "s3://b/k", "GenericError", _message(400, code))
    assert "set AWS_REGION" in str(error)


def test_translated_messages_are_short():
    error = translate_error(
        "s3://b", "s3://b/k", "GenericError", _message(400, "BadDigest") + "\n\nDebug source:\n" + "x" * 9000
    )
    assert len(str(error)) < 250
    assert str(error).endswith("(BadDigest)")
    assert "<Error>" not in str(error)
