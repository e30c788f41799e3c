"""The adapter module of obstore, the object-store client.

Methods return bytes and raise headrace's errors. `TransientFault` marks a failure that may pass;
every other error is final. Each call makes one attempt: the caller decides on retries. Only the
blocking API is used, because the asynchronous one aborts the interpreter at exit.

The client reports status and code only in its message, and reports listing failures only as generic
errors. Therefore `translate_error` parses text.
"""

import http
import re
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import obstore
from obstore import exceptions
from obstore.store import AzureStore, GCSStore, S3Store

from headrace.core.clock import TransientFault
from headrace.core.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    ChangedError,
    ConfigError,
    MissingExtraError,
    NotFoundError,
    StorageError,
)
from headrace.storage.cloud_credentials import (
    AwsSettings,
    CredentialSource,
    aws_settings,
    require_credentials,
    sdk_session,
    uses_plain_http,
)
from headrace.storage.contract import NO_METADATA

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

LIST_PAGE_ENTRIES = 1_000
WHOLE_CHUNK_BYTES = 1 << 20
SDK_CREDENTIALS_TTL = timedelta(minutes=5)
"""The age at which credentials are requested again. The SDK renews them 10 minutes early."""
_STANDARD_ATTRIBUTES = frozenset(
    {
        "Cache-Control",
        "Content-Disposition",
        "Content-Encoding",
        "Content-Language",
        "Content-Type",
        "Storage-Class",
    }
)
"""Attributes of the protocol, which servers may set themselves."""
_UPLOAD_TIMEOUT = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class RangeResponse:
    """Bytes of an object and the metadata of the response.

    `size_bytes` is the size of the whole object.
    """

    data: bytes
    size_bytes: int
    etag: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One object of a listing."""

    key: str
    size_bytes: int
    etag: str
    modified_s: float


@dataclass(frozen=True, slots=True)
class CloudSettings:
    """The settings of a client.

    Args:
        environ: The source of credentials and endpoints.
        timeout_s: Seconds without a byte after which a read fails.
        retry_s: Seconds for which the client retries one part of a multipart upload.
    """

    environ: Mapping[str, str]
    timeout_s: float = 60.0
    retry_s: float = 120.0


class Bucket:
    """One bucket or container.

    It has one client each for reads, writes and multipart uploads. Safe from any thread.

    Raises ConfigError or AccessDeniedError on creation if there are no credentials to sign with.
    """

    def __init__(self, scheme: str, name: str, settings: CloudSettings) -> None:
        self.uri = f"{scheme}://{name}"
        self.sorts_keys = False
        """True if the service is known to list in key order."""
        self._scheme = scheme
        self._name = name
        self._settings = settings
        self._aws = aws_settings(settings.environ) if scheme == "s3" else None
        if self._aws is not None:
            # Directory buckets and other servers use listing orders of their own.
            self.sorts_keys = not self._aws.endpoint and not name.endswith("--x-s3")
        else:
            self.sorts_keys = scheme == "gs"
            require_credentials(self.uri, scheme, settings.environ)
        self._reads = self._client(read_timeout=timedelta(seconds=settings.timeout_s))

    def get_range(self, key: str, start: int, length: int, etag: str = "") -> RangeResponse:
        """Return bytes ``start .. start+length``.

        There are fewer only at the end of the object, and none beyond it. Raises RangeIgnoredError,
        ChangedError, NotFoundError, AccessDeniedError or TransientFault.
        """
        options: GetOptions = {"range": (start, start + length)}
        if etag:
            options["if_match"] = etag
        try:
            with self._errors(key):
                result = obstore.get(self._reads, key, options=options)
                data = bytes(result.bytes())
        except EmptyRangeError:
            return RangeResponse(b"", start, etag)
        meta, (first, end) = result.meta, result.range
        if first != start or end != min(start + length, meta["size"]) or len(data) != end - start:
            raise TransientFault(
                f"received {len(data)} bytes from {first}, requested {start} to {start + length}"
            )
        return RangeResponse(data, meta["size"], self._require_etag(key, meta["e_tag"], etag))

    def get(self, key: str) -> RangeResponse:
        """Return the whole object, read in one request."""
        with self._errors(key):
            result = obstore.get(self._reads, key)
            data = bytes(result.bytes())
        if len(data) != result.meta["size"]:
            raise TransientFault(f"received {len(data)} of {result.meta['size']} bytes")
        return RangeResponse(data, len(data), result.meta["e_tag"] or "")

    def get_from(self, key: str, start: int, etag: str = "") -> Iterator[RangeResponse]:
        """Read the whole object in one request, and yield its bytes from `start` in chunks."""
        with self._errors(key):
            result = obstore.get(self._reads, key, options={"if_match": etag} if etag else {})
        size_bytes, etag = result.meta["size"], self._require_etag(key, result.meta["e_tag"], etag)
        at = 0
        chunks = iter(result.stream(WHOLE_CHUNK_BYTES))
        while True:
            with self._errors(key):
                chunk = next(chunks, None)
            if chunk is None:
                break
            data = bytes(chunk)
            if at + len(data) > start:
                yield RangeResponse(data[max(0, start - at) :], size_bytes, etag)
            at += len(data)
        if at != size_bytes:
            raise TransientFault(f"received {at} of {size_bytes} bytes")

    def put(self, key: str, data: bytes, metadata: Mapping[str, str] = NO_METADATA) -> None:
        """Write an object in one request."""
        with self._errors(key):
            obstore.put(self._writes, key, data, use_multipart=False, attributes=_attributes(metadata))

    def create(self, key: str, data: bytes) -> None:
        """Write an object in one request. Raises AlreadyExistsError if the key exists."""
        with self._errors(key):
            obstore.put(self._writes, key, data, mode="create", use_multipart=False)

    def put_parts(
        self,
        key: str,
        parts: Iterator[bytes],
        *,
        part_bytes: int,
        parts_at_once: int,
        metadata: Mapping[str, str] = NO_METADATA,
    ) -> None:
        """Write an object in parts. The client itself retries each part for `retry_s` seconds.

        An exception from `parts` aborts the upload and propagates.
        """
        with self._errors(key):
            obstore.put(
                self._parts,
                key,
                parts,
                use_multipart=True,
                chunk_size=part_bytes,
                max_concurrency=parts_at_once,
                attributes=_attributes(metadata),
            )

    def metadata(self, key: str) -> Mapping[str, str]:
        """Return the metadata that the object was written with."""
        with self._errors(key):
            found: Any = obstore.get(self._reads, key, options={"head": True}).attributes
        return {str(name): str(value) for name, value in found.items() if name not in _STANDARD_ATTRIBUTES}

    def head(self, key: str) -> Entry:
        """Return the metadata of an object."""
        try:
            with self._errors(key):
                return _entry(obstore.head(self._reads, key))
        except NotFoundError:
            # A response to HEAD has no body. Only a GET shows that the bucket, not the object, is
            # missing.
            self.get_range(key, 0, 1)
            raise

    def delete(self, key: str) -> None:
        """Delete an object. A missing object is no error."""
        try:
            with self._errors(key):
                obstore.delete(self._writes, key)
        except NotFoundError as error:
            if error.uri == self.uri:
                raise

    def list(self, folder: str, after: str = "") -> Iterator[list[Entry]]:
        """Yield pages of all objects below a folder of whole path segments.

        "" lists the whole bucket.

        With `after`, yield only keys that sort after it.
        """
        with self._errors(folder):
            pages = iter(
                obstore.list(  # pyright: ignore[reportUnknownMemberType] - its Arrow overloads
                    self._reads, folder or None, offset=after or None, chunk_size=LIST_PAGE_ENTRIES
                )
            )
        while True:
            with self._errors(folder):
                page = next(pages, None)
            if page is None:
                return
            yield [_entry(meta) for meta in page]

    def sign(self, method: Literal["GET", "PUT"], key: str, expires_s: float) -> str:
        """Return a URL for one object and one method, valid for `expires_s` seconds.

        Sends no request.
        """
        with self._errors(key):
            signer: Any = self._writes
            return obstore.sign(signer, method, key, timedelta(seconds=expires_s))

    @cached_property
    def _writes(self) -> "ObjectStore":
        return self._client()

    @cached_property
    def _parts(self) -> "ObjectStore":
        # The client offers no hook between two parts, so it retries the parts itself.
        retries: RetryConfig = {
            "max_retries": 1_000,
            "retry_timeout": timedelta(seconds=self._settings.retry_s),
            "backoff": {
                "init_backoff": timedelta(seconds=0.1),
                "max_backoff": timedelta(seconds=5),
                "base": 2,
            },
        }
        return self._client(retries)

    def _client(
        self, retries: "RetryConfig | None" = None, *, read_timeout: timedelta | None = None
    ) -> "ObjectStore":
        options: ClientConfig = {"timeout": _UPLOAD_TIMEOUT, "connect_timeout": timedelta(seconds=5)}
        if read_timeout is not None:
            options["read_timeout"] = read_timeout
        retries = retries if retries is not None else {"max_retries": 0}
        with self._errors(""):
            if self._aws is not None:
                return _s3_client(self._name, self._aws, options, retries)
            kind = GCSStore if self._scheme == "gs" else AzureStore
            if uses_plain_http(self._settings.environ):
                options["allow_http"] = True
            return kind(self._name, client_options=options, retry_config=retries)

    def _require_etag(self, key: str, found: str | None, etag: str) -> str:
        """Return the ETag. Raises ChangedError if it differs: some servers ignore If-Match."""
        if etag and found and found != etag:
            raise ChangedError(f"{self.uri}/{key}", f"has changed (ETag {found}, expected {etag})")
        return found or etag

    @contextmanager
    def _errors(self, key: str) -> Generator[None]:
        """Translate the exceptions of the client."""
        try:
            yield
        except (exceptions.BaseError, FileNotFoundError, ValueError) as error:
            uri = f"{self.uri}/{key}" if key else self.uri
            raise translate_error(self.uri, uri, type(error).__name__, str(error)) from error


def _attributes(metadata: Mapping[str, str]) -> Any:
    """Return the client's attributes of an object; None without metadata."""
    return dict(metadata) or None


