"""Inputs at ``https://`` addresses that a submitter named: a `Store` that only reads, and asks the guarded client.

All that `storage.HttpStore` does with ranges, ETags and broken connections, without its redirects and proxies, bounded
in bytes and in time.
"""

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import Final

from headrace.core.errors import LimitError, StorageError, UnavailableError
from headrace.jobs.outbound.client import OutboundClient, OutboundFault, OutboundTimeouts, UntrustedFault
from headrace.storage.contract import ObjectInfo
from headrace.storage.http import HttpStore
from headrace.storage.http_door import HttpAnswer
from headrace.storage.retry import Retrier, TransientFault

STREAM_S_MAX: Final = 3600.0


class InputStore(HttpStore):
    """Reads what the client's policy lets it read; writing raises ConfigError, listing NotFoundError.

    Besides what `Store` says, every verb raises RefusedAddressError for an address that may not be reached, and
    LimitError for an object of more than `bytes_max` bytes, at the latest when so many have come.

    Args:
        client: Who asks; stays the caller's to close.
        retrier: Tries again what may pass.
        bytes_max: The largest object.
        stream_s: How long one `stream` may take, with all that is tried again; then UnavailableError.
        read_s: How long to wait for each read.
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
        super().__init__(retrier, door=_GuardedDoor(client, timeouts))
        self._clock = retrier
        self._bytes_max = bytes_max
        self._stream_s = stream_s

    def stream(self, uri: str, *, start: int = 0, etag: str = "") -> Iterator[bytes]:
        """See `Store.stream`."""
        at, until_s = start, self._clock.now() + self._stream_s
        for chunk in super().stream(uri, start=start, etag=etag):
            at += len(chunk)
            self._check_size(uri, at)
            yield chunk
            if self._clock.now() > until_s:
                raise UnavailableError(uri, f"was not read within {self._stream_s:g} s; {at} bytes came")

    def get_range(self, uri: str, start: int, length: int, *, etag: str = "") -> bytes:
        """See `Store.get_range`."""
        self._check_size(uri, start + length)
        return super().get_range(uri, start, length, etag=etag)

    def head(self, uri: str) -> ObjectInfo:
        """See `Store.head`."""
        info = super().head(uri)
        self._check_size(uri, info.size_bytes or 0)
        return info

    def _check_size(self, uri: str, size_bytes: int) -> None:
        if size_bytes > self._bytes_max:
            raise LimitError(
                f"{uri.partition('?')[0]}: has more than the {self._bytes_max} bytes that are taken"
            )


class _GuardedDoor:
    """Sends what `HttpStore` asks through the guarded client."""

    def __init__(self, client: OutboundClient, timeouts: OutboundTimeouts) -> None:
        self._client = client
        self._timeouts = timeouts

    @contextmanager
    def open(self, method: str, uri: str, headers: Mapping[str, str]) -> Generator[HttpAnswer]:
        """See `HttpDoor.open`."""
        try:
            with self._client.open(method, uri, headers=headers, timeouts=self._timeouts) as answer:
                yield HttpAnswer(
                    answer.status, _phrase(answer.status), answer.headers, _pieces(answer.pieces)
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
    """What the standard calls a status: the server's own words stay out of what a submitter is told."""
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""
