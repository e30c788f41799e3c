"""The one door to the object-store client (obstore).

What leaves here are bytes and our errors: `TransientFault` for what may pass, everything else for good. One attempt a
call: whoever calls decides on the next. Only the blocking API: its asynchronous twin aborts the interpreter at exit.
"""

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

from headrace.core.errors import (
    AccessDeniedError,
    ChangedError,
    ConfigError,
    MissingExtraError,
    NotFoundError,
)
from headrace.storage.aws_profile import AwsSettings, CredentialSource, aws_settings
from headrace.storage.aws_sdk import sdk_session
from headrace.storage.cloud_credentials import meant_plain_http, require_credentials
from headrace.storage.faults import EmptyRangeError, translate
from headrace.storage.retry import TransientFault

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

LIST_PAGE_ENTRIES = 1_000
WHOLE_CHUNK_BYTES = 1 << 20
SDK_CREDENTIALS_TTL = timedelta(minutes=5)
"""How long credentials from the SDK are kept before it is asked again; it renews them 10 minutes early."""
_UPLOAD_TIMEOUT = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of an object, with what the answer told of it. `size_bytes` is the whole object's."""

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
    """What makes a client: `environ` for credentials, `timeout_s` for a silent server, `retry_s` for parts."""

    environ: Mapping[str, str]
    timeout_s: float = 60.0
    retry_s: float = 120.0


class Bucket:
    """One bucket or container, reached with one client for reading and one each for writing and for parts.

    Raises ConfigError and AccessDeniedError at once when there is nothing to sign with. Safe from any thread.
    """

    def __init__(self, scheme: str, name: str, settings: CloudSettings) -> None:
        self.uri = f"{scheme}://{name}"
        self.sorts_keys = False
        """Whether a listing is known to come in the keys' order."""
        self._scheme = scheme
        self._name = name
        self._settings = settings
        self._aws = aws_settings(settings.environ) if scheme == "s3" else None
        if self._aws is not None:
            # Directory buckets and other servers list in an order of their own.
            self.sorts_keys = not self._aws.endpoint and not name.endswith("--x-s3")
        else:
            self.sorts_keys = scheme == "gs"
            require_credentials(self.uri, scheme, settings.environ)
        self._reads = self._client(read_timeout=timedelta(seconds=settings.timeout_s))

    def get_range(self, key: str, start: int, length: int, etag: str = "") -> Piece:
        """Bytes ``start .. start+length``, fewer only at the object's end; none when it starts after that.

        Raises RangeIgnoredError, ChangedError, NotFoundError, AccessDeniedError, TransientFault.
        """
        options: GetOptions = {"range": (start, start + length)}
        if etag:
            options["if_match"] = etag
        try:
            with self._errors(key):
                result = obstore.get(self._reads, key, options=options)
                data = bytes(result.bytes())
        except EmptyRangeError:
            return Piece(b"", start, etag)
        meta, (first, end) = result.meta, result.range
        if first != start or end != min(start + length, meta["size"]) or len(data) != end - start:
            raise TransientFault(f"asked for bytes {start} to {start + length}, got {len(data)} from {first}")
        return Piece(data, meta["size"], self._same(key, meta["e_tag"], etag))

    def get(self, key: str) -> Piece:
        """The whole object in one request."""
        with self._errors(key):
            result = obstore.get(self._reads, key)
            data = bytes(result.bytes())
        if len(data) != result.meta["size"]:
            raise TransientFault(f"got {len(data)} of {result.meta['size']} bytes")
        return Piece(data, len(data), result.meta["e_tag"] or "")

    def get_from(self, key: str, start: int, etag: str = "") -> Iterator[Piece]:
        """Read the whole object in one request, and give what stands from `start`, in pieces."""
        with self._errors(key):
            result = obstore.get(self._reads, key, options={"if_match": etag} if etag else {})
        size_bytes, etag = result.meta["size"], self._same(key, result.meta["e_tag"], etag)
        at = 0
        chunks = iter(result.stream(WHOLE_CHUNK_BYTES))
        while True:
            with self._errors(key):
                chunk = next(chunks, None)
            if chunk is None:
                break
            data = bytes(chunk)
            if at + len(data) > start:
                yield Piece(data[max(0, start - at) :], size_bytes, etag)
            at += len(data)
        if at != size_bytes:
            raise TransientFault(f"got {at} of {size_bytes} bytes")

    def put(self, key: str, data: bytes) -> None:
        """Write whole, in one request."""
        with self._errors(key):
            obstore.put(self._writes, key, data, use_multipart=False)

    def create(self, key: str, data: bytes) -> None:
        """Write whole, in one request, unless something stands there: AlreadyExistsError."""
        with self._errors(key):
            obstore.put(self._writes, key, data, mode="create", use_multipart=False)

    def put_parts(self, key: str, parts: Iterator[bytes], *, part_bytes: int, parts_at_once: int) -> None:
        """Write in parts; each is tried again by the client itself for `retry_s`.

        When `parts` raises, the upload is aborted and the exception passes through.
        """
        with self._errors(key):
            obstore.put(
                self._parts,
                key,
                parts,
                use_multipart=True,
                chunk_size=part_bytes,
                max_concurrency=parts_at_once,
            )

    def head(self, key: str) -> Entry:
        """What is known of an object."""
        try:
            with self._errors(key):
                return _entry(obstore.head(self._reads, key))
        except NotFoundError:
            # An answer to HEAD has no body: only a GET says whether it is the bucket that is missing.
            self.get_range(key, 0, 1)
            raise

    def delete(self, key: str) -> None:
        """Remove; nothing happens when there is no such object."""
        try:
            with self._errors(key):
                obstore.delete(self._writes, key)
        except NotFoundError as error:
            if error.uri == self.uri:
                raise

    def list(self, folder: str, after: str = "") -> Iterator[list[Entry]]:
        """Pages of all objects below a whole path segment ("" is all), those after the key `after` only."""
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
        """An address for one object and one method, good for `expires_s` seconds, without asking the server anything."""
        with self._errors(key):
            signer: Any = self._writes
            return obstore.sign(signer, method, key, timedelta(seconds=expires_s))

    @cached_property
    def _writes(self) -> "ObjectStore":
        return self._client()

    @cached_property
    def _parts(self) -> "ObjectStore":
        # No way in for our own retries between two parts, so the client does them.
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
            if meant_plain_http(self._settings.environ):
                options["allow_http"] = True
            return kind(self._name, client_options=options, retry_config=retries)

    def _same(self, key: str, found: str | None, etag: str) -> str:
        """The ETag, checked again: some servers do not know If-Match."""
        if etag and found and found != etag:
            raise ChangedError(f"{self.uri}/{key}", f"is another object now (ETag {found}, expected {etag})")
        return found or etag

    @contextmanager
    def _errors(self, key: str) -> Generator[None]:
        """The client's exceptions as ours."""
        try:
            yield
        except (exceptions.BaseError, FileNotFoundError, ValueError) as error:
            uri = f"{self.uri}/{key}" if key else self.uri
            raise translate(self.uri, uri, type(error).__name__, str(error)) from error


