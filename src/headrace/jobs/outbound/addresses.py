"""The decision if an IP address may be reached on behalf of a client. Pure.

Only addresses that the public internet routes, and those that the operator allowed. IPv4 addresses
inside IPv6 ones are extracted (IPv4-mapped, NAT64) or refused (6to4, Teredo, ISATAP and other
tunnels), since they would otherwise name a private address in another spelling.
"""

from collections.abc import Iterable
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import Final

from headrace.core.errors import ConfigError

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
