"""A server's URL becomes a client of the right protocol, or is refused with how to write it."""

import pytest

from headrace.app.asking import open_model_server
from headrace.client.oip_grpc import GrpcServer
from headrace.client.server_rest import RestServer
from headrace.core.errors import ConfigError


@pytest.mark.parametrize(
    ("url", "kind", "root"),
    [
        ("http://host:8080", RestServer, "http://host:8080"),
        ("localhost:8080", RestServer, "http://localhost:8080"),
        (" https://host/behind/a/gateway/v2/ ", RestServer, "https://host/behind/a/gateway"),
        ("http://[::1]:8080/", RestServer, "http://[::1]:8080"),
        ("grpc://host:8081", GrpcServer, "grpc://host:8081"),
        ("grpcs://host:443", GrpcServer, "grpcs://host:443"),
    ],
)
def test_the_scheme_chooses_the_protocol(url, kind, root):
    server = open_model_server(url, environ={})
    assert (type(server), server.url) == (kind, root)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("ftp://host", "no server's URL"),
        ("http://", "no server's URL"),
        ("http://host:port", "no URL"),
        ("http://me:secret@host", "set HEADRACE_API_KEY instead"),
        ("http://host/v2/models/churn", "without a model"),
        ("http://host?key=secret", "without a model or a query"),
        ("grpc://host", "has no port: write it as grpc://host:8081"),
    ],
)
def test_a_url_that_cannot_be_is_refused(url, said):
    with pytest.raises(ConfigError, match=said) as refused:
        open_model_server(url, environ={})
    assert "secret@" not in str(refused.value)


def test_a_timeout_must_leave_time():
    with pytest.raises(ConfigError, match="above 0 s"):
        open_model_server(timeout_s=0, environ={})


@pytest.mark.parametrize("key", ["two words", "emoji-✓", "line\nbreak"])
def test_a_key_that_no_header_can_carry_is_refused_without_being_told(key):
    with pytest.raises(ConfigError, match="API key") as refused:
        open_model_server(environ={"HEADRACE_API_KEY": key})
    assert key not in str(refused.value)