def _entry(meta: Any) -> Entry:
    return Entry(meta["path"], meta["size"], meta["e_tag"] or "", meta["last_modified"].timestamp())


def _s3_client(name: str, aws: AwsSettings, options: "ClientConfig", retries: "RetryConfig") -> "ObjectStore":
    config: dict[str, Any] = {"region": aws.region, "disable_bulk_delete": True}
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
            return S3Store(
                name,
                config=config,  # pyright: ignore[reportArgumentType] - a TypedDict, built step by step
                client_options=options,
                retry_config=retries,
                credential_provider=provider,
            )
        case CredentialSource.MACHINE:
            pass
        case CredentialSource.NONE:
            raise AccessDeniedError(
                f"s3://{name}",
                f"no credentials found; looked for {aws.looked_for}. Set them, or AWS_SKIP_SIGNATURE=true for a public "
                "bucket, or AWS_EC2_METADATA_DISABLED=false to ask the machine's metadata address",
            )
    return S3Store(name, config=config, client_options=options, retry_config=retries)  # pyright: ignore[reportArgumentType] - as above


def _certificates(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(
            f"the certificates in {path} (AWS_CA_BUNDLE) cannot be read: {error.strerror}"
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
    except Exception as error:  # botocore raises dozens of kinds, and ValueError for "none"
        raise AccessDeniedError(
            uri, f"the AWS SDK got no credentials from profile {profile!r}: {error}"
        ) from error