def _entry(meta: Any) -> Entry:
    return Entry(meta["path"], meta["size"], meta["e_tag"] or "", meta["last_modified"].timestamp())


def _s3_client(name: str, aws: AwsSettings, options: "ClientConfig", retries: "RetryConfig") -> "ObjectStore":
    config: dict[str, Any] = {"region": aws.region, "disable_bulk_delete": True}
    provider: Any = None
    if aws.endpoint:
        config["endpoint"] = aws.endpoint
        options["allow_http"] = aws.endpoint.startswith("http://")
    if aws.ca_bundle:
        options["root_certificate"] = _certificates(aws.ca_bundle)
    match aws.source:
        case CredentialSource.KEYS:
            config["access_key_id"] = aws.access_key_id
            config["secret_access_key"] = aws.secret_access_key
            if aws.session_token:
                config["session_token"] = aws.session_token
        case CredentialSource.ANONYMOUS:
            config["skip_signature"] = True
        case CredentialSource.SDK:
            provider = _sdk_credentials(f"s3://{name}", aws.profile)
        case CredentialSource.MACHINE:
            pass
        case CredentialSource.NONE:
            raise AccessDeniedError(
                f"s3://{name}",
                f"no credentials found; searched {aws.searched_sources}. Set them, or "
                "AWS_SKIP_SIGNATURE=true for a public bucket, or AWS_EC2_METADATA_DISABLED=false to use the "
                "machine's metadata address",
            )
    return S3Store(
        name,
        config=config,  # pyright: ignore[reportArgumentType] - a TypedDict, built step by step
        client_options=options,
        retry_config=retries,
        credential_provider=provider,
    )


