"""The door to aiohttp: sends one request, and gives a whole answer or says why there is none."""

import asyncio
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Self

from headrace.client.retry import HttpAnswer, TransientFault
from headrace.core.errors import EndpointError, MissingExtraError

try:
    import aiohttp
    from yarl import URL
except ImportError as error:
    raise MissingExtraError("http", "asking an endpoint") from error

ANSWER_BYTES_MAX = 1 << 30
"""An answer longer than this is refused, also when it was compressed."""


@dataclass(frozen=True, slots=True)
class HttpCall:
    """One request, to be sent as often as it takes."""

    method: str
    url: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class StreamedAnswer:
    """An answer whose body is read as it comes, piece by piece; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    pieces: AsyncGenerator[bytes, None]


class Connection:
    """A bounded pool of connections to one endpoint. Use it inside one running loop, as a context manager.

    Redirects are not followed: credentials would go along.
    """

    def __init__(
        self,
        headers: Mapping[str, str],
        *,
        connections_max: int,
        answer_bytes_max: int = ANSWER_BYTES_MAX,
    ) -> None:
        self._headers = {"Accept-Encoding": "identity", "User-Agent": "headrace", **headers}
        self._connections_max = connections_max
        self._answer_bytes_max = answer_bytes_max
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            headers=self._headers,
            connector=aiohttp.TCPConnector(limit=self._connections_max),
            cookie_jar=aiohttp.DummyCookieJar(),
            # Every attempt brings its own.
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None
            # Transports close in the loop's next rounds.
            await asyncio.sleep(0)

    async def send(self, call: HttpCall, timeout_s: float) -> HttpAnswer:
        """One attempt, answered whole within `timeout_s`. Cancelling it closes its connection.

        Raises:
            TransientFault: Not reached, lost, or not answered in time.
            EndpointError: What no retry cures: TLS that is not trusted, an answer that is too long.
        """
        with _faults(call, timeout_s):
            async with asyncio.timeout(timeout_s):
                return await self._exchange(self._open_session(), call)

    @asynccontextmanager
    async def stream(self, call: HttpCall, timeout_s: float) -> AsyncGenerator[StreamedAnswer, None]:
        """An answer whose body is read while it comes; leaving the context closes the connection if more was to come.

        `timeout_s` is for the answer's head, and then for each piece. Raises what `send` does, also while pieces are read.
        """
        with _faults(call, timeout_s):
            async with asyncio.timeout(timeout_s):
                response = await self._request(self._open_session(), call)
        try:
            headers = {name.lower(): value for name, value in response.headers.items()}
            pieces = _pieces(response, call, timeout_s)
            async with aclosing(pieces):
                yield StreamedAnswer(response.status, headers, pieces)
        finally:
            response.close()

    def _open_session(self) -> aiohttp.ClientSession:
        assert self._session is not None, "the connection is not open"
        return self._session

    async def _exchange(self, session: aiohttp.ClientSession, call: HttpCall) -> HttpAnswer:
        async with await self._request(session, call) as response:
            parts: list[bytes] = []
            size = 0
            async for part in response.content.iter_any():
                size += len(part)
                if size > self._answer_bytes_max:
                    raise EndpointError(
                        call.url,
                        f"its answer has more than {self._answer_bytes_max} bytes",
                        status=response.status,
                    )
                parts.append(part)
            headers = {name.lower(): value for name, value in response.headers.items()}
            return HttpAnswer(response.status, b"".join(parts), headers)

    async def _request(self, session: aiohttp.ClientSession, call: HttpCall) -> aiohttp.ClientResponse:
        # Names in URLs are quoted already: requoting would ask for another model.
        url = URL(call.url, encoded=True)
        _ = url.explicit_port  # parsed only when it is asked for
        return await session.request(
            call.method, url, data=call.body or None, headers=call.headers, allow_redirects=False
        )


async def _pieces(
    response: aiohttp.ClientResponse, call: HttpCall, timeout_s: float
) -> AsyncGenerator[bytes, None]:
    while True:
        with _faults(call, timeout_s):
            async with asyncio.timeout(timeout_s):
                piece = await response.content.readany()
        if not piece:
            return
        yield piece


@contextmanager
def _faults(call: HttpCall, timeout_s: float) -> Generator[None, None, None]:
    """What aiohttp raises, in our words."""
    try:
        yield
    except TimeoutError as error:
        raise TransientFault(f"no answer within {timeout_s:g} s") from error
    except aiohttp.ClientSSLError as error:
        raise EndpointError(call.url, f"no trusted TLS connection: {error}") from error
    except (ValueError, aiohttp.NonHttpUrlClientError) as error:
        raise EndpointError(call.url, "this is not a URL that can be asked") from error
    except (aiohttp.ClientError, OSError) as error:
        raise TransientFault(str(error) or type(error).__name__) from error
