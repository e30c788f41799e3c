"""Addresses from outside: the accepted grammar, and attacks on URL parsers."""

from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.core.errors import RefusedAddressError
from headrace.jobs.outbound import OutboundPolicy, Url, parse_network, parse_url

DEFAULT = OutboundPolicy()
PLAIN = OutboundPolicy(plain_http=True)

HOSTILE = [
    "http://169.254.169.254/",
    "http://[::ffff:127.0.0.1]/",
    "http://0x7f000001/",
    "http://2130706433/",
    "http://127.1/",
    "http://[::]/",
    "http://[64:ff9b::7f00:1]/",
    "http://[2002:7f00:1::]/",
    "http://0177.0.0.1/",
    "http://127.0.0.01/",
    "http://1.2.3.4.5/",
    "http://0x7f.1/",
    "http://127.0.0.1./",
    "http://a.0x7f/",
    "http://0/",
    "http://0x/",
    "http://a@b@c/",
    "http://user:word@example.com/",
    "http://example.com@127.0.0.1/",
    "http://example.com#@127.0.0.1/",
    "http://127.0.0.1#@example.com/",
    "http://example.com/#top",
    "http://example.com\\@127.0.0.1/",
    "http:\\\\127.0.0.1/",
    "http://example.com\\/",
    "http://example.com\r\nHost: x/",
    "http://example.com/\r\nX: y",
    "http://example.com/%0",
    "http://example.com/%zz",
    "http://exa mple.com/",
    " http://example.com/",
    "http://example.com/ ",
    "http://example.com/\0",
    "http://127\u30020\u30020\u30021/",
    "http://example\uff0ecom/",
    "http://\u24d4xample.com/",
    "http://b\u00fccher.example/",
    "http://example.com./",
    "http://.example.com/",
    "http://a..b/",
    "http://-a.example/",
    "http://%31%32%37.0.0.1/",
    "http://[fe80::1%25eth0]/",
    "http://[::1/",
    "http://::1/",
    "http://[127.0.0.1]/",
    "http://[v1.x]/",
    "http:///path",
    "http://:80/",
    "http:/example.com",
    "http:example.com",
    "//example.com/",
    "example.com",
    "",
    "http://example.com:/",
    "http://example.com:0/",
    "http://example.com:080/",
    "http://example.com:65536/",
    "http://example.com:99999999/",
    "http://example.com:+80/",
    "http://example.com:22/",
    "http://example.com:6379/",
    "http://" + "a" * 64 + ".example/",
    "http://" + "a." * 130 + "example/",
    "http://example.com/" + "a" * 3000,
    "gopher://example.com/",
    "file:///etc/passwd",
    "ftp://example.com/",
    "s3://bucket/key",
    "javascript:alert(1)",
    "data:text/plain,x",
    "jar:http://example.com!/",
    "unix:///var/run/docker.sock",
]


@for_each("text", HOSTILE)
def test_hostile_address_is_refused(text):
    with pytest.raises(RefusedAddressError):
        parse_url(text, PLAIN)


@for_each(
    ("text", "url", "host_header"),
    [
        ("https://example.com", Url("https", "example.com", 443, "/"), "example.com"),
        ("HTTPS://Example.COM:8443/A?b=C", Url("https", "example.com", 8443, "/A?b=C"), "example.com:8443"),
        ("https://8.8.8.8/x%20y", Url("https", "8.8.8.8", 443, "/x%20y", literal=True), "8.8.8.8"),
        ("https://[2606:4700::1]/", Url("https", "2606:4700::1", 443, "/", literal=True), "[2606:4700::1]"),
        ("https://xn--bcher-kva.example/?a[]=1", Url("https", "xn--bcher-kva.example", 443, "/?a[]=1"), None),
        ("https://example.com?x=1", Url("https", "example.com", 443, "/?x=1"), None),
        ("https://a_b.example:80/", Url("https", "a_b.example", 80, "/"), "a_b.example:80"),
    ],
)
def test_valid_address_is_parsed(text, url, host_header):
    assert parse_url(text, DEFAULT) == url
    assert url.host_header == (host_header or url.host)
    assert url.origin == f"https://{url.host_header}"


def test_plain_http_and_ports_need_permission():
    with pytest.raises(RefusedAddressError, match="plain http"):
        parse_url("http://example.com/", DEFAULT)
    assert parse_url("http://example.com/", PLAIN).port == 80
    with pytest.raises(RefusedAddressError, match="port 9000 is not allowed; allowed: 80, 443, 8443"):
        parse_url("https://example.com:9000/", DEFAULT)
    assert parse_url("https://example.com:9000/", OutboundPolicy(ports=frozenset({9000}))).port == 9000


def test_literal_address_in_an_allowed_subnet_is_accepted():
    policy = OutboundPolicy(plain_http=True, networks=(parse_network("127.0.0.0/8"),))
    assert parse_url("http://127.0.0.1/", policy).host == "127.0.0.1"
    with pytest.raises(RefusedAddressError):
        parse_url("http://10.0.0.1/", policy)


def test_messages_contain_neither_credentials_nor_queries():
    for text in (
        "https://me:hunter2@example.com/",
        "https://h:22/p?sig=hunter2",
        "https://h\\@x/me:hunter2@y",
    ):
        with pytest.raises(RefusedAddressError) as refused:
            parse_url(text, DEFAULT)
        assert "hunter2" not in str(refused.value)


@given(st.text(max_size=60) | st.from_regex(r"https?://[a-z0-9.:@\[\]\\#%-]{0,30}/.{0,10}", fullmatch=True))
def test_any_text_is_parsed_like_other_parsers_or_refused(text):
    try:
        url = parse_url(text, PLAIN)
    except RefusedAddressError:
        return
    parts = urlsplit(text)
    assert (parts.hostname, parts.username, parts.fragment) == (url.host, None, "")
    assert (parts.port or {"http": 80, "https": 443}[url.scheme]) == url.port
    assert url.target.isascii()
    assert url.target.isprintable()
    assert " " not in url.target
