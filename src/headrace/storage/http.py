"""Read objects from plain HTTP servers: one GET an object, resumed at its byte.

Built on the standard library, because the object-store client requires ranges, lengths and encoded
paths. Many plain servers and pre-signed URLs do not provide these. URLs are sent exactly as given.
`HttpTransport` is the contract of what sends the requests.
"""

import http
import http.client
import ssl
import time
import urllib.request
from collections.abc import Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, NoReturn, Protocol
from urllib.error import HTTPError, URLError

from typing_extensions import override

from headrace.core.clock import TransientFault, retry_after_s
from headrace.core.errors import AccessDeniedError, ChangedError, ConfigError, NotFoundError, StorageError
from headrace.storage.contract import NO_METADATA, ObjectInfo, Store, Writer
from headrace.storage.retry import Retrier
from headrace.storage.uri import parse

CHUNK_BYTES = 1 << 20
FIRST_CHUNK_BYTES = 64 << 10
_PERMANENT_STATUSES = frozenset({501, 505})
"""Statuses of servers that do not support HEAD, or this HTTP version."""


@dataclass(frozen=True, slots=True)
class StreamedHttpResponse:
    """A response of any status, whose body is read on demand.

    Header names are in lower case. `chunks` raises TransientFault if the body breaks off.
    """

    status: int
    reason: str
    headers: Mapping[str, str]
    chunks: Iterator[bytes]


class HttpTransport(Protocol):
    """A sender of requests. Callable from any thread, one request a call."""

    def open(
        self, method: str, uri: str, headers: Mapping[str, str]
    ) -> AbstractContextManager[StreamedHttpResponse]:
        """Send a request and return the response of any status. Leaving the context closes it.

        Raises TransientFault if no response arrived, StorageError or ConfigError for a permanent
        failure.
        """
        ...


