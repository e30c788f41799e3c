"""The parts that `Client` and `AsyncClient` share beside the operations: settings, files and httpx.

Adapter module of httpx: `sync` and `aio` take httpx from here, so that this module alone reports
its absence.
"""

import os
import secrets
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from headrace.core.errors import ConfigError, MissingExtraError
from headrace.jobs.client.core import RETRY_S, TIMEOUT_S, ApiCall
from headrace.jobs.client.messages import ApiResponse, ApiStream, ConnectionLostError

try:
    import httpx
except ImportError as _error:
    raise MissingExtraError("jobs", "the client of the job API") from _error

CONNECT_S: Final = 10.0
FILE_BYTES: Final = 1 << 20
_NEVER_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """The timeouts of a client: `timeout_s` for a silent server, `retry_s` for all retries."""

    timeout_s: float = TIMEOUT_S
    retry_s: float = RETRY_S
    ca_file: Path | None = None
    """Trusted certificates instead of the system's."""


def base_url(url: str) -> httpx.URL:
    """Return the API's address. Raise ConfigError for an invalid one."""
    try:
        found = httpx.URL(url.rstrip("/"))
    except httpx.InvalidURL as error:
        raise ConfigError(f"{url}: not an address: {error}") from None
    if found.scheme not in ("http", "https") or not found.host:
        raise ConfigError(f"{url}: not an address of a job API; write http://HOST:PORT")
    if found.userinfo:
        raise ConfigError("an address with credentials: pass the key as api_key")
    return found


def httpx_options(settings: ClientSettings) -> dict[str, Any]:
    """Return the arguments of an httpx client."""
    arguments: dict[str, Any] = {"timeout": settings.timeout_s, "follow_redirects": True}
    if settings.ca_file is not None:
        import ssl  # noqa: PLC0415 - rarely needed

        try:
            arguments["verify"] = ssl.create_default_context(cafile=str(settings.ca_file))
        except OSError as error:
            raise ConfigError(f"the certificates in {settings.ca_file} cannot be read: {error}") from error
    return arguments


def request_options(base: httpx.URL, settings: ClientSettings, call: ApiCall) -> dict[str, Any]:
    """Return the arguments of an httpx request, without its content."""
    timeout_s = settings.timeout_s + call.extra_s
    return {
        "method": call.method,
        "url": httpx.URL(call.url) if "://" in call.url else httpx.URL(f"{base}{call.url}"),
        "params": list(call.params) or None,
        "headers": dict(call.headers),
        "timeout": httpx.Timeout(timeout_s, connect=min(CONNECT_S, settings.timeout_s)),
    }


def api_response(response: httpx.Response, stream: ApiStream | None) -> ApiResponse:
    """Return an httpx response as an `ApiResponse`, with its body if that was read."""
    headers = {name.lower(): value for name, value in response.headers.items()}
    body = response.content if response.is_closed else b""
    url = str(response.request.url.copy_with(query=None))
    return ApiResponse(response.status_code, headers, body, url, stream)


def connection_lost(error: httpx.HTTPError) -> ConnectionLostError:
    """Return an httpx error as a ConnectionLostError."""
    return ConnectionLostError(str(error) or type(error).__name__, sent=not isinstance(error, _NEVER_SENT))


class ResultFile:
    """A file that is written under a temporary name and renamed once it is complete.

    Raises ConfigError if the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
        self._nbytes = 0
        with self._errors():
            self._file = self._partial.open("wb")

    def write(self, piece: bytes) -> None:
        """Append a chunk."""
        with self._errors():
            self._nbytes += self._file.write(piece)

    def finish(self) -> int:
        """Rename the file to its name. Return its size in bytes."""
        with self._errors():
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._partial.replace(self._path)
        return self._nbytes

    def close(self) -> None:
        """Delete an unfinished file."""
        self._file.close()
        self._partial.unlink(missing_ok=True)

    @contextmanager
    def _errors(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            raise ConfigError(f"{self._path} cannot be written: {error.strerror or error}") from error
