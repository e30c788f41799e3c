"""Plain HTTP servers, to read from: one GET an object, resumed at its byte when it breaks.

Built on the standard library, since the object-store client needs ranges, lengths and encoded paths that many plain
servers and pre-signed addresses do not give. Addresses go out exactly as they were written.
"""

import http.client
import ssl
import time
import urllib.request
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from typing import Any, NoReturn, cast
from urllib.error import HTTPError, URLError

from headrace.core.errors import (
    AccessDeniedError,
    ChangedError,
    ConfigError,
    NotFoundError,
    StorageError,
)
from headrace.core.retry import retry_after_s
from headrace.storage.contract import ObjectInfo, Writer
from headrace.storage.retry import Retrier, TransientFault
from headrace.storage.uri import parse

CHUNK_BYTES = 1 << 20
FIRST_CHUNK_BYTES = 64 << 10
_FOR_GOOD = frozenset({501, 505})
"""What servers answer that do not know HEAD, or our HTTP."""
_Response = http.client.HTTPResponse


class HttpStore:
    """``http://`` and ``https://``: streams, ranges and head. Writing raises ConfigError.

    Args:
        retrier: Tries again what may pass.
        timeout_s: For each step on the network: connecting, the answer's head, each read.
    """

    def __init__(self, retrier: Retrier, *, timeout_s: float = 60.0) -> None:
        self._retrier = retrier
        self._timeout_s = timeout_s
        self._opener = urllib.request.OpenerDirector()
        # By hand, since the usual opener also follows redirects to ftp: and opens file: and data:.
        for handler in (
            urllib.request.ProxyHandler(),
            urllib.request.HTTPHandler(),
            urllib.request.HTTPSHandler(context=ssl.create_default_context()),
            urllib.request.HTTPRedirectHandler(),
            urllib.request.HTTPErrorProcessor(),
            urllib.request.HTTPDefaultErrorHandler(),
        ):
            self._opener.add_handler(handler)

    def stream(self, uri: str, *, start: int = 0, etag: str = "") -> Iterator[bytes]:
        """See `Store.stream`. Where a server knows no ranges, resuming reads again and drops what is known."""
        attempts = self._retrier.begin(uri, "reading")
        at, size_bytes = start, None
        while True:
            try:
                with self._open(uri, at, etag) as response:
                    etag, now_bytes = etag or _etag(response), _size_bytes(response)
                    if None not in (size_bytes, now_bytes) and size_bytes != now_bytes:
                        raise ChangedError(uri, f"had {size_bytes} bytes, and now has {now_bytes}")
                    size_bytes = now_bytes if size_bytes is None else size_bytes
                    for chunk in _body(response, at):
                        yield chunk
                        at += len(chunk)
                        attempts.progressed()
            except TransientFault as fault:
                attempts.failed(fault)
            else:
                return

    def get(self, uri: str) -> bytes:
        """See `Store.get`."""
        return b"".join(self.stream(uri))

    def get_range(self, uri: str, start: int, length: int, *, etag: str = "") -> bytes:
        """See `Store.get_range`. A server without ranges sends all before `start` too."""
        if length <= 0:
            return b""

        def attempt() -> bytes:
            pieces: list[bytes] = []
            missing = length
            with self._open(uri, start, etag, length) as response:
                for chunk in _body(response, start, length):
                    pieces.append(chunk[:missing])
                    missing -= len(pieces[-1])
                    if missing == 0:
                        break
            return b"".join(pieces)

        return self._retrier.run(uri, "reading", attempt)

    def head(self, uri: str) -> ObjectInfo:
        """See `Store.head`. `size_bytes` is None unless the server offers ranges: then only `stream` reads well."""

        def attempt() -> ObjectInfo:
            try:
                return self._head(uri, "HEAD")
            except StorageError as error:
                if isinstance(error, NotFoundError):
                    raise
                # Not every server, and no pre-signed address, takes HEAD.
                return self._head(uri, "GET")

        return self._retrier.run(uri, "asking for", attempt)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Raises NotFoundError: HTTP has no listing."""
        raise NotFoundError(
            prefix,
            "nothing there, or a folder, which a plain HTTP server cannot list: name each object, or write their "
            "addresses into a file and read manifest:FILE",
        )

    def put(self, uri: str, data: bytes) -> None:  # noqa: ARG002 - the contract's name
        """Raises ConfigError."""
        _read_only(uri)

    def put_if_absent(self, uri: str, data: bytes) -> None:  # noqa: ARG002 - the contract's name
        """Raises ConfigError."""
        _read_only(uri)

    def writer(self, uri: str) -> Writer:
        """Raises ConfigError."""
        _read_only(uri)

    def delete(self, uri: str) -> None:
        """Raises ConfigError."""
        _read_only(uri)

    def _head(self, uri: str, method: str) -> ObjectInfo:
        with self._open(uri, 0, "", method=method) as response:
            ranged = response.headers.get("Accept-Ranges", "").strip().lower() == "bytes"
            size_bytes = _length(response) if ranged else None
            return ObjectInfo(uri, size_bytes, _etag(response), _modified_s(response))

    @contextmanager
    def _open(
        self, uri: str, start: int, etag: str, length: int | None = None, method: str = "GET"
    ) -> Generator[_Response]:
        """A response with status 200 or 206, of the object that `etag` names."""
        parse(uri)
        headers = _headers(start, etag, length)
        request = urllib.request.Request(uri, headers=headers, method=method)  # noqa: S310 - parse checked it
        try:
            response: Any = self._opener.open(request, timeout=self._timeout_s)
        except HTTPError as error:
            with error:
                if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                    # The range starts at the end of the object or after it: an answer without bytes.
                    yield cast("_Response", error)
                    return
                _raise_status(uri, error)
        except URLError as error:
            if isinstance(error.reason, ssl.SSLCertVerificationError):
                raise StorageError(uri, f"its certificate cannot be trusted: {error.reason}") from error
            raise TransientFault(f"no connection: {error.reason}") from error
        except (OSError, http.client.HTTPException) as error:
            raise TransientFault(f"no answer: {error!r}") from error
        except ValueError as error:
            raise StorageError(uri, f"it, or what it redirects to, is no address: {error}") from error
        with response:
            if response.status not in {http.HTTPStatus.OK, http.HTTPStatus.PARTIAL_CONTENT}:
                raise StorageError(uri, f"the server answered HTTP {response.status}, without the object")
            now = _etag(response)
            if etag and now and now != etag:
                raise ChangedError(uri, f"is another object now (ETag {now}, expected {etag})")
            yield response


def _headers(start: int, etag: str, length: int | None) -> dict[str, str]:
    headers = {"Accept-Encoding": "identity", "User-Agent": "headrace"}
    if start or length is not None:
        headers["Range"] = f"bytes={start}-{'' if length is None else start + length - 1}"
    if etag.startswith('"'):
        headers["If-Match"] = etag
    return headers


def _body(response: _Response, start: int, length: int | None = None) -> Iterator[bytes]:
    """The object's bytes from `start`, whatever the server chose to send. Raises TransientFault when cut short.

    A server may send less than the range that it was asked for, `length` bytes or all: that is cut short too.
    """
    if response.status == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
        return
    partial = response.status == http.HTTPStatus.PARTIAL_CONTENT
    skip = 0 if partial else start
    if partial and not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
        raise TransientFault(f"asked from byte {start}, answered {response.headers.get('Content-Range')!r}")
    expected, received, ask = _length(response), 0, FIRST_CHUNK_BYTES
    if partial and (size_bytes := _size_bytes(response)) is not None:
        expected = size_bytes - start if length is None else min(length, size_bytes - start)
    while True:
        try:
            chunk = response.read(ask)
        except (OSError, http.client.HTTPException) as error:
            raise TransientFault(f"the answer broke off after {received} bytes: {error!r}") from error
        if not chunk:
            break
        received += len(chunk)
        ask = CHUNK_BYTES
        if piece := chunk[skip:]:
            yield piece
        skip = max(0, skip - len(chunk))
    if expected is not None and received < expected:
        raise TransientFault(f"the answer ended after {received} of {expected} bytes")


def _length(response: _Response) -> int | None:
    return _number(response.headers.get("Content-Length", ""))


def _size_bytes(response: _Response) -> int | None:
    """The whole object's, as far as this answer tells it."""
    if response.status == http.HTTPStatus.OK:
        return _length(response)
    return _number(response.headers.get("Content-Range", "").rpartition("/")[2])


