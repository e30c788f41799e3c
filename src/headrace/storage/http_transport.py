"""The transport of `HttpStore`: a protocol, and an implementation with the standard library."""

import http.client
import ssl
import urllib.request
from collections.abc import Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.error import HTTPError, URLError

from typing_extensions import override

from headrace.core.errors import StorageError
from headrace.core.retry import TransientFault

CHUNK_BYTES = 1 << 20
FIRST_CHUNK_BYTES = 64 << 10


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
