"""Translate the errors of the object-store client into headrace's errors.

The client reports status and code only in its message, and reports listing failures only as generic
errors. Therefore this module parses text. It is pure.
"""

import http
import re
from dataclasses import dataclass

from headrace.core.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    ChangedError,
    ConfigError,
    NotFoundError,
    StorageError,
)
from headrace.core.retry import TransientFault

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_PATH = re.compile(r"(?<=://)([^/\s]+)\S*")
"""The path after a host. It contains the key, which may spell any word that is searched."""
_MESSAGE_CHARACTERS_MAX = 400
_METADATA_ADDRESSES = ("169.254.169.254", "169.254.170.2", "metadata.google.internal", "fd00:ec2::254")
_DENIED_CODES = frozenset({"ExpiredToken", "InvalidToken", "TokenRefreshRequired"})
_REGION_CODES = frozenset(
    {"AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraintException"}
)
# 409 is a conflict with a concurrent write: S3 asks clients to repeat the request.
_TRANSIENT_STATUSES = frozenset({408, 409, 425, 429})
_TRANSIENT_CODES = frozenset({"RequestTimeout", "SlowDown"})


class RangeIgnoredError(Exception):
    """The server responded to a range request with the whole object."""


class EmptyRangeError(Exception):
    """The range starts at or beyond the end of the object."""


@dataclass(frozen=True, slots=True)
class _ErrorDetails:
    """An error of the client, parsed.

    `kind` is the name of the exception, `code` the service's error code. `status` is the HTTP
    status; 0 marks an error of the client itself. `text` is the message without the paths of URLs.
    `why` is the reason to show to users.
    """

    kind: str
    status: int
    code: str
    text: str
    why: str


def translate_error(bucket_uri: str, uri: str, kind: str, text: str) -> Exception:
    """Return the exception to raise for an error of the client.

    It is a headrace error, `TransientFault` for a failure that may pass, RangeIgnoredError or
    EmptyRangeError.

    Args:
        bucket_uri: The URI to report if the bucket is missing.
        uri: The object or the listed prefix.
        kind: The name of the client's exception.
        text: The message of the client's exception.
    """
    details = _parse_error(kind, text)
    if details.code in {"NoSuchBucket", "ContainerNotFound"} or "bucket does not exist" in text:
        return NotFoundError(bucket_uri, "no such bucket: check its name, the endpoint and the region")
    if kind == "FileNotFoundError" or details.status == 404:
        return NotFoundError(uri, "no such object")
    return (
        _access_error(uri, details)
        or _condition_error(uri, details)
        or _usage_error(uri, details)
        or TransientFault(details.why)
    )


def _parse_error(kind: str, text: str) -> _ErrorDetails:
    status, code = _STATUS.search(text), _CODE.search(text)
    # The XML body and the client's internals add length but no information beyond the code.
    head = text.split("\n\nDebug source", 1)[0].split("<?xml", 1)[0].strip().rstrip(":")
    why = f"{head[:_MESSAGE_CHARACTERS_MAX]} ({code[1]})" if code else head[:_MESSAGE_CHARACTERS_MAX]
    bare = _PATH.sub(r"\1", text)
    return _ErrorDetails(kind, int(status[1]) if status else 0, code[1] if code else "", bare, why)


def _access_error(uri: str, details: _ErrorDetails) -> Exception | None:
    if details.code in _REGION_CODES or "without LOCATION" in details.text or 300 <= details.status < 400:
        return StorageError(uri, f"the bucket is in another region: set AWS_REGION ({details.why})")
    denied = details.kind in {"PermissionDeniedError", "UnauthenticatedError"} or details.status in {401, 403}
    if denied or details.code in _DENIED_CODES:
        return AccessDeniedError(
            uri, f"the credentials are wrong or do not allow this operation: {details.why}"
        )
    if any(address in details.text for address in _METADATA_ADDRESSES):
        return AccessDeniedError(
            uri, f"the metadata address of this machine returned no credentials: {details.why}"
        )
    return None


def _condition_error(uri: str, details: _ErrorDetails) -> Exception | None:
    if details.kind == "AlreadyExistsError":
        return AlreadyExistsError(uri, "exists already")
    if details.kind == "PreconditionError" or details.status == 412:
        return ChangedError(uri, "has changed (its ETag differs)")
    if details.status == 416:
        return EmptyRangeError()
    if not details.status and (details.kind == "NotSupportedError" or "NotPartial" in details.text):
        return RangeIgnoredError()
    return None


def _usage_error(uri: str, details: _ErrorDetails) -> Exception | None:
    if details.kind in {"ValueError", "InvalidPathError"} or "path segment" in details.text:
        return StorageError(
            uri,
            "a key has an empty, '.' or '..' segment or a control character, which is not supported: "
            f"{details.why}",
        )
    if "builder error" in details.text or details.kind == "UnknownConfigurationKeyError":
        return ConfigError(f"{uri}: {details.why}")
    if not details.status and re.search(r"\bMissing[A-Z]|must be specified", details.text):
        return ConfigError(f"{uri}: {details.why}")
    is_client_error = 400 <= details.status < 500 or details.status == http.HTTPStatus.NOT_IMPLEMENTED
    if is_client_error and details.status not in _TRANSIENT_STATUSES and details.code not in _TRANSIENT_CODES:
        return StorageError(uri, f"the server refused the request: {details.why}")
    return None
