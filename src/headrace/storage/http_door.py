"""What sends a request of `HttpStore` and gives the answer: a seam, and the standard library behind it."""

import http.client
import ssl
import urllib.request
from collections.abc import Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.error import HTTPError, URLError

from headrace.core.errors import StorageError
from headrace.storage.retry import TransientFault

CHUNK_BYTES = 1 << 20
FIRST_CHUNK_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An answer of any status, whose body is read while it comes.

    Header names are in lower case. `pieces` raises TransientFault when the body breaks off.
    """

    status: int
    reason: str
    headers: Mapping[str, str]
    pieces: Iterator[bytes]


class HttpDoor(Protocol):
    """Sends one request at a time from any thread."""

    def open(self, method: str, uri: str, headers: Mapping[str, str]) -> AbstractContextManager[HttpAnswer]:
        """The answer, whatever its status; leaving the context closes it.

        Raises TransientFault when none came, and StorageError or ConfigError for what no retry cures.
        """
        ...


class UrllibDoor:
    """The standard library. Redirects to http and https are followed; certificates are those of the system.

    Args:
        timeout_s: For each step on the network: connecting, the answer's head, each read.
    """

    def __init__(self, timeout_s: float) -> None:
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

    @contextmanager
    def open(self, method: str, uri: str, headers: Mapping[str, str]) -> Generator[HttpAnswer]:
        """See `HttpDoor.open`."""
        request = urllib.request.Request(uri, headers=dict(headers), method=method)  # noqa: S310 - callers check it
        try:
            response: Any = self._opener.open(request, timeout=self._timeout_s)
        except HTTPError as error:
            response = error
        except URLError as error:
            if isinstance(error.reason, ssl.SSLCertVerificationError):
                raise StorageError(uri, f"its certificate cannot be trusted: {error.reason}") from error
            raise TransientFault(f"no connection: {error.reason}") from error
        except (OSError, http.client.HTTPException) as error:
            raise TransientFault(f"no answer: {error!r}") from error
        except ValueError as error:
            raise StorageError(uri, f"it, or what it redirects to, is no address: {error}") from error
        with response:
            found = {name.lower(): value for name, value in response.headers.items()}
            yield HttpAnswer(response.status, response.reason, found, _pieces(response))


def _pieces(response: http.client.HTTPResponse) -> Iterator[bytes]:
    received, ask = 0, FIRST_CHUNK_BYTES
    while True:
        try:
            chunk = response.read(ask)
        except (OSError, http.client.HTTPException) as error:
            raise TransientFault(f"the answer broke off after {received} bytes: {error!r}") from error
        if not chunk:
            return
        received += len(chunk)
        ask = CHUNK_BYTES
        yield chunk
