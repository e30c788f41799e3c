"""Inputs at ``https://`` addresses that clients name: a store over the guarded client.

It supports ranges, ETags and resumption like `storage.HttpStore`, without its redirects and
proxies, and limits bytes and time.
"""

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import Final

from typing_extensions import override

from headrace.core.errors import LimitError, StorageError, UnavailableError
from headrace.core.retry import TransientFault
from headrace.jobs.outbound.client import OutboundClient, OutboundFault, OutboundTimeouts, UntrustedFault
from headrace.storage.contract import ObjectInfo
from headrace.storage.http import HttpStore, HttpTransport, StreamedHttpResponse
from headrace.storage.retry import Retrier

STREAM_S_MAX: Final = 3600.0


class InputStore(HttpStore):
    """A store that reads what the client's policy permits.

    Writing raises ConfigError, listing NotFoundError.

    Besides the errors of `Store`, every operation raises RefusedAddressError for an address that
    may not be reached, and LimitError for an object of more than `bytes_max` bytes, at the latest
    once that many arrived.

    Args:
        client: The HTTP client; owned by the caller.
        retrier: Retries transient failures.
        bytes_max: The largest object.
        stream_s: The time limit of one `stream` including retries; then UnavailableError.
        read_s: The time limit of each read.
    """

    def __init__(
        self,
        client: OutboundClient,
        retrier: Retrier,
        *,
        bytes_max: int,
        stream_s: float = STREAM_S_MAX,
        read_s: float = 30.0,
    ) -> None:
        timeouts = OutboundTimeouts(client.timeouts.connect_s, read_s, stream_s)
        super().__init__(retrier, transport=_GuardedTransport(client, timeouts))
        self._clock = retrier
        self._bytes_max = bytes_max
        self._stream_s = stream_s

    @override
    def stream(self, uri: str, *, start: int = 0, etag: str = "") -> Iterator[bytes]:
        at, until_s = start, self._clock.now() + self._stream_s
        for chunk in super().stream(uri, start=start, etag=etag):
            at += len(chunk)
            self._check_size(uri, at)
            yield chunk
            if self._clock.now() > until_s:
                raise UnavailableError(uri, f"was not read within {self._stream_s:g} s; {at} bytes arrived")

    @override
    def get_range(self, uri: str, start: int, length: int, *, etag: str = "") -> bytes:
        self._check_size(uri, start + length)
        return super().get_range(uri, start, length, etag=etag)

    @override
    def head(self, uri: str) -> ObjectInfo:
        info = super().head(uri)
        self._check_size(uri, info.size_bytes or 0)
        return info

    def _check_size(self, uri: str, size_bytes: int) -> None:
        if size_bytes > self._bytes_max:
            raise LimitError(
                f"{uri.partition('?')[0]}: the object exceeds the limit of {self._bytes_max} bytes"
            )


class _GuardedTransport(HttpTransport):
    """The transport of `HttpStore` over the guarded client."""

    def __init__(self, client: OutboundClient, timeouts: OutboundTimeouts) -> None:
        self._client = client
        self._timeouts = timeouts

    @contextmanager
    @override
    def open(self, method: str, uri: str, headers: Mapping[str, str]) -> Generator[StreamedHttpResponse]:
        try:
            with self._client.open(method, uri, headers=headers, timeouts=self._timeouts) as response:
                yield StreamedHttpResponse(
                    response.status, _phrase(response.status), response.headers, _pieces(response.pieces)
                )
        except UntrustedFault as fault:
            raise StorageError(uri, str(fault)) from fault
        except OutboundFault as fault:
            raise TransientFault(str(fault)) from fault


def _pieces(pieces: Iterator[bytes]) -> Iterator[bytes]:
    try:
        yield from pieces
    except OutboundFault as fault:
        raise TransientFault(str(fault)) from fault


def _phrase(status: int) -> str:
    """Return the standard phrase of a status: the server's own words are not shown to clients."""
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""
