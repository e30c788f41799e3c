"""HTTP requests to addresses that clients name. Adapter module of httpcore.

The check happens where the connection is made. A name is resolved once, all its addresses are
checked, and the connection goes to an address that passed. The certificate and the Host header are
still the name's. There is no second look-up with another result (DNS rebinding). Nothing is taken
from the environment: no proxy, no netrc. Redirects are not followed, nothing is decompressed, no
cookie is kept, and a connection serves one request.

`InputStore` reads inputs at such addresses.
"""

import logging
import socket
import ssl
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager
from http import HTTPStatus
from ipaddress import ip_address
from typing import Any, Final, Self

from typing_extensions import override

from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import (
    LimitError,
    MissingExtraError,
    RefusedAddressError,
    StorageError,
    UnavailableError,
)
from headrace.jobs.outbound import (
    OUTBOUND_RESPONSE_BYTES_MAX,
    OutboundFault,
    OutboundPolicy,
    OutboundResponse,
    OutboundTimeouts,
    StreamedOutboundResponse,
    UntrustedFault,
    Url,
    parse_url,
    refusal,
)
from headrace.storage.contract import ObjectInfo
from headrace.storage.http import HttpStore, HttpTransport, StreamedHttpResponse
from headrace.storage.retry import Retrier

try:
    import httpcore
except ImportError as error:
    raise MissingExtraError("jobs", "webhooks and inputs over HTTP") from error

ADDRESSES_MAX: Final = 4
"""The number of a name's addresses that are tried, in the resolver's order."""
RESOLVERS_MAX: Final = 8
"""The number of concurrent look-ups. The system's resolver cannot be interrupted and keeps its
thread.
"""

Resolve = Callable[[str, int], Sequence[str]]
"""Returns the IP addresses of a host and port, best first; raises OSError."""
STREAM_S_MAX: Final = 3600.0

_log = logging.getLogger("headrace.jobs.outbound")


def system_resolve(host: str, port: int) -> Sequence[str]:
    """Return the operating system's addresses of a host, best first.

    Raise OSError for an unknown name.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return [str(info[4][0]) for info in found]


class OutboundClient:
    """An HTTP client that keeps to a policy. Thread-safe; close it after use.

    Args:
        policy: The reachable addresses.
        timeouts: The default time limits of a request.
        trust: Trusted certificates; None: the system's.
        resolve: The resolver of names.
    """

    def __init__(
        self,
        policy: OutboundPolicy | None = None,
        *,
        timeouts: OutboundTimeouts | None = None,
        trust: ssl.SSLContext | None = None,
        resolve: Resolve = system_resolve,
        clock: Clock | None = None,
    ) -> None:
        self.policy = policy or OutboundPolicy()
        self.timeouts = timeouts or OutboundTimeouts()
        self._trust = trust or ssl.create_default_context()
        self._resolve = resolve
        self._clock = clock or SystemClock()
        self._resolvers = ThreadPoolExecutor(RESOLVERS_MAX, "headrace-resolve")

    def close(self) -> None:
        """End the resolver threads; running requests fail. A second call does nothing."""
        self._resolvers.shutdown(wait=False, cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(
        self, method: str, url: str, *, headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> OutboundResponse:
        """Send one request and return its response, within the total timeout.

        Raises:
            RefusedAddressError: The address, or all addresses of its name, may not be reached.
            OutboundFault: No response head came. UntrustedFault: the certificate is not trusted.
        """
        with self.open(method, url, headers=headers, body=body) as response:
            parts, whole = _read(response.pieces)
            return OutboundResponse(response.status, response.headers, parts, whole)

    @contextmanager
    def open(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        timeouts: OutboundTimeouts | None = None,
    ) -> Generator[StreamedOutboundResponse]:
        """Open a response whose body is read while it arrives.

        Leaving the context closes the connection.

        Raises as `send` does; reading pieces raises OutboundFault.
        """
        checked = parse_url(url, self.policy)
        times = timeouts or self.timeouts
        backend = _CheckedBackend(self._addresses, _Deadline(self._clock, times), checked)
        sent = {"Host": checked.host_header, "User-Agent": "headrace", "Accept-Encoding": "identity"}
        with httpcore.ConnectionPool(
            ssl_context=self._trust,
            max_connections=1,
            max_keepalive_connections=0,
            network_backend=backend,
        ) as pool:
            with _faults(checked):
                response = pool.handle_request(_request(method, checked, {**sent, **(headers or {})}, body))
            try:
                yield StreamedOutboundResponse(
                    response.status, _headers(response), _pieces(response, checked)
                )
            finally:
                response.close()

    def _addresses(self, url: Url, timeout_s: float) -> Sequence[str]:
        """Return the host's reachable addresses. Raise RefusedAddressError if it has only others."""
        found = [url.host] if url.literal else self._resolved(url, timeout_s)
        refusals = {address: refusal(address, self.policy.networks) for address in found}
        passed = [address for address, why in refusals.items() if why is None]
        if refusals and not passed:
            _log.warning("%s has only addresses that may not be reached: %s", url.host, refusals)
            raise RefusedAddressError(
                f"{url.origin}: its host has only addresses that may not be reached; "
                "the operator can allow its subnet"
            )
        return passed[:ADDRESSES_MAX]

    def _resolved(self, url: Url, timeout_s: float) -> Sequence[str]:
        try:
            lookup = self._resolvers.submit(self._resolve, url.host, url.port)
        except RuntimeError:
            raise OutboundFault("the client is closed") from None
        try:
            return lookup.result(timeout_s)
        except TimeoutError:
            lookup.cancel()
            raise OutboundFault(f"{url.host} was not resolved within {timeout_s:g} s") from None
        except CancelledError:
            raise OutboundFault("the client is closed") from None
        except (OSError, UnicodeError) as error:
            raise OutboundFault(f"{url.host} could not be resolved") from error


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


