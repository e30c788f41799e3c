"""Plain HTTP servers, to read from: one GET an object, resumed at its byte when it breaks.

Built on the standard library, since the object-store client needs ranges, lengths and encoded paths that many plain
servers and pre-signed addresses do not give. Addresses go out exactly as they were written.
"""

import http
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from typing import NoReturn

from headrace.core.errors import (
    AccessDeniedError,
    ChangedError,
    ConfigError,
    NotFoundError,
    StorageError,
)
from headrace.core.retry import retry_after_s
from headrace.storage.contract import ObjectInfo, Writer
from headrace.storage.http_door import HttpAnswer, HttpDoor, UrllibDoor
from headrace.storage.retry import Retrier, TransientFault
from headrace.storage.uri import parse

_FOR_GOOD = frozenset({501, 505})
"""What servers answer that do not know HEAD, or our HTTP."""


class HttpStore:
    """``http://`` and ``https://``: streams, ranges and head. Writing raises ConfigError.

    Args:
        retrier: Tries again what may pass.
        timeout_s: For each step on the network: connecting, the answer's head, each read.
        door: What sends the requests; None: the standard library, with that timeout.
    """

    def __init__(self, retrier: Retrier, *, timeout_s: float = 60.0, door: HttpDoor | None = None) -> None:
        self._retrier = retrier
        self._door = door or UrllibDoor(timeout_s)

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
            ranged = response.headers.get("accept-ranges", "").strip().lower() == "bytes"
            size_bytes = _length(response) if ranged else None
            return ObjectInfo(uri, size_bytes, _etag(response), _modified_s(response))

    @contextmanager
    def _open(
        self, uri: str, start: int, etag: str, length: int | None = None, method: str = "GET"
    ) -> Generator[HttpAnswer]:
        """A response with status 200 or 206, of the object that `etag` names; 416 for an empty one."""
        parse(uri)
        with self._door.open(method, uri, _headers(start, etag, length)) as response:
            if response.status == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                # The range starts at the end of the object or after it: an answer without bytes.
                yield response
                return
            if not http.HTTPStatus.OK <= response.status < http.HTTPStatus.MULTIPLE_CHOICES:
                _raise_status(uri, response)
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


def _body(response: HttpAnswer, start: int, length: int | None = None) -> Iterator[bytes]:
    """The object's bytes from `start`, whatever the server chose to send. Raises TransientFault when cut short.

    A server may send less than the range that it was asked for, `length` bytes or all: that is cut short too.
    """
    if response.status == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
        return
    partial = response.status == http.HTTPStatus.PARTIAL_CONTENT
    skip = 0 if partial else start
    if partial and not response.headers.get("content-range", "").startswith(f"bytes {start}-"):
        raise TransientFault(f"asked from byte {start}, answered {response.headers.get('content-range')!r}")
    expected, received = _length(response), 0
    if partial and (size_bytes := _size_bytes(response)) is not None:
        expected = size_bytes - start if length is None else min(length, size_bytes - start)
    for chunk in response.pieces:
        received += len(chunk)
        if piece := chunk[skip:]:
            yield piece
        skip = max(0, skip - len(chunk))
    if expected is not None and received < expected:
        raise TransientFault(f"the answer ended after {received} of {expected} bytes")


def _length(response: HttpAnswer) -> int | None:
    return _number(response.headers.get("content-length", ""))


def _size_bytes(response: HttpAnswer) -> int | None:
    """The whole object's, as far as this answer tells it."""
    if response.status == http.HTTPStatus.OK:
        return _length(response)
    return _number(response.headers.get("content-range", "").rpartition("/")[2])


def _number(text: str) -> int | None:
    try:
        return int(text) if text.isdecimal() else None
    except ValueError:  # thousands of digits
        return None


def _etag(response: HttpAnswer) -> str:
    """The ETag, else what else changes with the bytes."""
    return response.headers.get("etag") or response.headers.get("last-modified") or ""


def _modified_s(response: HttpAnswer) -> float:
    try:
        return parsedate_to_datetime(response.headers["last-modified"]).timestamp()
    except (KeyError, TypeError, ValueError):
        return 0.0


def _raise_status(uri: str, answer: HttpAnswer) -> NoReturn:
    """A status as one of ours."""
    status = answer.status
    if status in {404, 410}:
        raise NotFoundError(uri, f"no such object (HTTP {status})")
    if status in {401, 403, 407}:
        raise AccessDeniedError(uri, f"the server does not let us (HTTP {status} {answer.reason})")
    if status == http.HTTPStatus.PRECONDITION_FAILED:
        raise ChangedError(uri, "is another object now (its ETag differs)")
    if status in {408, 425, 429} or (status >= 500 and status not in _FOR_GOOD):
        why = f"HTTP {status} {answer.reason}"
        wait_s = retry_after_s(answer.headers.get("retry-after"), time.time())
        raise TransientFault(why, retry_after_s=wait_s)
    raise StorageError(uri, f"the server answered HTTP {status} {answer.reason}")


def _read_only(uri: str) -> NoReturn:
    raise ConfigError(
        f"{uri}: headrace only reads from plain HTTP servers; write to s3://, gs://, az:// or a path"
    )
