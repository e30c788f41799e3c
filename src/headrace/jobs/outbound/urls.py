"""Addresses that clients may name, for webhooks and inputs; `jobs.paths` handles objects in stores.

Pure.

The grammar is narrower than the standard's, so that no two parsers disagree on the host. An address
that another parser could read differently is refused, not repaired. Names are not resolved here;
their addresses are checked when the connection is made (see `client`).
"""

import re
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Annotated, Final

from headrace.core.errors import RefusedAddressError
from headrace.core.settings import Setting
from headrace.jobs.outbound.addresses import Network, parse_network, refusal

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


def _parse_networks(texts: tuple[str, ...]) -> tuple[Network, ...]:
    return tuple(map(parse_network, texts))


@dataclass(frozen=True, slots=True)
class OutboundPolicy:
    """The addresses that requests on behalf of clients may reach."""

    plain_http: Annotated[bool, Setting("Permit http:// besides https://.")] = False
    ports: Annotated[frozenset[int], Setting("Permitted ports.", least=1, most=_PORT_MAX)] = PORTS
    networks: Annotated[
        tuple[Network, ...],
        Setting(
            "Subnets that may be reached although they are not global.",
            expected="a list of subnets, such as 10.0.0.0/8",
            written=tuple[str, ...],
            parse=_parse_networks,
        ),
    ] = ()


@dataclass(frozen=True, slots=True)
class Url:
    """A permitted address. `host` is a name in lower case or a literal address without brackets."""

    scheme: str
    host: str
    port: int
    target: str
    """Path and query, as in the request line."""
    literal: bool = False
    """True if the host is an IP address."""

    @property
    def host_header(self) -> str:
        """The Host header: the host, with the port unless it is the scheme's default."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def origin(self) -> str:
        """Scheme, host and port, for logs: paths and queries may contain secrets."""
        return f"{self.scheme}://{self.host_header}"


def parse_url(text: str, policy: OutboundPolicy) -> Url:
    """Parse an address. Raise RefusedAddressError with the reason.

    A literal IP address is checked at once; a name passes, whatever its addresses.
    """
    _check_characters(text)
    match = _URL.fullmatch(text)
    if match is None:
        raise _refused(text, "not an address; write https://HOST/PATH")
    scheme = match["scheme"].lower()
    if scheme not in _DEFAULT_PORTS:
        raise _refused(text, f"scheme {scheme}: is not supported; write https://")
    if scheme == "http" and not policy.plain_http:
        raise _refused(text, "plain http is not allowed; write https://, or allow it in the settings")
    host, port, literal = _authority(text, match["authority"], policy)
    port = port or _DEFAULT_PORTS[scheme]
    if port not in policy.ports:
        known = ", ".join(map(str, sorted(policy.ports)))
        raise _refused(text, f"port {port} is not allowed; allowed: {known}")
    path, query = match["path"] or "/", match["query"] or ""
    if not _PATH.fullmatch(path) or not _QUERY.fullmatch(query[1:]):
        raise _refused(text, "its path or query contains a character that must be percent-encoded")
    return Url(scheme, host, port, path + query, literal)


def _check_characters(text: str) -> None:
    if len(text) > URL_CHARS_MAX:
        raise _refused(text, f"longer than {URL_CHARS_MAX} characters")
    if not text.isascii():
        why = "contains characters outside of ASCII; write a host as xn--..., and percent-encode the rest"
        raise _refused(text, why)
    bad = next((c for c in text if not "!" <= c <= "~" or c in "\\#"), None)
    if bad == "#":
        raise _refused(text, "contains a fragment (#), which is never sent")
    if bad is not None:
        raise _refused(text, f"contains the invalid character {bad!r}")


def _authority(text: str, authority: str, policy: OutboundPolicy) -> tuple[str, int | None, bool]:
    if "@" in authority:
        raise RefusedAddressError("an address with credentials: remove the part before the @")
    match = _AUTHORITY.fullmatch(authority)
    if match is None:
        raise _refused(text, f"{authority[:_SHOWN_CHARS_MAX]!r} is not a host")
    port = int(match["port"]) if match["port"] else None
    if port is not None and port > _PORT_MAX:
        raise _refused(text, f"{port} is not a port")
    host = match["host"].lower()
    literal = _literal(text, host)
    if literal is None:
        return _name(text, host), port, False
    if why := refusal(literal, policy.networks):
        raise _refused(text, f"its host may not be reached ({why})")
    return str(literal), port, True


def _literal(text: str, host: str) -> IPv4Address | IPv6Address | None:
    """Return the host as an IP address, None for a name.

    Texts that only some parsers read as numbers are refused.
    """
    try:
        if host.startswith("["):
            return IPv6Address(host[1:-1])
        if not _NUMBER.fullmatch(host.removesuffix(".").rpartition(".")[2]):
            return None
        return IPv4Address(host)
    except AddressValueError:
        raise _refused(
            text, f"{host!r} is not an IP address; write it as 192.0.2.1 or [2001:db8::1]"
        ) from None


def _name(text: str, host: str) -> str:
    if len(host) > HOST_CHARS_MAX or not all(map(_LABEL.fullmatch, host.split("."))):
        raise _refused(text, f"{host[:_SHOWN_CHARS_MAX]!r} is not a host name")
    return host


def _refused(text: str, why: str) -> RefusedAddressError:
    # The query is left out, because it may be a signature.
    shown = text.partition("?")[0]
    shown = shown if len(shown) <= _SHOWN_CHARS_MAX else f"{shown[:_SHOWN_CHARS_MAX]}…"
    if "@" in shown:
        shown = f"…{shown.rpartition('@')[2]}"
    return RefusedAddressError(f"{shown!r}: {why}")
