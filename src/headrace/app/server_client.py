"""Open a client of a running model server from the server's URL: REST or gRPC, with an API key."""

import os
from collections.abc import Mapping
from typing import Final
from urllib.parse import SplitResult, urlsplit

from headrace.client.model_server import ModelServerClient
from headrace.core.errors import ConfigError

__all__ = ["API_KEY_VARIABLE", "DEFAULT_URL", "open_model_server"]

API_KEY_VARIABLE: Final = "HEADRACE_API_KEY"
DEFAULT_URL: Final = "http://localhost:8080"
_URL_EXAMPLES: Final = "http://host:8080, https://host, grpc://host:8081 or grpcs://host:443"


def open_model_server(
    url: str = DEFAULT_URL,
    *,
    api_key: str | None = None,
    timeout_s: float = 60.0,
    environ: Mapping[str, str] | None = None,
) -> ModelServerClient:
    """Return a client of the server at `url`; send nothing yet.

    The client is an async context manager.

    Args:
        url: ``http://``, ``https://``, ``grpc://`` or ``grpcs://``; ``http://`` is the default scheme.
        api_key: The bearer token. Without it, the environment variable HEADRACE_API_KEY is used.
        timeout_s: The timeout of each request in seconds. For a stream it bounds the wait for each item.
        environ: Environment variables that replace those of the process.

    Raises:
        ConfigError: The URL, the API key or the timeout is invalid.
        MissingExtraError: The protocol's optional dependency is not installed.
    """
    if timeout_s <= 0:
        raise ConfigError(f"timeout_s must be above 0, not {timeout_s:g}")
    parts = _parse_url(url)
    key = _api_key(api_key, os.environ if environ is None else environ)
    if parts.scheme in ("grpc", "grpcs"):
        # REST clients do not need gRPC, and gRPC clients do not need aiohttp.
        from headrace.client.model_server_grpc import GrpcServerClient  # noqa: PLC0415

        return GrpcServerClient(parts.netloc, tls=parts.scheme == "grpcs", api_key=key, timeout_s=timeout_s)
    from headrace.client.model_server_rest import RestServerClient  # noqa: PLC0415

    path = parts.path.rstrip("/").removesuffix("/v2")
    return RestServerClient(f"{parts.scheme}://{parts.netloc}{path}", api_key=key, timeout_s=timeout_s)


def _parse_url(url: str) -> SplitResult:
    text = url.strip()
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        _ = parts.port
    except ValueError as error:
        raise ConfigError(f"{url!r} is not a valid URL: {error}") from None
    if parts.scheme not in ("http", "https", "grpc", "grpcs") or not parts.hostname:
        raise ConfigError(f"{url!r} is not the URL of a server: write {_URL_EXAMPLES}")
    if parts.username is not None or parts.password is not None:
        raise ConfigError(f"the URL of {parts.hostname} contains credentials: set {API_KEY_VARIABLE} instead")
    if parts.query or parts.fragment or "/v2/models" in parts.path:
        raise ConfigError(
            f"{url!r} must be the server's root URL, without a model or a query: write {_URL_EXAMPLES}"
        )
    if parts.scheme.startswith("grpc") and parts.port is None:
        raise ConfigError(f"{url!r} has no port: write it as {parts.scheme}://{parts.hostname}:8081")
    return parts


def _api_key(explicit_key: str | None, environ: Mapping[str, str]) -> str | None:
    key = (environ.get(API_KEY_VARIABLE, "") if explicit_key is None else explicit_key).strip()
    if not key:
        return None
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise ConfigError(f"the API key contains spaces or non-ASCII characters: check {API_KEY_VARIABLE}")
    return key
