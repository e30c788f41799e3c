"""Sessions of browsers: a cookie stands for an API key, so that pages of this server need not keep one.

A cookie names the key by its digest and has an expiry time and an HMAC-SHA256. No server stores it:
all servers with the same encryption key accept it, and it ends when the key leaves the configuration.
Scripts cannot read the cookie, and browsers send it only with requests of this site (``HttpOnly``,
``SameSite=Strict``). Cookies ignore ports, so its name has the port of the server.
"""

import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import orjson
from msgspec import Struct

from headrace.core.errors import UnauthenticatedError
from headrace.jobs.access import Access, ApiKey, Scope
from headrace.server.http import JSON, Exchange
from headrace.server.routes import Route, route, routes_of

SESSION_S: Final = 8 * 3600
PATH: Final = "/v1/session"
_DIGEST_BYTES: Final = 32
_TIME_BYTES: Final = 8
_HOW: Final = f"POST {PATH} with Authorization: Bearer KEY"


@dataclass(frozen=True, slots=True)
class Session:
    """A valid session: the API key that it stands for, and its end on the clock of the server."""

    key: ApiKey
    expires_s: int


class Sessions:
    """The sessions of a server. Thread-safe.

    Args:
        access: The API keys.
        signing_key: The secret of the signatures, at least 32 bytes.
        lifetime_s: Seconds from the creation of a session to its end.
        wall_s: Returns the seconds since the epoch.
    """

    def __init__(
        self,
        access: Access,
        signing_key: bytes,
        *,
        lifetime_s: int = SESSION_S,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self.lifetime_s: Final = lifetime_s
        self._access = access
        self._signing_key = signing_key
        self._wall_s = wall_s

    def create(self, authorization: str | None) -> tuple[Session, str]:
        """Return a new session for the key of an ``Authorization`` header, and the value of its cookie.

        Raise UnauthenticatedError for an unknown or missing key.
        """
        digest, key = self._access.identify(authorization)
        session = Session(key, int(self._wall_s()) + self.lifetime_s)
        content = session.expires_s.to_bytes(_TIME_BYTES, "big") + digest
        return session, base64.urlsafe_b64encode(content + self._signature(content)).decode()

    def find(self, headers: Mapping[bytes, bytes]) -> Session | None:
        """Return the session of the cookie in request headers, or None without a cookie.

        Raise UnauthenticatedError for a session that has ended, and for a forged one.
        """
        value = _cookie(headers, cookie_name(headers))
        if value is None:
            return None
        try:
            token = base64.b64decode(value, altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            token = b""
        content, signature = token[: _TIME_BYTES + _DIGEST_BYTES], token[_TIME_BYTES + _DIGEST_BYTES :]
        expires_s = int.from_bytes(content[:_TIME_BYTES], "big")
        is_valid = hmac.compare_digest(signature, self._signature(content)) and expires_s > self._wall_s()
        key = self._access.find(content[_TIME_BYTES:]) if is_valid else None
        if key is None:
            raise UnauthenticatedError(f"the session has ended: {_HOW}")
        return Session(key, expires_s)

    def _signature(self, content: bytes) -> bytes:
        return hmac.digest(self._signing_key, content, hashlib.sha256)


def cookie_name(headers: Mapping[bytes, bytes]) -> str:
    """Return the name of the cookie for the port of the ``Host`` header."""
    port = headers.get(b"host", b"").rpartition(b":")[2]
    return f"headrace-session-{port.decode()}" if port.isdigit() else "headrace-session"


def _cookie(headers: Mapping[bytes, bytes], name: str) -> bytes | None:
    for part in headers.get(b"cookie", b"").split(b";"):
        found, equals, value = part.strip().partition(b"=")
        if equals and found == name.encode():
            return value
    return None


class SessionDocument(Struct, kw_only=True):
    """The API key that a client uses, without the key itself."""

    name: str
    """The name of the key; empty if this server needs no key."""
    tenant: str
    scopes: list[Scope]
    """The scopes of the key and those that they include."""
    expires_at_ms: int | None
    """The end of the session in milliseconds since the epoch; null without a session."""


class SessionHandlers:
    """The handlers of the routes of sessions. Their docstrings are the descriptions for clients."""

    def __init__(self, sessions: Sessions, access: Access) -> None:
        self._sessions = sessions
        self._access = access

    @route("POST", PATH, tuple(Scope), SessionDocument, errors=(400,))
    async def create_session(self, exchange: Exchange) -> None:
        """Begin a session: the response sets a cookie that stands for the API key of this request.

        It is for pages of this server. Other clients send the key itself. A server without keys sets
        no cookie.
        """
        if self._access.open:
            await _respond(exchange, exchange.client, None)
            return
        session, value = self._sessions.create(exchange.header(b"authorization"))
        cookie = _set_cookie(exchange, value, self._sessions.lifetime_s)
        await _respond(exchange, session.key, session.expires_s, cookie)

    @route("GET", PATH, tuple(Scope), SessionDocument, errors=(400,))
    async def get_session(self, exchange: Exchange) -> None:
        """Return the name, tenant and scopes of the client's API key."""
        session = None
        if exchange.header(b"authorization") is None and not self._access.open:
            session = self._sessions.find(exchange.headers)
        await _respond(exchange, exchange.client, None if session is None else session.expires_s)

    @route("DELETE", PATH, (), status=204, errors=(400, 403))
    async def end_session(self, exchange: Exchange) -> None:
        """End the session of this browser: the response deletes the cookie."""
        await exchange.respond(204, extra=[(b"set-cookie", _set_cookie(exchange, "", 0))])


def session_routes(sessions: Sessions, access: Access) -> list[Route]:
    """Return the routes of sessions."""
    return [replace(found, has_request_id=True) for found in routes_of(SessionHandlers(sessions, access))]


def _set_cookie(exchange: Exchange, value: str, age_s: int) -> bytes:
    name = cookie_name(exchange.headers)
    cookie = f"{name}={value}; Path=/; Max-Age={age_s}; HttpOnly; SameSite=Strict"
    # A proxy in front of this server may end TLS. The header is not trusted for anything else.
    if exchange.origin.startswith("https:") or exchange.header(b"x-forwarded-proto") == "https":
        cookie += "; Secure"
    return cookie.encode()


async def _respond(
    exchange: Exchange, key: ApiKey, expires_s: int | None, cookie: bytes | None = None
) -> None:
    document = {
        "name": key.name,
        "tenant": key.tenant,
        "scopes": sorted(key.granted),
        "expires_at_ms": None if expires_s is None else expires_s * 1000,
    }
    headers: Sequence[tuple[bytes, bytes]] = [(b"cache-control", b"no-store")]
    if cookie is not None:
        headers = [*headers, (b"set-cookie", cookie)]
    await exchange.respond(200, orjson.dumps(document), JSON, headers)
