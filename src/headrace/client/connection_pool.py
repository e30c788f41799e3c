"""The adapter module of aiohttp: a connection pool with whole and streamed responses."""

import asyncio
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Self

from headrace.client.retry import HttpResponse
from headrace.core.clock import TransientFault
from headrace.core.errors import EndpointError, MissingExtraError

try:
    import aiohttp
    from yarl import URL
except ImportError as error:
    raise MissingExtraError("http", "calling an endpoint") from error

RESPONSE_BYTES_MAX = 1 << 30
"""The limit of a response, in bytes after decompression."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request. It may be sent several times."""

    method: str
    url: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class StreamedResponse:
    """A response whose body is read on demand. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    chunks: AsyncGenerator[bytes, None]


class HttpConnectionPool:
    """A bounded pool of connections to one endpoint: a context manager, for one event loop.

    Redirects are not followed, because they would forward the credentials.
    """

    def __init__(
        self,
        headers: Mapping[str, str],
        *,
        connections_max: int,
        response_bytes_max: int = RESPONSE_BYTES_MAX,
    ) -> None:
        self._headers = {"Accept-Encoding": "identity", "User-Agent": "headrace", **headers}
        self._connections_max = connections_max
        self._response_bytes_max = response_bytes_max
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            headers=self._headers,
            connector=aiohttp.TCPConnector(limit=self._connections_max),
            cookie_jar=aiohttp.DummyCookieJar(),
            # Each attempt sets its own timeout.
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None
            # Transports close in the next iterations of the loop.
            await asyncio.sleep(0)

    async def send(self, request: HttpRequest, timeout_s: float) -> HttpResponse:
        """Make one attempt. The whole response must arrive within `timeout_s` seconds.

        Cancellation closes the connection.

        Raises:
            TransientFault: The server was unreachable, the connection was lost, or it timed out.
            EndpointError: A permanent failure: untrusted TLS, or a response that is too long.
        """
        with _translate_errors(request, timeout_s):
            async with asyncio.timeout(timeout_s):
                return await self._exchange(self._open_session(), request)

    @asynccontextmanager
    async def stream(self, request: HttpRequest, timeout_s: float) -> AsyncGenerator[StreamedResponse, None]:
        """Open a response whose body is read on demand.

        Leaving the context before the end of the body closes the connection. `timeout_s` limits the
        wait for the response header, then for each chunk. Raises the errors of `send`, also while
        chunks are read.
        """
        with _translate_errors(request, timeout_s):
            async with asyncio.timeout(timeout_s):
                response = await self._request(self._open_session(), request)
        try:
            headers = {name.lower(): value for name, value in response.headers.items()}
            chunks = _read_chunks(response, request, timeout_s)
            async with aclosing(chunks):
                yield StreamedResponse(response.status, headers, chunks)
        finally:
            response.close()

    def _open_session(self) -> aiohttp.ClientSession:
        assert self._session is not None, "the connection pool is not open"
        return self._session

    async def _exchange(self, session: aiohttp.ClientSession, request: HttpRequest) -> HttpResponse:
        async with await self._request(session, request) as response:
            parts: list[bytes] = []
            size = 0
            async for part in response.content.iter_any():
                size += len(part)
                if size > self._response_bytes_max:
                    raise EndpointError(
                        request.url,
                        f"its response has more than {self._response_bytes_max} bytes",
                        status=response.status,
                    )
                parts.append(part)
            headers = {name.lower(): value for name, value in response.headers.items()}
            return HttpResponse(response.status, b"".join(parts), headers)

    async def _request(self, session: aiohttp.ClientSession, request: HttpRequest) -> aiohttp.ClientResponse:
        # Names in URLs are percent-encoded already: encoding them again would name another model.
        url = URL(request.url, encoded=True)
        _ = url.explicit_port  # `URL` parses the port only on access, and raises for an invalid one
        return await session.request(
            request.method, url, data=request.body or None, headers=request.headers, allow_redirects=False
        )


async def _read_chunks(
    response: aiohttp.ClientResponse, request: HttpRequest, timeout_s: float
) -> AsyncGenerator[bytes, None]:
    while True:
        with _translate_errors(request, timeout_s):
            async with asyncio.timeout(timeout_s):
                chunk = await response.content.readany()
        if not chunk:
            return
        yield chunk


@contextmanager
def _translate_errors(request: HttpRequest, timeout_s: float) -> Generator[None, None, None]:
    """Translate the exceptions of aiohttp."""
    try:
        yield
    except TimeoutError as error:
        raise TransientFault(f"no response within {timeout_s:g} s") from error
    except aiohttp.ClientSSLError as error:
        raise EndpointError(request.url, f"no trusted TLS connection: {error}") from error
    except (ValueError, aiohttp.NonHttpUrlClientError) as error:
        raise EndpointError(request.url, "this is not a URL that can be requested") from error
    except (aiohttp.ClientError, OSError) as error:
        text = str(error).replace(" ssl:default", "")
        raise TransientFault(text or type(error).__name__) from error
