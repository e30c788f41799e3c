"""Server addresses: parsing, and messages without secrets."""

import pytest

from cases import for_each
from headrace.core.address import ServerAddress, redis_options
from headrace.core.errors import ConfigError

FORMS = "a://HOST"


def _connection(text):
    return redis_options(ServerAddress(text, FORMS))


def test_address_parts():
    address = ServerAddress("a://u%2F:p%40@h:7000/x?one=1&two=%202", FORMS)
    assert (address.scheme, address.username, address.password, address.port) == ("a", "u/", "p@", 7000)
    assert address.options == {"one": "1", "two": " 2"}
    assert address.redacted == "a://h:7000/x"
    assert (ServerAddress("a://h", FORMS).username, ServerAddress("a://@h", FORMS).password) == (None, None)


@for_each(
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
def test_invalid_address_error_hides_the_password(text):
    with pytest.raises(ConfigError) as found:
        ServerAddress(text, FORMS)
    assert "secret" not in str(found.value)


def test_error_names_the_accepted_forms():
    with pytest.raises(ConfigError, match=r"write a://HOST$"):
        ServerAddress("a://h:port", FORMS)


def test_redacted_address_hides_a_password_with_a_slash():
    assert ServerAddress("a://u:70/secret@h/x", FORMS).redacted == "a://h/x"


def test_unknown_option_is_named():
    address = ServerAddress("a://u:secret@h/x?one=1&two=2", FORMS)
    address.require_known_options({"one", "two", "three"})
    with pytest.raises(ConfigError) as found:
        address.require_known_options({"two", "three"})
    assert str(found.value) == "a://h/x: unknown option 'one'; known options are three, two"


def test_redis_options():
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


@for_each(("scheme", "tls"), [("redis", False), ("valkey", False), ("valkeys", True)])
def test_redis_schemes(scheme, tls):
    connection = _connection(f"{scheme}://[::1]:7000/")
    assert [connection[name] for name in ("host", "port", "db", "ssl")] == ["::1", 7000, 0, tls]


@for_each(
    ("text", "message"),
    [
        ("redis://", r"write redis://\[USER:PASSWORD@\]HOST"),
        ("valkeys://u:secret@h/name", r"^valkeys://h/name: invalid address; write valkeys://\[USER"),
        ("redis://u:secret@h/-1", "write redis://"),
        ("redis://u:secret@h/²", "write redis://"),
        (
            "redis://u:secret@h?ssl_cert_reqs=none",
            "unknown option 'ssl_cert_reqs'; known options are prefix$",
        ),
        ("redis://u:secret@h?cafile=x", "options are prefix$"),
        ("rediss://u:secret@h?timeout=1", "options are cafile, prefix$"),
    ],
)  # fmt: skip
def test_invalid_redis_address_error_hides_the_password(text, message):
    with pytest.raises(ConfigError, match=message) as found:
        _connection(text)
    assert "secret" not in str(found.value)


def test_missing_cafile_is_named():
    address = ServerAddress("rediss://u:secret@h?cafile=no/such.pem", FORMS)
    assert (
        str(address.missing_cafile_error())
        == "rediss://h: cafile no/such.pem does not exist; name a file of trusted certificates"
    )