class _Deadline:
    """The deadline of a request, and the time that a step may take."""

    def __init__(self, clock: Clock, timeouts: OutboundTimeouts) -> None:
        self._clock = clock
        self._ends_s = clock.now() + timeouts.total_s
        self._timeouts = timeouts

    def connect_s(self) -> float:
        return self._left_s(self._timeouts.connect_s)

    def read_s(self) -> float:
        return self._left_s(self._timeouts.read_s)

    def _left_s(self, step_s: float) -> float:
        left_s = self._ends_s - self._clock.now()
        if left_s <= 0:
            raise OutboundFault(f"the request exceeded {self._timeouts.total_s:g} s")
        return min(step_s, left_s)


class _CheckedBackend(httpcore.NetworkBackend):
    """A network backend that connects to one URL's host, and only to addresses that passed."""

    def __init__(
        self, addresses: Callable[[Url, float], Sequence[str]], deadline: _Deadline, url: Url
    ) -> None:
        self._addresses = addresses
        self._deadline = deadline
        self._url = url
        self._sockets = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ARG002 - the deadline decides
        local_address: str | None = None,  # noqa: ARG002 - not offered
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        assert (host, port) == (self._url.host, self._url.port), "asked for another host than was checked"
        last: Exception = OutboundFault(f"{host} has no address")
        for address in self._addresses(self._url, self._deadline.connect_s()):
            numeric = str(ip_address(address))  # so that nothing is resolved again
            try:
                stream = self._sockets.connect_tcp(
                    numeric, port, self._deadline.connect_s(), None, socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                last = error
            else:
                return _TimedStream(stream, self._deadline)
        raise last


class _TimedStream(httpcore.NetworkStream):
    """A connection whose every step ends with the request's deadline."""

    def __init__(self, stream: httpcore.NetworkStream, deadline: _Deadline) -> None:
        self._stream = stream
        self._deadline = deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ARG002
        return self._stream.read(max_bytes, self._deadline.read_s())

    def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002
        # Not the stream's own write, which applies its timeout to each chunk.
        sock: socket.socket = self._stream.get_extra_info("socket")
        rest = memoryview(buffer)
        while rest:
            sock.settimeout(self._deadline.read_s())
            try:
                rest = rest[sock.send(rest) :]
            except TimeoutError as error:
                raise httpcore.WriteTimeout("the receiver does not read the request") from error
            except OSError as error:
                raise httpcore.WriteError(str(error)) from error

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ARG002
    ) -> httpcore.NetworkStream:
        secure = self._stream.start_tls(ssl_context, server_hostname, self._deadline.connect_s())
        return _TimedStream(secure, self._deadline)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


def _request(method: str, url: Url, headers: Mapping[str, str], body: bytes) -> httpcore.Request:
    length = {"Content-Length": str(len(body))} if body or method == "POST" else {}
    return httpcore.Request(
        method,
        httpcore.URL(
            scheme=url.scheme.encode(), host=url.host.encode(), port=url.port, target=url.target.encode()
        ),
        headers=[
            (name.encode("ascii"), value.encode("ascii")) for name, value in {**headers, **length}.items()
        ],
        content=body,
    )


def _headers(response: httpcore.Response) -> dict[str, str]:
    found: dict[str, str] = {}
    for raw_name, raw_value in response.headers:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        found[name] = f"{found[name]}, {value}" if name in found else value
    return found


def _pieces(response: httpcore.Response, url: Url) -> Iterator[bytes]:
    with _faults(url):
        yield from response.iter_stream()


def _read(pieces: Iterator[bytes]) -> tuple[bytes, bool]:
    """Return the body up to the limit, and True if it is complete."""
    parts: list[bytes] = []
    left = OUTBOUND_RESPONSE_BYTES_MAX
    try:
        for piece in pieces:
            parts.append(piece[:left])
            left -= len(piece)
            if left < 0:
                return b"".join(parts), False
    except OutboundFault:
        return b"".join(parts), False
    return b"".join(parts), True


@contextmanager
def _faults(url: Url) -> Generator[None]:
    """Convert httpcore's errors, without their messages, which may quote addresses."""
    try:
        yield
    except httpcore.TimeoutException as error:
        raise OutboundFault(f"{url.origin} did not respond in time ({type(error).__name__})") from error
    except httpcore.ConnectError as error:
        found = _tls_error(error)
        if isinstance(found, ssl.SSLCertVerificationError):
            why = f"its certificate cannot be trusted: {found.verify_message}"
            raise UntrustedFault(f"{url.origin}: {why}") from error
        if found is not None:
            raise UntrustedFault(f"{url.origin}: no TLS connection ({found.reason})") from error
        raise OutboundFault(f"{url.origin} could not be reached") from error
    except (httpcore.NetworkError, httpcore.ProtocolError) as error:
        raise OutboundFault(f"{url.origin}: the connection broke ({type(error).__name__})") from error


def _tls_error(error: BaseException | None) -> ssl.SSLError | None:
    """Return the TLS error below httpcore's, which hides the cause but not the context."""
    while error is not None and not isinstance(error, ssl.SSLError):
        error = error.__context__
    return error


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
                    response.status,
                    _phrase(response.status),
                    response.headers,
                    response.pieces,
                )
        except UntrustedFault as fault:
            raise StorageError(uri, str(fault)) from fault


def _phrase(status: int) -> str:
    """Return the standard phrase of a status: the server's own words are not shown to clients."""
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""
