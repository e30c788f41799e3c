"""The door to aiohttp: sends one request, and gives a whole answer or says why there is none."""

import asyncio
from collections.abc import Mapping
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
        assert self._session is not None, "the connection is not open"
        try:
            async with asyncio.timeout(timeout_s):
                return await self._exchange(self._session, call)
        except TimeoutError as error:
            raise TransientFault(f"no answer within {timeout_s:g} s") from error
        except aiohttp.ClientSSLError as error:
            raise EndpointError(call.url, f"no trusted TLS connection: {error}") from error
        except (ValueError, aiohttp.NonHttpUrlClientError) as error:
            raise EndpointError(call.url, "this is not a URL that can be asked") from error
        except (aiohttp.ClientError, OSError) as error:
            raise TransientFault(str(error) or type(error).__name__) from error

    async def _exchange(self, session: aiohttp.ClientSession, call: HttpCall) -> HttpAnswer:
        # Names in URLs are quoted already: requoting would ask for another model.
        url = URL(call.url, encoded=True)
        _ = url.explicit_port  # parsed only when it is asked for
        async with session.request(
            call.method,
            url,
            data=call.body or None,
            headers=call.headers,
            allow_redirects=False,
        ) as response:
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
