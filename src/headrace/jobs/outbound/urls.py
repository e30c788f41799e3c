"""Addresses that somebody outside may name, of webhooks and inputs; for objects in a store see `jobs.places`. Pure.

An address is taken apart by a grammar narrower than the standard's, so that no two readers can disagree on its host:
what another parser could understand in another way is refused, not repaired. Names are not resolved here, and what they
lead to is judged when the connection is made (see `client`).
"""

import re
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Final

from headrace.core.errors import RefusedAddressError
from headrace.jobs.outbound.addresses import Network, refusal

PORTS: Final = frozenset({80, 443, 8443})
URL_CHARS_MAX: Final = 2048
HOST_CHARS_MAX: Final = 253
_SHOWN_CHARS_MAX: Final = 120

_URL: Final = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<authority>[^/?]*)(?P<path>/[^?]*)?(?P<query>\?.*)?", re.IGNORECASE
)
_AUTHORITY: Final = re.compile(
    r"(?P<host>\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(?::(?P<port>[1-9][0-9]{0,4}))?", re.IGNORECASE
)
_LABEL: Final = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PATH: Final = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-Fa-f]{2})*")
_QUERY: Final = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=:@/?|{}\[\]-]|%[0-9A-Fa-f]{2})*")
_PORT_MAX: Final = 65535
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class OutboundPolicy:
    """What requests on behalf of somebody outside may reach.

    Args:
        plain_http: Whether ``http://`` is taken beside ``https://``.
        ports: Ports that may be named.
        networks: Subnets that may be reached although they are not global (see `addresses.network`).
    """

    plain_http: bool = False
    ports: frozenset[int] = PORTS
    networks: tuple[Network, ...] = ()


@dataclass(frozen=True, slots=True)
class Url:
    """An address that has passed. `host` is a name in lower case or a literal address without brackets."""

    scheme: str
    host: str
    port: int
    target: str
    """Path and query, as they go into the request line."""
    literal: bool = False
    """Whether the host is an IP address."""

    @property
    def host_header(self) -> str:
        """The host as the request names it, with the port unless it is the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def origin(self) -> str:
        """Scheme, host and port, for logs: paths and queries may hold secrets."""
        return f"{self.scheme}://{self.host_header}"


def parse_url(text: str, policy: OutboundPolicy) -> Url:
    """Take an address apart; RefusedAddressError says what is wrong with it.

    A literal IP address is judged at once; a name passes whatever it may lead to.
    """
    _check_characters(text)
    match = _URL.fullmatch(text)
    if match is None:
        raise _refused(text, "not an address; write https://HOST/PATH")
    scheme = match["scheme"].lower()
    if scheme not in _DEFAULT_PORTS:
        raise _refused(text, f"{scheme}: is not taken here; write https://")
    if scheme == "http" and not policy.plain_http:
        raise _refused(text, "plain http is not allowed here; write https://, or allow it in the settings")
    host, port, literal = _authority(text, match["authority"], policy)
    port = port or _DEFAULT_PORTS[scheme]
    if port not in policy.ports:
        known = ", ".join(map(str, sorted(policy.ports)))
        raise _refused(text, f"port {port} is not allowed here; allowed are {known}")
    path, query = match["path"] or "/", match["query"] or ""
    if not _PATH.fullmatch(path) or not _QUERY.fullmatch(query[1:]):
        raise _refused(text, "its path or query holds a character that must be percent-encoded")
    return Url(scheme, host, port, path + query, literal)


def _check_characters(text: str) -> None:
    if len(text) > URL_CHARS_MAX:
        raise _refused(text, f"longer than {URL_CHARS_MAX} characters")
    if not text.isascii():
        why = "holds characters outside of ASCII; write a host as xn--..., and percent-encode the rest"
        raise _refused(text, why)
    bad = next((c for c in text if not "!" <= c <= "~" or c in "\\#"), None)
    if bad == "#":
        raise _refused(text, "holds a fragment (#), which is never sent")
    if bad is not None:
        raise _refused(text, f"holds {bad!r}, which no address may hold")


def _authority(text: str, authority: str, policy: OutboundPolicy) -> tuple[str, int | None, bool]:
    if "@" in authority:
        raise RefusedAddressError(
            "credentials do not belong in an address: leave out what stands before the @"
        )
    match = _AUTHORITY.fullmatch(authority)
    if match is None:
        raise _refused(text, f"{authority[:_SHOWN_CHARS_MAX]!r} is no host")
    port = int(match["port"]) if match["port"] else None
    if port is not None and port > _PORT_MAX:
        raise _refused(text, f"{port} is no port")
    host = match["host"].lower()
    literal = _literal(text, host)
    if literal is None:
        return _name(text, host), port, False
    if why := refusal(literal, policy.networks):
        raise _refused(text, f"its host may not be reached from here ({why})")
    return str(literal), port, True


def _literal(text: str, host: str) -> IPv4Address | IPv6Address | None:
    """The host as an IP address, None for a name. What only some readers take for a number is refused."""
    try:
        if host.startswith("["):
            return IPv6Address(host[1:-1])
        if not _NUMBER.fullmatch(host.removesuffix(".").rpartition(".")[2]):
            return None
        return IPv4Address(host)
    except AddressValueError:
        raise _refused(text, f"{host!r} is no IP address; write it as 192.0.2.1 or [2001:db8::1]") from None


def _name(text: str, host: str) -> str:
    if len(host) > HOST_CHARS_MAX or not all(map(_LABEL.fullmatch, host.split("."))):
        raise _refused(text, f"{host[:_SHOWN_CHARS_MAX]!r} is no host's name")
    return host


def _refused(text: str, why: str) -> RefusedAddressError:
    # What follows a question mark is left out: it may be a signature.
    shown = text.partition("?")[0]
    shown = shown if len(shown) <= _SHOWN_CHARS_MAX else f"{shown[:_SHOWN_CHARS_MAX]}…"
    if "@" in shown:
        shown = f"…{shown.rpartition('@')[2]}"
    return RefusedAddressError(f"{shown!r}: {why}")
