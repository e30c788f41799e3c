"""Requests to addresses that clients name, for webhooks and inputs: policy, checks, results. Pure.

`jobs.paths` handles objects in stores.

The grammar of URLs is narrower than the standard's, so that no two parsers disagree on the host. An
address that another parser could read differently is refused, not repaired. Names are not resolved
here; their addresses are checked when the connection is made (see `client`).

Only IP addresses that the public internet routes may be reached, and those that the operator
allowed. IPv4 addresses inside IPv6 ones are extracted (IPv4-mapped, NAT64) or refused (6to4,
Teredo, ISATAP and other tunnels), since they would otherwise name a private address in another
spelling.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import (
    AddressValueError,
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import Annotated, Final

from headrace.core.clock import TransientFault
from headrace.core.errors import ConfigError, RefusedAddressError
from headrace.core.settings import Setting

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_REFUSED_V4: Final = tuple(
    (IPv4Network(subnet), what)
    for subnet, what in (
        ("0.0.0.0/8", "this network"),
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "shared by a carrier's customers"),
        ("127.0.0.0/8", "loopback"),
        ("169.254.0.0/16", "link-local"),
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "protocol assignments"),
        ("192.0.2.0/24", "documentation"),
        ("192.31.196.0/24", "AS112"),
        ("192.52.193.0/24", "AMT"),
        ("192.88.99.0/24", "6to4 relays"),
        ("192.168.0.0/16", "private"),
        ("192.175.48.0/24", "AS112"),
        ("198.18.0.0/15", "benchmarks"),
        ("198.51.100.0/24", "documentation"),
        ("203.0.113.0/24", "documentation"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved, or broadcast"),
    )
)
_GLOBAL_V6: Final = IPv6Network("2000::/3")
"""All global unicast addresses; private, link-local, multicast and reserved ones are outside."""
_REFUSED_V6: Final = tuple(
    (IPv6Network(subnet), what)
    for subnet, what in (
        ("2001::/23", "protocol assignments, among them Teredo and ORCHID"),
        ("2001:db8::/32", "documentation"),
        ("2002::/16", "6to4"),
        ("2620:4f:8000::/48", "AS112"),
        ("3ffe::/16", "the former 6bone"),
        ("3fff::/20", "documentation"),
    )
)
_NAT64: Final = IPv6Network("64:ff9b::/96")
_ISATAP: Final = frozenset({0x00005EFE, 0x02005EFE})
_IPV4_MASK: Final = 0xFFFFFFFF
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

OUTBOUND_RESPONSE_BYTES_MAX: Final = 64 << 10


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


def parse_network(text: str) -> Network:
    """Return a subnet that the operator allows, such as ``10.1.0.0/16``.

    Raise ConfigError for an invalid one.
    """
    try:
        return ip_network(text.strip())
    except ValueError as error:
        raise ConfigError(f"{text!r} is not a subnet: {error}; write 10.1.0.0/16 or fd00:1::/64") from error


def refusal(address: Address | str, allowed: Iterable[Network] = ()) -> str | None:
    """Return why this address may not be reached, or None if it may.

    Text that is no address is refused.

    `allowed` are subnets that may be reached although they are not global. They are compared with
    the extracted address: ``::ffff:10.1.2.3`` is ``10.1.2.3``.
    """
    try:
        effective = _embedded(ip_address(address))
    except ValueError:
        return "not an IP address"
    if isinstance(effective, IPv6Address) and effective.scope_id is not None:
        return "bound to one network interface"
    if any(effective.version == net.version and effective in net for net in allowed):
        return None
    return _refusal_v4(effective) if isinstance(effective, IPv4Address) else _refusal_v6(effective)


def _embedded(address: Address) -> Address:
    """Return the IPv4 address inside a mapped or NAT64 address; others unchanged."""
    if isinstance(address, IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address in _NAT64:
        return IPv4Address(int(address) & _IPV4_MASK)
    return address


def _refusal_v4(address: IPv4Address) -> str | None:
    what = next((what for net, what in _REFUSED_V4 if address in net), None)
    # The library's table may be newer or older than this one: either can refuse.
    return what if what or address.is_global else "not global"


def _refusal_v6(address: IPv6Address) -> str | None:
    if address not in _GLOBAL_V6:
        return "not global"
    if (int(address) >> 32) & _IPV4_MASK in _ISATAP:
        return "an IPv4 address in a tunnel (ISATAP)"
    what = next((what for net, what in _REFUSED_V6 if address in net), None)
    return what if what or address.is_global else "not global"


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


class OutboundFault(TransientFault):
    """No response came, for a reason that may pass: not reached, lost, or too slow."""


class UntrustedFault(OutboundFault):
    """The server's certificate is not trusted."""


@dataclass(frozen=True, slots=True)
class OutboundTimeouts:
    """The time limits of a request: for each connection step, for each read, and in total.

    The connection steps are the name, the connection and TLS.
    """

    connect_s: float = 5.0
    read_s: float = 10.0
    total_s: float = 15.0


@dataclass(frozen=True, slots=True)
class OutboundResponse:
    """A response, read up to `OUTBOUND_RESPONSE_BYTES_MAX`. Header names are in lower case.

    `complete` is False for a body that was too long, too slow or cut off; the part that came is
    kept, since its status is known. The body is for logs and is never shown to the client that
    named the address.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    complete: bool


@dataclass(frozen=True, slots=True)
class StreamedOutboundResponse:
    """A response whose body is read in chunks.

    `pieces` raises OutboundFault if it breaks or is too slow.
    """

    status: int
    headers: Mapping[str, str]
    pieces: Iterator[bytes]