class UrllibTransport(HttpTransport):
    """The transport of the standard library.

    Redirects to http and https are followed. Certificates are checked against those of the system.

    Args:
        timeout_s: Seconds for each network step: connecting, the response header, each read.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._opener = urllib.request.OpenerDirector()
        # The default opener also follows redirects to ftp: and opens file: and data:.
        for handler in (
            urllib.request.ProxyHandler(),
            urllib.request.HTTPHandler(),
            urllib.request.HTTPSHandler(context=ssl.create_default_context()),
            urllib.request.HTTPRedirectHandler(),
            urllib.request.HTTPErrorProcessor(),
            urllib.request.HTTPDefaultErrorHandler(),
        ):
            self._opener.add_handler(handler)

    @contextmanager
    @override
    def open(self, method: str, uri: str, headers: Mapping[str, str]) -> Generator[StreamedHttpResponse]:
        # HttpStore checks that the scheme is http or https.
        request = urllib.request.Request(uri, headers=dict(headers), method=method)  # noqa: S310
        try:
            response: Any = self._opener.open(request, timeout=self._timeout_s)
        except HTTPError as error:
            response = error
        except URLError as error:
            if isinstance(error.reason, ssl.SSLCertVerificationError):
                raise StorageError(
                    uri, f"the certificate of the server is not trusted: {error.reason}"
                ) from error
            raise TransientFault(f"no connection: {error.reason}") from error
        except (OSError, http.client.HTTPException) as error:
            raise TransientFault(f"no response: {error!r}") from error
        except ValueError as error:
            raise StorageError(uri, f"the URL, or the target of its redirect, is invalid: {error}") from error
        with response:
            found = {name.lower(): value for name, value in response.headers.items()}
            yield StreamedHttpResponse(response.status, response.reason, found, _read_chunks(response))


def _read_chunks(response: http.client.HTTPResponse) -> Iterator[bytes]:
    received, chunk_bytes = 0, FIRST_CHUNK_BYTES
    while True:
        try:
            chunk = response.read(chunk_bytes)
        except (OSError, http.client.HTTPException) as error:
            raise TransientFault(f"the response broke off after {received} bytes: {error!r}") from error
        if not chunk:
            return
        received += len(chunk)
        chunk_bytes = CHUNK_BYTES
        yield chunk


class HttpStore(Store):
    """The store of ``http://`` and ``https://`` objects. Write operations raise ConfigError.

    Args:
        retrier: The retry policy for transient failures.
        timeout_s: Seconds for each network step: connecting, the response header, each read.
        transport: The sender of requests; None: the standard library, with `timeout_s`.
    """

    def __init__(
        self, retrier: Retrier, *, timeout_s: float = 60.0, transport: HttpTransport | None = None
    ) -> None:
        self._retrier = retrier
        self._transport = transport or UrllibTransport(timeout_s)

    @override
    def stream(self, uri: str, *, start: int = 0, etag: str = "") -> Iterator[bytes]:
        """Yield the bytes of an object.

        Resuming on a server without ranges reads the object again and drops the bytes already
        yielded.
        """
        attempts = self._retrier.begin(uri, "reading")
        at, size_bytes = start, None
        while True:
            try:
                with self._open(uri, at, etag) as response:
                    etag, now_bytes = etag or _etag(response), _size_bytes(response)
                    if None not in (size_bytes, now_bytes) and size_bytes != now_bytes:
                        raise ChangedError(uri, f"has changed: had {size_bytes} bytes, now has {now_bytes}")
                    size_bytes = now_bytes if size_bytes is None else size_bytes
                    for chunk in _body(response, at):
                        yield chunk
                        at += len(chunk)
                        attempts.record_progress()
            except TransientFault as fault:
                attempts.record_failure(fault)
            else:
                return

    @override
    def get(self, uri: str) -> bytes:
        return b"".join(self.stream(uri))

    @override
    def get_range(self, uri: str, start: int, length: int, *, etag: str = "") -> bytes:
        """Return a range of bytes. A server without ranges also sends all bytes before `start`."""
        if length <= 0:
            return b""

        def attempt() -> bytes:
            parts: list[bytes] = []
            missing = length
            with self._open(uri, start, etag, length) as response:
                for chunk in _body(response, start, length):
                    parts.append(chunk[:missing])
                    missing -= len(parts[-1])
                    if missing == 0:
                        break
            return b"".join(parts)

        return self._retrier.run(uri, "reading", attempt)

    @override
    def head(self, uri: str) -> ObjectInfo:
        """Return the metadata of an object.

        `size_bytes` is None unless the server supports ranges. Without ranges, only `stream` reads
        efficiently.
        """

        def attempt() -> ObjectInfo:
            try:
                return self._head(uri, "HEAD")
            except StorageError as error:
                if isinstance(error, NotFoundError):
                    raise
                # Some servers, and all pre-signed URLs, reject HEAD.
                return self._head(uri, "GET")

        return self._retrier.run(uri, "reading the metadata", attempt)

    @override
    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Raise NotFoundError: HTTP has no listing."""
        raise NotFoundError(
            prefix,
            "no such object, or a folder, which a plain HTTP server cannot list: name each object, or write "
            "their URLs to a file and read manifest:FILE",
        )

    @override
    def put(self, uri: str, data: bytes) -> None:
        _read_only(uri)

    @override
    def put_if_absent(self, uri: str, data: bytes) -> None:
        _read_only(uri)

    @override
    def writer(self, uri: str, metadata: Mapping[str, str] = NO_METADATA) -> Writer:
        _read_only(uri)

    @override
    def metadata(self, uri: str) -> Mapping[str, str]:
        """Return none, because plain HTTP servers keep none."""
        self.head(uri)
        return NO_METADATA

    @override
    def delete(self, uri: str) -> None:
        _read_only(uri)

    def _head(self, uri: str, method: str) -> ObjectInfo:
        with self._open(uri, 0, "", method=method) as response:
            ranged = response.headers.get("accept-ranges", "").strip().lower() == "bytes"
            size_bytes = _length(response) if ranged else None
            return ObjectInfo(uri, size_bytes, _etag(response), _modified_s(response))

    @contextmanager
    def _open(
        self, uri: str, start: int, etag: str, length: int | None = None, method: str = "GET"
    ) -> Generator[StreamedHttpResponse]:
        """Open a response with status 200, 206 or 416, checked against `etag`.

        Status 416 stands for a range without bytes.
        """
        parse(uri)
        with self._transport.open(method, uri, _headers(start, etag, length)) as response:
            if response.status == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                # The range starts at or beyond the end of the object, so the response has no bytes.
                yield response
                return
            if not http.HTTPStatus.OK <= response.status < http.HTTPStatus.MULTIPLE_CHOICES:
                _raise_status(uri, response)
            if response.status not in {http.HTTPStatus.OK, http.HTTPStatus.PARTIAL_CONTENT}:
                raise StorageError(uri, f"the server responded HTTP {response.status}, without the object")
            now = _etag(response)
            if etag and now and now != etag:
                raise ChangedError(uri, f"has changed (ETag {now}, expected {etag})")
            yield response