def _certificates(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(
            f"cannot read the certificates in {path} (AWS_CA_BUNDLE): {error.strerror}"
        ) from error


def _sdk_credentials(uri: str, profile: str) -> Any:
    try:
        session = sdk_session(
            f"the AWS profile {profile!r} (single sign-on, a role or a process)", profile_name=profile
        )
        from obstore.auth.boto3 import Boto3CredentialProvider  # noqa: PLC0415 - imports boto3

        return Boto3CredentialProvider(session, ttl=SDK_CREDENTIALS_TTL)
    except MissingExtraError:
        raise
    except Exception as error:  # botocore raises dozens of types
        raise AccessDeniedError(
            uri, f"the AWS SDK found no credentials in profile {profile!r}", str(error)
        ) from error


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
        return StorageError(uri, "the bucket is in another region: set AWS_REGION", details.why)
    denied = details.kind in {"PermissionDeniedError", "UnauthenticatedError"} or details.status in {401, 403}
    if denied or details.code in _DENIED_CODES:
        return AccessDeniedError(uri, "the credentials are wrong or do not allow this operation", details.why)
    if any(address in details.text for address in _METADATA_ADDRESSES):
        return AccessDeniedError(
            uri, "the metadata address of this machine returned no credentials", details.why
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
            "a key has an empty, '.' or '..' segment or a control character, which is not supported",
            details.why,
        )
    is_incomplete = not details.status and re.search(r"\bMissing[A-Z]|must be specified", details.text)
    if is_incomplete or "builder error" in details.text or details.kind == "UnknownConfigurationKeyError":
        return ConfigError(f"{uri}: the settings of the store are invalid", details.why)
    is_client_error = 400 <= details.status < 500 or details.status == http.HTTPStatus.NOT_IMPLEMENTED
    if is_client_error and details.status not in _TRANSIENT_STATUSES and details.code not in _TRANSIENT_CODES:
        return StorageError(uri, "the server refused the request", details.why)
    return None