def _number(text: str) -> int | None:
    try:
        return int(text) if text.isdecimal() else None
    except ValueError:  # thousands of digits
        return None


def _etag(response: _Response) -> str:
    """The ETag, else what else changes with the bytes."""
    return response.headers.get("ETag") or response.headers.get("Last-Modified") or ""


def _modified_s(response: _Response) -> float:
    try:
        return parsedate_to_datetime(response.headers["Last-Modified"]).timestamp()
    except (KeyError, TypeError, ValueError):
        return 0.0


def _raise_status(uri: str, error: HTTPError) -> NoReturn:
    """A status as one of ours."""
    status = error.code
    if status in {404, 410}:
        raise NotFoundError(uri, f"no such object (HTTP {status})") from error
    if status in {401, 403, 407}:
        raise AccessDeniedError(uri, f"the server does not let us (HTTP {status} {error.reason})") from error
    if status == http.HTTPStatus.PRECONDITION_FAILED:
        raise ChangedError(uri, "is another object now (its ETag differs)") from error
    if status in {408, 425, 429} or (status >= 500 and status not in _FOR_GOOD):
        why = f"HTTP {status} {error.reason}"
        wait_s = retry_after_s(error.headers.get("Retry-After"), time.time())
        raise TransientFault(why, retry_after_s=wait_s) from error
    raise StorageError(uri, f"the server answered HTTP {status} {error.reason}") from error


def _read_only(uri: str) -> NoReturn:
    raise ConfigError(
        f"{uri}: headrace only reads from plain HTTP servers; write to s3://, gs://, az:// or a path"
    )
