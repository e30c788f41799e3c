"""Addresses of servers: what they say, and what is never shown of them."""

import pytest

from headrace.core.address import ServerAddress, redis_connection
from headrace.core.errors import ConfigError

FORMS = "a://HOST"


def _connection(text):
    return redis_connection(ServerAddress(text, FORMS))


def test_the_parts_of_an_address():
    address = ServerAddress("a://u%2F:p%40@h:7000/x?one=1&two=%202", FORMS)
    assert (address.scheme, address.username, address.password, address.port) == ("a", "u/", "p@", 7000)
    assert address.options == {"one": "1", "two": " 2"}
    assert address.shown == "a://h:7000/x"
    assert (ServerAddress("a://h", FORMS).username, ServerAddress("a://@h", FORMS).password) == (None, None)


@pytest.mark.parametrize(
    "text",
    [
        "a://u:secret@h:port",
        "a://u:secret@h:70000",
        "a://u:secret@[h",
        "a://u:secret@h\u2100",
        "a://u:secret/x@h",
        "a://u:secret@h?one",
        "a://u:secret@h?one=",
        "a://u:secret@h?one=1&one=2",
    ],
)
def test_what_cannot_be_read_is_refused_without_the_password(text):
    with pytest.raises(ConfigError) as found:
        ServerAddress(text, FORMS)
    assert "secret" not in str(found.value)


def test_whoever_writes_something_else_is_told_what_can_be_written():
    with pytest.raises(ConfigError, match=r"write a://HOST$"):
        ServerAddress("a://h:port", FORMS)


def test_a_password_with_a_slash_is_not_shown():
    assert ServerAddress("a://u:70/secret@h/x", FORMS).shown == "a://h/x"


def test_options_that_are_not_known_are_named():
    address = ServerAddress("a://u:secret@h/x?one=1&two=2", FORMS)
    address.allow({"one", "two", "three"})
    with pytest.raises(ConfigError) as found:
        address.allow({"two", "three"})
    assert str(found.value) == "a://h/x: no option is called 'one' here; known are three, two"


def test_how_redis_is_connected_to():
    assert _connection("redis://h") == {
        "host": "h",
        "port": 6379,
        "db": 0,
        "username": None,
        "password": None,
        "ssl": False,
    }
    assert _connection("rediss://u%2F:p%40@h:7000/3?prefix=mine&cafile=no/such.pem") == {
        "host": "h",
        "port": 7000,
        "db": 3,
        "username": "u/",
        "password": "p@",
        "ssl": True,
        "ssl_ca_certs": "no/such.pem",
    }


@pytest.mark.parametrize(("scheme", "tls"), [("redis", False), ("valkey", False), ("valkeys", True)])
def test_by_whichever_name(scheme, tls):
    connection = _connection(f"{scheme}://[::1]:7000/")
    assert [connection[name] for name in ("host", "port", "db", "ssl")] == ["::1", 7000, 0, tls]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("redis://", r"write redis://\[USER:PASSWORD@\]HOST"),
        ("valkeys://u:secret@h/name", r"^valkeys://h/name: write valkeys://\[USER"),
        ("redis://u:secret@h/-1", "write redis://"),
        ("redis://u:secret@h/²", "write redis://"),
        ("redis://u:secret@h?ssl_cert_reqs=none", "no option is called 'ssl_cert_reqs' here; known are prefix$"),
        ("redis://u:secret@h?cafile=x", "known are prefix$"),
        ("rediss://u:secret@h?timeout=1", "known are cafile, prefix$"),
    ],
)  # fmt: skip
def test_what_is_no_address_of_redis_is_refused_without_the_password(text, says):
    with pytest.raises(ConfigError, match=says) as found:
        _connection(text)
    assert "secret" not in str(found.value)


def test_a_file_that_is_not_there_is_named():
    address = ServerAddress("rediss://u:secret@h?cafile=no/such.pem", FORMS)
    assert str(address.no_cafile()) == "rediss://h: there is no file no/such.pem; cafile says whom to trust"
