"""What the two clients are made with, and what they share of httpx. The door to it, with `sync` and `aio`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from headrace.core.errors import ConfigError, MissingExtraError
from headrace.jobs.client.answers import Answer
from headrace.jobs.client.talk import RETRY_S, TIMEOUT_S, Call, LostError

try:
    import httpx
except ImportError as _error:
    raise MissingExtraError("jobs", "the client of the job API") from _error

CONNECT_S: Final = 10.0
FILE_BYTES: Final = 1 << 20
_NEVER_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """How patient a client is: `timeout_s` for a silent server, `retry_s` for one that fails or is full."""

    timeout_s: float = TIMEOUT_S
    retry_s: float = RETRY_S
    ca_file: Path | None = None
    """Certificates that are trusted, in place of the system's."""


def base_url(url: str) -> httpx.URL:
    """The API's address. ConfigError for what is none."""
    try:
        found = httpx.URL(url.rstrip("/"))
    except httpx.InvalidURL as error:
        raise ConfigError(f"{url}: not an address: {error}") from None
    if found.scheme not in ("http", "https") or not found.host:
        raise ConfigError(f"{url}: not an address of a job API; write http://HOST:PORT")
    if found.userinfo:
        raise ConfigError("credentials do not belong in the address: give the key as api_key")
    return found


def options(settings: ClientSettings) -> dict[str, Any]:
    """What an httpx client is made with."""
    given: dict[str, Any] = {"timeout": settings.timeout_s, "follow_redirects": True}
    if settings.ca_file is not None:
        import ssl  # noqa: PLC0415 - few need it

        try:
            given["verify"] = ssl.create_default_context(cafile=str(settings.ca_file))
        except OSError as error:
            raise ConfigError(f"the certificates in {settings.ca_file} cannot be read: {error}") from error
    return given


def timeouts(settings: ClientSettings, call: Call) -> httpx.Timeout:
    """Those of one call."""
    return httpx.Timeout(settings.timeout_s + call.extra_s, connect=min(CONNECT_S, settings.timeout_s))


def address(base: httpx.URL, call: Call) -> httpx.URL:
    """Where a call goes to."""
    return httpx.URL(call.url) if "://" in call.url else httpx.URL(f"{base}{call.url}")


def answer_of(response: httpx.Response, body: bytes) -> Answer:
    """A response without httpx."""
    headers = {name.lower(): value for name, value in response.headers.items()}
    return Answer(response.status_code, headers, body, str(response.request.url.copy_with(query=None)))


def lost(error: httpx.HTTPError) -> LostError:
    """What httpx raised, as what a talk is told."""
    return LostError(str(error) or type(error).__name__, sent=not isinstance(error, _NEVER_SENT))
