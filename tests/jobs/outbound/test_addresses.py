"""IP addresses: refused ranges in every spelling, and permitted public addresses."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.core.errors import ConfigError
from headrace.jobs.outbound import parse_network, refusal

REFUSED = [
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "100.64.0.1",
    "100.127.255.255",
    "127.0.0.1",
    "127.1.2.3",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.1",
    "192.0.0.9",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.19.255.255",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:169.254.169.254",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::1",
    "100::1",
    "2001::1",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "2001:2::1",
    "2001:10::1",
    "2001:20::1",
    "2001:db8::1",
    "2002:7f00:1::",
    "2002:808:808::",
    "3fff::1",
    "3ffe::1",
    "5f00::1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fec0::1",
    "ff02::1",
    "4000::1",
    "2606:4700::5efe:10.0.0.1",
    "2606:4700::200:5efe:8.8.8.8",
]
PUBLIC = [
    "8.8.8.8",
    "1.1.1.1",
    "100.63.255.255",
    "100.128.0.1",
    "172.15.0.1",
    "172.32.0.1",
    "192.167.0.1",
    "198.17.0.1",
    "198.20.0.1",
    "223.255.255.254",
    "2606:4700:4700::1111",
    "2a00:1450:4001::1",
    "2001:4860:4860::8888",
    "::ffff:8.8.8.8",
    "64:ff9b::808:808",
]


@for_each("address", REFUSED)
def test_non_public_address_is_refused(address):
    assert refusal(address)
    assert refusal(ipaddress.ip_address(address))


@for_each("address", PUBLIC)
def test_public_address_is_permitted(address):
    assert refusal(address) is None


@for_each("text", ["", "localhost", "127.1", "0x7f000001", "2130706433", "1.2.3.4/32", "[::1]"])
def test_text_without_an_address_is_refused(text):
    assert refusal(text) == "not an IP address"


def test_scoped_address_is_refused_even_in_an_allowed_subnet():
    assert refusal("fe80::1%eth0", [parse_network("fe80::/10")])


@for_each("address", ["10.1.2.3", "::ffff:10.1.2.3", "64:ff9b::10.1.2.3"])
def test_allowed_subnet_permits_every_spelling(address):
    assert refusal(address, [parse_network("10.1.0.0/16")]) is None
    assert refusal(address, [parse_network("10.2.0.0/16"), parse_network("fd00::/8")])


def test_allowed_subnet_does_not_permit_tunnels():
    assert refusal("2002:a01:203::", [parse_network("10.1.0.0/16")])


@for_each("text", ["10.1.0.0/33", "10.1.2.3/16", "net", ""])
def test_invalid_subnet_is_refused(text):
    with pytest.raises(ConfigError, match="not a subnet"):
        parse_network(text)


@given(st.ip_addresses(v=4))
def test_private_v4_addresses_are_refused(address):
    if not address.is_global or address.is_multicast:
        assert refusal(address)


@given(st.ip_addresses(v=4))
def test_v4_addresses_in_v6_are_judged_alike_or_refused(address):
    number = int(address)
    plain = refusal(address)
    mapped = ipaddress.IPv6Address((0xFFFF << 32) | number)
    nat64 = ipaddress.IPv6Address((0x64FF9B << 96) | number)
    assert refusal(mapped) == refusal(nat64) == plain
    for hidden in (number, (0x2002 << 112) | (number << 80), (0x20010000 << 96) | (number ^ 0xFFFFFFFF)):
        assert refusal(ipaddress.IPv6Address(hidden))


@given(st.ip_addresses(v=6))
def test_v6_addresses_outside_of_global_unicast_are_refused(address):
    if refusal(address) is None:
        outside = address.ipv4_mapped is not None or address in ipaddress.ip_network("64:ff9b::/96")
        assert outside or address.is_global
        assert not any((address.is_multicast, address.is_link_local, address.is_loopback))
