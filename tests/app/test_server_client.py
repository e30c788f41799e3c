"""Clients of model servers, chosen by URL, and the errors of invalid URLs and keys."""

import pytest

from cases import for_each
from headrace.app.models import open_model_server
from headrace.client.model_server_grpc import GrpcServerClient
from headrace.client.model_server_rest import RestServerClient
from headrace.core.errors import ConfigError


@for_each(
    ("url", "kind", "root"),
    [
        ("http://host:8080", RestServerClient, "http://host:8080"),
        ("localhost:8080", RestServerClient, "http://localhost:8080"),
        (" https://host/behind/a/gateway/v2/ ", RestServerClient, "https://host/behind/a/gateway"),
        ("http://[::1]:8080/", RestServerClient, "http://[::1]:8080"),
        ("grpc://host:8081", GrpcServerClient, "grpc://host:8081"),
        ("grpcs://host:443", GrpcServerClient, "grpcs://host:443"),
    ],
)
def test_url_scheme_selects_the_protocol(url, kind, root):
    server = open_model_server(url, environ={})
    assert (type(server), server.url) == (kind, root)


@for_each(
    ("url", "message"),
    [
        ("ftp://host", "is not the URL of a server"),
        ("http://", "is not the URL of a server"),
        ("http://host:port", "is not a valid URL"),
        ("http://me:secret@host", "set HEADRACE_API_KEY instead"),
        ("http://host/v2/models/churn", "without a model"),
        ("http://host?key=secret", "without a model or a query"),
        ("grpc://host", "has no port: write it as grpc://host:8081"),
    ],
)
def test_invalid_url_is_refused_without_its_credentials(url, message):
    with pytest.raises(ConfigError, match=message) as refused:
        open_model_server(url, environ={})
    assert "secret@" not in str(refused.value)


def test_timeout_of_zero_is_refused():
    with pytest.raises(ConfigError, match="above 0"):
        open_model_server(timeout_s=0, environ={})


@for_each("key", ["two words", "emoji-✓", "line\nbreak"])
def test_invalid_key_is_refused_without_being_shown(key):
    with pytest.raises(ConfigError, match="API key") as refused:
        open_model_server(environ={"HEADRACE_API_KEY": key})
    assert key not in str(refused.value)
