"""What the object-store client says went wrong, as our errors. Pure.

The client tells status and code only in its message, and a listing's faults only as generic ones; so this reads text.
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
from headrace.storage.retry import TransientFault

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_PATH = re.compile(r"(?<=://)([^/\s]+)\S*")
"""What follows a host: it holds the key, which may spell any of the words that are looked for."""
_MESSAGE_CHARACTERS_MAX = 400
_METADATA_ADDRESSES = ("169.254.169.254", "169.254.170.2", "metadata.google.internal", "fd00:ec2::254")
_DENIED_CODES = frozenset({"ExpiredToken", "InvalidToken", "TokenRefreshRequired"})
_REGION_CODES = frozenset(
    {"AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraintException"}
)
# 409 is a write that runs into another one: S3 asks to send it again.
_PASSING_STATUSES = frozenset({408, 409, 425, 429})
_PASSING_CODES = frozenset({"RequestTimeout", "SlowDown"})


class RangeIgnoredError(Exception):
    """The server answered a range with the whole object."""


class EmptyRangeError(Exception):
    """The range starts at the object's end or after it."""


@dataclass(frozen=True, slots=True)
class _Said:
    """A fault taken apart: the exception's name, the HTTP status (0: the client's own words), the service's code, the text.

    `text` is without the paths of addresses; `why` is for people.
    """

    kind: str
    status: int
    code: str
    text: str
    why: str


def translate(bucket_uri: str, uri: str, kind: str, text: str) -> Exception:
    """The exception to raise: one of ours, `TransientFault` for what may pass, or one of the two above.

    Args:
        bucket_uri: Named when it is the bucket that is missing.
        uri: The object, or what was listed.
        kind: The name of the client's exception.
        text: Its message.
    """
    said = _taken_apart(kind, text)
    if said.code in {"NoSuchBucket", "ContainerNotFound"} or "bucket does not exist" in text:
        return NotFoundError(bucket_uri, "no such bucket; check its name, the endpoint and the region")
    if kind == "FileNotFoundError" or said.status == 404:
        return NotFoundError(uri, "no such object")
    return (
        _about_access(uri, said)
        or _about_conditions(uri, said)
        or _about_use(uri, said)
        or TransientFault(said.why)
    )


def _taken_apart(kind: str, text: str) -> _Said:
    status, code = _STATUS.search(text), _CODE.search(text)
    # Without the XML, which says in thirty words what its code says in one, and without the client's internals.
    head = text.split("\n\nDebug source", 1)[0].split("<?xml", 1)[0].strip().rstrip(":")
    why = f"{head[:_MESSAGE_CHARACTERS_MAX]} ({code[1]})" if code else head[:_MESSAGE_CHARACTERS_MAX]
    bare = _PATH.sub(r"\1", text)
    return _Said(kind, int(status[1]) if status else 0, code[1] if code else "", bare, why)


def _about_access(uri: str, said: _Said) -> Exception | None:
    if said.code in _REGION_CODES or "without LOCATION" in said.text or 300 <= said.status < 400:
        return StorageError(uri, f"the bucket is in another region: set AWS_REGION ({said.why})")
    denied = said.kind in {"PermissionDeniedError", "UnauthenticatedError"} or said.status in {401, 403}
    if denied or said.code in _DENIED_CODES:
        return AccessDeniedError(uri, f"the credentials are wrong or do not allow this: {said.why}")
    if any(address in said.text for address in _METADATA_ADDRESSES):
        return AccessDeniedError(uri, f"this machine gives no credentials: {said.why}")
    return None


def _about_conditions(uri: str, said: _Said) -> Exception | None:
    if said.kind == "AlreadyExistsError":
        return AlreadyExistsError(uri, "an object stands there already")
    if said.kind == "PreconditionError" or said.status == 412:
        return ChangedError(uri, "is another object now (its ETag differs)")
    if said.status == 416:
        return EmptyRangeError()
    if not said.status and (said.kind == "NotSupportedError" or "NotPartial" in said.text):
        return RangeIgnoredError()
    return None


def _about_use(uri: str, said: _Said) -> Exception | None:
    if said.kind in {"ValueError", "InvalidPathError"} or "path segment" in said.text:
        return StorageError(
            uri,
            f"a key has an empty, '.' or '..' segment or a control character, which is not supported: {said.why}",
        )
    if "builder error" in said.text or said.kind == "UnknownConfigurationKeyError":
        return ConfigError(f"{uri}: {said.why}")
    if not said.status and re.search(r"\bMissing[A-Z]|must be specified", said.text):
        return ConfigError(f"{uri}: {said.why}")
    wrong = 400 <= said.status < 500 or said.status == http.HTTPStatus.NOT_IMPLEMENTED
    if wrong and said.status not in _PASSING_STATUSES and said.code not in _PASSING_CODES:
        return StorageError(uri, f"the server refused: {said.why}")
    return None