def _headers(start: int, etag: str, length: int | None) -> dict[str, str]:
    headers = {"Accept-Encoding": "identity", "User-Agent": "headrace"}
    if start or length is not None:
        headers["Range"] = f"bytes={start}-{'' if length is None else start + length - 1}"
    if etag.startswith('"'):
        headers["If-Match"] = etag
    return headers


def _body(response: StreamedHttpResponse, start: int, length: int | None = None) -> Iterator[bytes]:
    """Yield the bytes of the object from `start`, for any range that the server chose to send.

    Raises TransientFault if bytes are missing. A server may also send less than the requested range
    (`length` bytes, or all if None); the missing bytes count as an interrupted read.
    """
    if response.status == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
        return
    partial = response.status == http.HTTPStatus.PARTIAL_CONTENT
    skip = 0 if partial else start
    if partial and not response.headers.get("content-range", "").startswith(f"bytes {start}-"):
        raise TransientFault(
            f"received {response.headers.get('content-range')!r}, requested from byte {start}"
        )
    expected, received = _length(response), 0
    if partial and (size_bytes := _size_bytes(response)) is not None:
        expected = size_bytes - start if length is None else min(length, size_bytes - start)
    for chunk in response.chunks:
        received += len(chunk)
        if part := chunk[skip:]:
            yield part
        skip = max(0, skip - len(chunk))
    if expected is not None and received < expected:
        raise TransientFault(f"the response ended after {received} of {expected} bytes")


def _length(response: StreamedHttpResponse) -> int | None:
    return _number(response.headers.get("content-length", ""))


def _size_bytes(response: StreamedHttpResponse) -> int | None:
    """Return the size of the whole object, or None if the response does not state it."""
    if response.status == http.HTTPStatus.OK:
        return _length(response)
    return _number(response.headers.get("content-range", "").rpartition("/")[2])


def _number(text: str) -> int | None:
    try:
        return int(text) if text.isdecimal() else None
    except ValueError:  # a number of thousands of digits
        return None


def _etag(response: StreamedHttpResponse) -> str:
    """Return the ETag, else the modification date, else ""."""
    return response.headers.get("etag") or response.headers.get("last-modified") or ""


def _modified_s(response: StreamedHttpResponse) -> float:
    try:
        return parsedate_to_datetime(response.headers["last-modified"]).timestamp()
    except (KeyError, TypeError, ValueError):
        return 0.0


def _raise_status(uri: str, response: StreamedHttpResponse) -> NoReturn:
    """Raise the error that corresponds to a status."""
    status = response.status
    if status in {404, 410}:
        raise NotFoundError(uri, f"no such object (HTTP {status})")
    if status in {401, 403, 407}:
        raise AccessDeniedError(uri, f"the server denies access (HTTP {status} {response.reason})")
    if status == http.HTTPStatus.PRECONDITION_FAILED:
        raise ChangedError(uri, "has changed (its ETag differs)")
    if status in {408, 425, 429} or (status >= 500 and status not in _PERMANENT_STATUSES):
        why = f"HTTP {status} {response.reason}"
        wait_s = retry_after_s(response.headers.get("retry-after"), time.time())
        raise TransientFault(why, retry_after_s=wait_s)
    raise StorageError(uri, f"the server responded HTTP {status} {response.reason}")


def _read_only(uri: str) -> NoReturn:
    raise ConfigError(
        f"{uri}: headrace only reads from plain HTTP servers: write to s3://, gs://, az:// or a path"
    )
